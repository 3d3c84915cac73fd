"""Reading a `config.pbtxt` to the end although it has mistakes, so that all of them can be told at once.

Protobuf's parser stops at the first. So the field that it stopped at is blanked out and the rest is read again, until
all of it is read or nothing more can be told apart (a bracket that is not closed).
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import text_format

from stubserve.model_config.proto import ModelConfig, model_config_pb2
from stubserve.model_config.source import Path, Source, UnreadableText
from stubserve.model_config.templates import unfilled, unfilled_templates, with_words

_NO_FIELD = re.compile(r'Message type "inference\.([\w.]+)" has no field named "(\w+)"')
_EXCERPT = re.compile(r"^'.*': ", re.DOTALL)
_NO_VALUE = re.compile(r'Enum type "inference\.([\w.]+)" has no value named (\w+)')


@dataclass(frozen=True)
class Mistake:
    """What could not be read. Line and column count from 1; `path` is that of the field."""

    line: int
    column: int
    text: str
    path: tuple[str | int, ...]


@dataclass
class Reading:
    """A configuration as far as it could be read. `complete` is false when the rest of the text is unknown."""

    config: Any
    source: Source | None
    mistakes: list[Mistake] = field(default_factory=list)
    complete: bool = True

    def line_of(self, path: Path) -> int:
        """The line of a field, 0 if it is not known."""
        return self.source.line_of(path) if self.source is not None else 0

    def follows_from_mistake(self, path: Path) -> bool:
        """Whether what is said of a field may only be so because something beside it could not be read."""
        for mistake in self.mistakes:
            beside = mistake.path[:-1] or mistake.path
            if tuple(path[: len(beside)]) == beside:
                return True
        return False


def read_leniently(text: str) -> Reading:
    """Reads as much of a configuration as there is."""
    templates = unfilled_templates(text)
    readable = with_words(text, templates)
    try:
        source: Source | None = Source(readable)
    except UnreadableText:
        source = None
    reading = Reading(ModelConfig(), source)
    rest = source
    for one in templates:
        found = source.at(one.line, one.column) if source is not None else None
        path = (*found[1], found[0].name) if found is not None else ()
        reading.mistakes.append(Mistake(one.line, one.column, unfilled(one), path))
        if rest is not None and found is not None and not rest.text[one.start].isspace():
            rest = rest.without(found[0])
    while True:
        config = ModelConfig()
        try:
            text_format.Parse(readable if rest is None else rest.text, config)
        except text_format.ParseError as error:
            line, column = error.GetLine() or 0, error.GetColumn() or 0
            found = rest.at(line, column) if rest is not None else None
            reason = str(error).removeprefix(f"{line}:{column} : ")
            path = (*found[1], found[0].name) if found is not None else ()
            reading.mistakes.append(Mistake(line, column, _explained(reason), path))
            if rest is None or found is None:
                reading.complete = False
                return reading
            rest = rest.without(found[0])
        else:
            reading.config = config
            return reading


def _explained(reason: str) -> str:
    """Protobuf's words without the excerpt of the text, and with the name that may have been meant."""
    for pattern, kind in ((_NO_FIELD, "field"), (_NO_VALUE, "value")):
        match = pattern.search(reason)
        if match is not None:
            holder, name = match[1].rpartition(".")[2], match[2]
            close = difflib.get_close_matches(name, _names(match[1], kind), 1, 0.6)
            hint = f"; did you mean '{close[0]}'?" if close else ""
            return f"{holder} has no {kind} named '{name}'{hint}"
    return _EXCERPT.sub("", reason)


def _names(full_name: str, kind: str) -> list[str]:
    pool = model_config_pb2.DESCRIPTOR.pool
    if kind == "field":
        return [one.name for one in pool.FindMessageTypeByName(f"inference.{full_name}").fields]
    return [one.name for one in pool.FindEnumTypeByName(f"inference.{full_name}").values]
