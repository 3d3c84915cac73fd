"""What mkdocs calls while it builds the site: the reference pages are added to those that lie in docs/."""

from __future__ import annotations

from typing import Any

from mkdocs.structure.files import File, Files

from tools.reference import PAGES


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages of `tools.reference`."""
    for path, write in PAGES.items():
        files.append(File.generated(config, path, content=write()))
    return files
