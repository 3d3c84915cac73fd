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
import shlex
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
        if self.language == "sh":
            found, rest = [], self.text
            while rest:
                command, rest = _first_command(rest)
                if command:
                    found.append((command, ""))
            return found
        if self.language == "console":
            return [_first_command(part) for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]]
        return []


def words_of(command: str) -> list[str]:
    """The words of a command, also of one over several lines. Raises ValueError for an open quote."""
    return shlex.split(command.replace("\\\n", ""))


# Behind words outside of quotes, or within double ones: what an interactive bash or zsh takes for something else
_QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.""", re.DOTALL)
_PITFALLS = {
    r"(?<![^\s;&|(])#": "a comment, which an interactive zsh takes for words",
    r"(?<=\w)\[|(?<!\$)\?": "a pattern of files, for which zsh wants quotes",
    r"![^\s=(]": "history, for a shell that is typed in",
    r"(?<!<)<[\w-]+>": "a file in place of a word that the reader puts in",
}


def pitfalls(command: str) -> str:
    """What a reader who pastes the command into a shell would meet; empty for nothing."""
    for quoted in _QUOTED.findall(command):
        if quoted.startswith("'") and "\\\n" in quoted:
            return "a backslash within quotes, which is a part of the text"
        if quoted.startswith('"') and re.search(r'![^\s="]', quoted):
            return "history, for a shell that is typed in"
    plain = _QUOTED.sub("_", command)
    return next((why for pattern, why in _PITFALLS.items() if re.search(pattern, plain)), "")


def _first_command(text: str) -> tuple[str, str]:
    """The first command, and what follows it. As a shell takes it: it goes on behind an open quote or a backslash."""
    lines = text.splitlines(keepends=True)
    for end in range(1, len(lines) + 1):
        command = "".join(lines[:end]).strip()
        if _is_whole(command):
            return command, "".join(lines[end:])
    raise ValueError(f"the command does not end: {text}")


def _is_whole(command: str) -> bool:
    try:
        words_of(command)
    except ValueError:
        return False
    return not command.endswith("\\")


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
