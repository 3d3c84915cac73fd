"""The pages of the documentation as what they show: files to write, commands to type, and what these print.

In a page, a fenced block

- with a `title` is a file of that name, relative to the reader's working folder;
- of the language `sh` has commands;
- of the language `console` has commands behind `$ ` and what they print; `...` stands for anything;
- of the language `python` without a title is run as it stands;
- of another kind, or of none, is only to be read.

What a test needs and a reader does not, stands in such blocks within a comment of HTML. A comment
`<!-- not run: why -->` on the line before a block says why nobody can run it here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(
    r"^(?:<!-- not run: (?P<why>.*?) -->\n)?```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """One fenced block; `why_not` is why it cannot be run, empty if it can."""

    language: str
    title: str
    text: str
    why_not: str

    @property
    def runs(self) -> bool:
        """Whether there is something to do."""
        return not self.why_not and bool(self.title or self.commands or self.language == "python")

    @property
    def commands(self) -> list[tuple[str, str]]:
        """(command, what it prints) of a block of commands; what `sh` prints is not said."""
        text = self.text.replace("\\\n", "")
        if self.language == "sh":
            return [(line, "") for line in text.splitlines() if line and not line.startswith("#")]
        if self.language == "console":
            parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
            return [(first.strip(), rest) for first, _, rest in (part.partition("\n") for part in parts)]
        return []


def blocks(text: str) -> list[Block]:
    """The blocks of a page, in order."""
    found = []
    for match in _FENCE.finditer(text):
        language, _, attributes = match["info"].strip().partition(" ")
        title = re.search(r'title="([^"]*)"', attributes)
        found.append(Block(language, title[1] if title else "", match["text"], match["why"] or ""))
    return found


def pages() -> list[str]:
    """All pages that are written by hand, as paths below the root."""
    found = [ROOT / "README.md", *DOCS.rglob("*.md")]
    return sorted(str(path.relative_to(ROOT)) for path in found)
