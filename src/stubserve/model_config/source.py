"""The text of a `config.pbtxt` as written: finds the place of each field, and changes one without the rest.

Protobuf's parser gives the values and forgets the text. So the text is read a second time, into fields with their
places: for the line of an error, and to set a parameter in a file that a person wrote. Comments and layout stay. This
reads the language of text protobuf without extensions. It does not know the message, so it also reads unknown fields
and values of the wrong type.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""(?P<skip>[\s]+|\#[^\n]*)|(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    r"""|(?P<word>[\w.+-]+)|(?P<mark>[{}<>\[\]:,;])"""
)
_CLOSING = {"{": "}", "<": ">"}

FieldPath = Sequence[str | int]


class UnreadableText(Exception):
    """The text is not text protobuf: brackets or quotes do not match."""


@dataclass(frozen=True)
class Value:
    """One value of a field: a literal, or a message with fields of its own. `start` and `end` are offsets."""

    start: int
    end: int
    fields: tuple[Field, ...] | None = None


@dataclass(frozen=True)
class Field:
    """`name: value`, or `name [ values ]`; `end` is behind a following comma or semicolon."""

    name: str
    start: int
    end: int
    values: tuple[Value, ...] = ()


@dataclass
class Source:
    """The fields of a text. Raises UnreadableText when made."""

    text: str
    fields: tuple[Field, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.fields = _Reader(self.text).read()

    def line_of(self, path: FieldPath) -> int:
        """The line (from 1) of a field, else of the nearest enclosing field in the text; 0 if there is none.

        After the name of a repeated message comes an index, after that of a map a key.
        """
        fields, start = self.fields, -1
        for name, index in _steps(path):
            values = [(one, value) for one in fields if one.name == name for value in one.values]
            if not values:
                break
            owner, chosen = values[0] if index is None else (None, None)
            if isinstance(index, int):
                owner, chosen = values[min(index, len(values) - 1)]
            elif index is not None:
                owner, chosen = next((pair for pair in values if self._key(pair[1]) == index), values[0])
            assert owner is not None
            assert chosen is not None
            # `input [ {` starts the field, but the second of its messages starts further down.
            start = owner.start if chosen is owner.values[0] else chosen.start
            fields = chosen.fields or ()
        return self.text.count("\n", 0, start) + 1 if start >= 0 else 0

    def field_at(self, line: int, column: int) -> tuple[Field, tuple[str | int, ...]] | None:
        """The innermost field at a place (both from 1), and the path of the message that it is in."""
        offset = sum(len(text) for text in self.text.splitlines(keepends=True)[: line - 1]) + column - 1
        path: tuple[str | int, ...] = ()
        found = None
        counts: dict[str, int] = {}
        pending = list(self.fields)
        while pending:
            one = pending.pop(0)
            if one.start <= offset < one.end:
                found = (one, path)
                for index, value in enumerate(one.values):
                    if value.fields and value.start <= offset < value.end:
                        path = (*path, one.name, counts.get(one.name, 0) + index)
                        pending, counts = list(value.fields), {}
                        break
                else:
                    break
            else:
                counts[one.name] = counts.get(one.name, 0) + len(one.values)
        return found

    def without_field(self, unwanted: Field) -> Source:
        """The same text with a field blanked out; all other places stay."""
        blank = re.sub(r"[^\n]", " ", self.text[unwanted.start : unwanted.end])
        return Source(self.text[: unwanted.start] + blank + self.text[unwanted.end :])

    def with_string_parameter(self, key: str, value: str) -> str:
        """The text with `parameters { key ... value { string_value ... } }` set; everything else stays as it is."""
        quoted = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        entries = [entry for one in self.fields if one.name == "parameters" for entry in one.values]
        for entry in entries:
            if self._key(entry) == key:
                return self._replaced(entry, key, quoted)
        text = self.text + ("" if self.text.endswith("\n") or not self.text else "\n")
        return text + f'parameters {{\n  key: "{key}"\n  value {{ string_value: {quoted} }}\n}}\n'

    def _replaced(self, entry: Value, key: str, quoted: str) -> str:
        for outer in entry.fields or ():
            for inner in (found for value in outer.values for found in value.fields or ()):
                if outer.name == "value" and inner.name == "string_value" and inner.values:
                    return self.text[: inner.values[0].start] + quoted + self.text[inner.values[0].end :]
        body = f'key: "{key}" value {{ string_value: {quoted} }}'
        return self.text[: entry.start] + f"{{ {body} }}" + self.text[entry.end :]

    def _key(self, entry: Value) -> str | None:
        for one in entry.fields or ():
            if one.name == "key" and one.values:
                literal = self.text[one.values[0].start : one.values[0].end]
                try:
                    return str(ast.literal_eval(literal))
                except (ValueError, SyntaxError):
                    return literal
        return None


def _steps(path: FieldPath) -> Iterator[tuple[str, str | int | None]]:
    """Names with their index or key. A name behind a name is a field of that message, except for maps."""
    parts = list(path)
    while parts:
        name = str(parts.pop(0))
        index = parts.pop(0) if parts and (isinstance(parts[0], int) or name == "parameters") else None
        yield name, index


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str, int]] = []
        offset = 0
        while offset < len(text):
            match = _TOKEN.match(text, offset)
            if match is None:
                raise UnreadableText
            if match.lastgroup != "skip":
                self._tokens.append((str(match.lastgroup), match[0], offset))
            offset = match.end()
        self._tokens.append(("end", "", offset))
        self._next = 0

    def read(self) -> tuple[Field, ...]:
        try:
            return self._fields("")
        except RecursionError:
            raise UnreadableText from None

    def _peek(self) -> str:
        return self._tokens[self._next][1]

    def _take(self, expected: str | None = None) -> tuple[str, str, int]:
        token = self._tokens[self._next]
        if expected is not None and token[1] != expected:
            raise UnreadableText
        if token[0] == "end":
            raise UnreadableText
        self._next += 1
        return token

    def _end(self) -> int:
        _, text, start = self._tokens[self._next - 1]
        return start + len(text)

    def _fields(self, closing: str) -> tuple[Field, ...]:
        found = []
        while self._tokens[self._next][0] != "end" and self._peek() != closing:
            kind, name, start = self._take()
            if kind != "word":
                raise UnreadableText
            values = self._values()
            if self._peek() in (",", ";"):
                self._take()
            found.append(Field(name, start, self._end(), values))
        return tuple(found)

    def _values(self) -> tuple[Value, ...]:
        if self._peek() == ":":
            self._take()
        if self._peek() != "[":
            return (self._value(),)
        self._take()
        values = []
        while self._peek() != "]":
            values.append(self._value())
            if self._peek() == ",":
                self._take()
        self._take()
        return tuple(values)

    def _value(self) -> Value:
        kind, text, start = self._take()
        if text in _CLOSING:
            fields = self._fields(_CLOSING[text])
            self._take(_CLOSING[text])
            return Value(start, self._end(), fields)
        if kind == "string":
            while self._tokens[self._next][0] == "string":  # adjacent strings are one
                self._take()
        elif kind != "word":
            raise UnreadableText
        elif text == "-":
            self._take()
        return Value(start, self._end())
