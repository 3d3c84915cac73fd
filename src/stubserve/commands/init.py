"""`stubserve init NAME`: a new model's folder, with a client and a test that work as they are."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from stubserve.errors import ServeError
from stubserve.repository.folder import CONFIG_FILE, check_model_name

_TEMPLATES = Path(__file__).parent / "new-model"
_FILES = ("1/model.py", CONFIG_FILE, "client.py", "test_model.py")
_CLASS = b"class TritonPythonModel:\n"


def run(words: Sequence[str]) -> int:
    """Writes the folder; 1 if it cannot, else 0."""
    parser = argparse.ArgumentParser(
        prog="stubserve init",
        description="Writes the folder of a new model, with comments: a model.py to change, config.pbtxt, a client and "
        "a test. All of it works as it is.",
    )
    parser.add_argument("folder", metavar="NAME", type=Path, help="the model's name, or where its folder is to be")
    parser.add_argument(
        "--no-config", action="store_true", help="no config.pbtxt: model.py says itself what it takes and gives"
    )
    options = parser.parse_args(words)
    folder: Path = options.folder
    try:
        check_model_name(folder.absolute().name)
    except ServeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    try:
        write_model(folder, with_config=not options.no_config)
    except FileExistsError:
        print(f"error: {folder} is there already, and nothing in it was changed. Choose another name.", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error.filename} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    for line in _next_steps(folder):
        print(line)
    return 0


def write_model(folder: Path, with_config: bool = True) -> None:
    """Writes a new model into `folder`, which must not exist. Raises OSError."""
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(folder)
    contents = {place: (_TEMPLATES / place).read_bytes() for place in _FILES}
    if not with_config:
        del contents[CONFIG_FILE]
        method = (_TEMPLATES / "auto_complete_config.txt").read_bytes()
        contents["1/model.py"] = contents["1/model.py"].replace(_CLASS, _CLASS + method)
    for place, content in contents.items():
        file = folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def _next_steps(folder: Path) -> list[str]:
    name = shlex.quote(str(folder))
    return [
        f"{folder}: a model that doubles its input; edit {folder / '1' / 'model.py'} to make it yours.",
        f"  stubserve serve {name} --dev    serves it, and again whenever a file of it is saved",
        f"  python {shlex.quote(str(folder / 'client.py'))}    asks it",
        f"  python -m pytest {name}    tests it without a server",
    ]
