"""What mkdocs calls while it builds the site: reference pages are added, and each page gets what is made in one place."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.reference import PAGES
from tools.reference.diagrams import with_pictures

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

README = Path(__file__).parents[2] / "README.md"
INSTALLING = "guides/installing.md"
_BLOCK = re.compile(r"^```(?:sh|console)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_INSTALLS = re.compile(r"\bpip install .*\bstubserve")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages of `tools.reference`."""
    from mkdocs.structure.files import File  # not installed where tests import this module

    for path, write in PAGES.items():
        files.append(File.generated(config, path, content=write()))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Draws the page's pictures, says beside each `pip install stubserve` what works before a release, ranks the page."""
    path = page.file.src_uri
    page.meta.setdefault("search", {"boost": config["extra"]["search_boost"].get(path, 1)})
    return beside_installations(with_pictures(markdown), path, before_a_release(README.read_text()))


def before_a_release(readme: str) -> str:
    """The one sentence that a release takes out of the README; empty when it is out."""
    found = re.search(r"^Until there is a release.*?(?=\n\n)", readme, re.MULTILINE | re.DOTALL)
    return found[0] if found else ""


def beside_installations(markdown: str, path: str, said: str) -> str:
    """The page with `said` behind each block that installs stubserve, and a link to what else there is to say."""
    if not said:
        return markdown
    link = posixpath.relpath(INSTALLING, posixpath.dirname(path) or ".")
    more = "" if path == INSTALLING else f" [Installing]({link}) has more."
    note = f'\n!!! info "Before the first release"\n    {said}{more}\n'
    return _BLOCK.sub(lambda block: block[0] + note if _INSTALLS.search(block[1]) else block[0], markdown)
