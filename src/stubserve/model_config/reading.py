"""Reads a `config.pbtxt` to the end in spite of mistakes, so that all can be reported at once, with their places.

Protobuf's parser stops at the first mistake. So the field at that place is blanked out and the text is read again,
until all of it is read or no further field can be told apart (a bracket that is not closed). A text of some kilobytes
may have a hundred mistakes; beyond that the rest is left unread, as each mistake costs a reading of the whole text.
"""

from __future__ import annotations

import asyncio
import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from stubserve.errors import ServeError
from stubserve.model_config.parse import decode_text, find_templates, place_of_number, with_words
from stubserve.model_config.proto import ModelConfig, model_config_pb2
from stubserve.model_config.source import Field, FieldPath, Source, UnreadableText

_NO_FIELD = re.compile(r'Message type "inference\.([\w.]+)" has no field named "(\w+)"')
_EXCERPT = re.compile(r"^'.*': ", re.DOTALL)
_NO_VALUE = re.compile(r'Enum type "inference\.([\w.]+)" has no value named (\w+)')

# What the errors of a field depend on, beside the field itself
_DEPENDS_ON: dict[str | int, tuple[str, ...]] = {
    "backend": ("platform", "default_model_filename", "runtime"),
    "platform": ("backend", "ensemble_scheduling"),
    "batch_input": ("input",),
    "batch_output": ("input", "output"),
    "ensemble_scheduling": ("input", "output"),
}

# In all readings of one text together; about a quarter of a second
_MOST_CHARACTERS = 200_000


@dataclass(frozen=True)
class Mistake:
    """A part that could not be read. Line and column count from 1; `path` is that of the field.

    `part` is the field of the configuration that it is in, or was probably meant to be.
    """

    line: int
    column: int
    text: str
    path: tuple[str | int, ...]
    part: str


@dataclass
class Reading:
    """A configuration as far as it could be read. `complete` is false if the rest of the text is unknown."""

    config: Any
    source: Source | None
    mistakes: list[Mistake] = field(default_factory=list)
    complete: bool = True

    @property
    def unread(self) -> set[str]:
        """The fields of the configuration of which something could not be read."""
        return {mistake.part for mistake in self.mistakes}

    def note(self, source: Source | None, line: int, column: int, text: str, meant: str = "") -> Field | None:
        """Notes a mistake at a place of `source`; the innermost field there. `meant` is the name of another field."""
        found = source.field_at(line, column) if source is not None else None
        innermost, path = (None, ()) if found is None else (found[0], (*found[1], found[0].name))
        part = meant if meant and len(path) == 1 else str(path[0]) if path else ""
        self.mistakes.append(Mistake(line, column, text, path, part))
        return innermost

    def line_of(self, path: FieldPath) -> int:
        """The line of a field, 0 if it is not known."""
        return self.source.line_of(path) if self.source is not None else 0

    def follows_from_mistake(self, path: FieldPath) -> bool:
        """Whether an error about a field may only follow from an unreadable field, beside it or that it depends on."""
        places = [mistake.path[:-1] or mistake.path for mistake in self.mistakes]
        return any(tuple(path[: len(beside)]) == beside for beside in places) or not self.unread.isdisjoint(
            _DEPENDS_ON.get(path[0], ())
        )


def read_leniently(text: str) -> Reading:
    """Reads as much of a configuration as possible."""
    templates = find_templates(text, in_string=False)
    readable = with_words(text, templates)
    try:
        source: Source | None = Source(readable)
    except UnreadableText:
        source = None
    reading = Reading(ModelConfig(), source)
    rest = source
    for one in templates:
        unread = reading.note(source, one.line, one.column, one.remark)
        if rest is not None and unread is not None and not rest.text[one.start].isspace():
            rest = rest.without_field(unread)
    read = 0
    while True:
        config = ModelConfig()
        left = readable if rest is None else rest.text
        read += len(left)
        try:
            text_format.Parse(left, config)
        except (text_format.ParseError, ValueError) as error:
            if isinstance(error, text_format.ParseError):
                line, column = error.GetLine() or 0, error.GetColumn() or 0
            else:
                line, column = place_of_number(left, error)
            reason = str(error).removeprefix(f"{line}:{column} : ")
            text, meant = _explained(reason)
            unread = reading.note(rest, line, column, text + _remark_on_comment(left, line, column), meant)
            if rest is None or unread is None or read > _MOST_CHARACTERS:
                reading.complete = False
                return reading
            rest = rest.without_field(unread)
        else:
            reading.config = config
            return reading


def _remark_on_comment(text: str, line: int, column: int) -> str:
    """A remark on a word that a comment cuts off, as in `TYPE_#DTYPE`."""
    lines = text.split("\n")
    rest = lines[line - 1][column - 1 :] if 0 < line <= len(lines) and column else ""
    word = re.match(r"\w+(?=#)", rest)
    return f"; a comment begins behind it, so '{rest[word.end() :].strip()}' is not read" if word is not None else ""


def _explained(reason: str) -> tuple[str, str]:
    """Protobuf's words without the excerpt of the text, and with the name that was probably meant; and that name.

    A name that is as near to others means none.
    """
    for pattern, kind in ((_NO_FIELD, "field"), (_NO_VALUE, "value")):
        match = pattern.search(reason)
        if match is not None:
            holder, name = match[1].rpartition(".")[2], match[2]
            close = difflib.get_close_matches(name, _names(match[1], kind), 2, 0.6)
            alike = [difflib.SequenceMatcher(None, one, name).ratio() for one in close]
            meant = close[0] if (close and alike[0] != alike[-1]) or len(close) == 1 else ""
            hint = f"; did you mean '{meant}'?" if meant else ""
            return f"{holder} has no {kind} named '{name}'{hint}", meant if kind == "field" else ""
    return _EXCERPT.sub("", reason), ""


def _names(full_name: str, kind: str) -> list[str]:
    pool = model_config_pb2.DESCRIPTOR.pool
    if kind == "field":
        return [one.name for one in pool.FindMessageTypeByName(f"inference.{full_name}").fields]
    return [one.name for one in pool.FindEnumTypeByName(f"inference.{full_name}").values]


async def located(error: ServeError, find_file: Callable[[], Path]) -> str:
    """The log's text for an error that a configuration has caused; the error's own text if no more is known.

    Clients get upstream's texts, which have a line and a column at best. The log adds the field that was probably
    meant, and the other mistakes of the file, as `stubserve check` reports them.

    The file is found (or there is a ServeError) and read in a thread, as disks may be slow. If the load is cancelled
    meanwhile, the error's own text is used.
    """
    try:
        return await asyncio.to_thread(lambda: _located_in(error, find_file()))
    except (ServeError, asyncio.CancelledError):
        return error.log_message


def _located_in(error: ServeError, file: Path) -> str:
    text = error.log_message.rstrip()
    if text != error.message.rstrip():
        return text  # the text names its file already
    try:
        content = decode_text(file.read_bytes())
    except (OSError, UnicodeDecodeError):
        return text
    reading = read_leniently(content)
    lines = content.splitlines()
    places = [(one.line, one.column, one.text) for one in reading.mistakes]
    if not places and error.path and reading.line_of(error.path):
        places = [(reading.line_of(error.path), 0, "")]
    for line, column, what in places:
        text += f"\n{file}:{line}" + (f": {what}" if what else "")
        if 0 < line <= len(lines):
            text += f"\n    {lines[line - 1].expandtabs(1)}"
            text += f"\n    {' ' * (column - 1)}^" if column else ""
    return text
