"""Tables of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def cell(text: str) -> str:
    """A text that stands in one cell; outside of code `<` is no tag."""
    pieces = " ".join(text.split()).replace("|", "\\|").split("`")
    return "`".join(piece if index % 2 else piece.replace("<", "&lt;") for index, piece in enumerate(pieces))


def name(text: str) -> str:
    """A name as code that is never broken; the style sheet of the site has its class."""
    return f"`{text}`{{.whole}}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, and the empty line behind it."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell(text) for text in row)} |\n" for row in lines) + "\n"
