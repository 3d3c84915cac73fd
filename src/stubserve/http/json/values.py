"""Reads JSON values the way upstream does: by kind, with upstream's error where the kind is wrong.

`UNSET` stands for a missing member. JSON's null is a value like any other.
"""

# Compiled by mypyc.
from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any, Final

import orjson

from stubserve.errors import Code, ServeError, invalid, malformed

UNSET: Final = object()

NESTING_TEXT = "JSON nesting depth exceeds maximum allowed limit (100)"

# A longer text that orjson does not read alone takes a millisecond and more for each of these lengths.
ODD_BYTES = 4 * 1024

# The beginning of every escaped colon
ESCAPED_COLON = b"\\u003"

_UINT64_MAX = (1 << 64) - 1
_INT64_MAX = (1 << 63) - 1


class OddJson(ServeError):
    """A text is not plain JSON, or has a name twice, and is too long to be read beside other work."""

    def __init__(self, nbytes: int, most: float) -> None:
        super().__init__(
            Code.INVALID_ARG,
            f"request JSON of {nbytes} bytes is not plain JSON, or has a name twice in one object; here such JSON may "
            f"have {most:g} bytes",
        )


def parse_json(text: bytes, most: float = math.inf) -> Any:
    """A JSON document; of equal names in one object the first counts, as in upstream.

    Raises ServeError; OddJson for a text that orjson does not read alone and that is longer than `most` bytes.
    """
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        _check_odd(text, most)
        from stubserve.http.json import rapidjson_errors  # not at the top: most servers never read such JSON

        return rapidjson_errors.parse(text)
    try:
        # If a name occurs twice, orjson silently keeps the last. But both colons are there to be counted.
        members = _members(document)
        colons = text.count(b":")
        if members == colons or (ESCAPED_COLON not in text and members == colons - _colons_in_strings(document)):
            return document
        _check_odd(text, most)
        return json.loads(text, object_pairs_hook=_first_of_each)
    except RecursionError:
        raise invalid(NESTING_TEXT) from None


def _check_odd(text: bytes, most: float) -> None:
    if len(text) > most:
        raise OddJson(len(text), most)


def _members(value: Any) -> int:
    """How many names the objects of a document have; tensors' data is not searched."""
    count = 0
    if type(value) is dict:
        count = len(value)
        for member in value.values():
            if type(member) is dict or (type(member) is list and member and type(member[0]) is dict):
                count += _members(member)
    elif type(value) is list:
        for element in value:
            if type(element) is dict:
                count += _members(element)
    return count


def _colons_in_strings(value: Any) -> int:
    """How many colons the strings of a document have, names included."""
    if type(value) is str:
        return value.count(":")
    count = 0
    if type(value) is dict:
        for name, member in value.items():
            count += name.count(":") + _colons_in_strings(member)
    elif type(value) is list:
        for element in value:
            if type(element) is not float and type(element) is not int:
                count += _colons_in_strings(element)
    return count


class WithRepeated(dict[str, Any]):
    """An object in which names occur more than once, the `repeated` names. The first of each counts."""

    __slots__ = ("repeated",)

    repeated: frozenset[str]


def _first_of_each(members: list[tuple[str, Any]]) -> dict[str, Any]:
    first = dict(reversed(members))
    if len(first) == len(members):
        return first
    found = WithRepeated(first)
    counts = Counter(name for name, _ in members)
    found.repeated = frozenset(name for name, count in counts.items() if count > 1)
    return found


def repeated_names(value: Any) -> frozenset[str]:
    """The names that occur more than once in an object."""
    return value.repeated if isinstance(value, WithRepeated) else frozenset()


def find(value: Any, name: str) -> Any:
    """A member, or UNSET; a value that is not an object has no members."""
    return value.get(name, UNSET) if isinstance(value, dict) else UNSET


def as_string(value: Any, what: str) -> str:
    if isinstance(value, str):
        return value
    raise wrong(value, what, "string", "string")


def as_bool(value: Any, what: str) -> bool:
    if isinstance(value, bool):
        return value
    raise wrong(value, what, "boolean", "boolean")


def as_array(value: Any, what: str) -> list[Any]:
    if isinstance(value, list):
        return value
    raise wrong(value, what, "array", "array")


def as_uint(value: Any, what: str, verb: str = "parse") -> int:
    if is_uint(value):
        return int(value)
    raise wrong(value, what, "unsigned-integer", "unsigned-integer", verb)


def is_uint(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _UINT64_MAX


def is_int(value: Any) -> bool:
    return type(value) is int and -_INT64_MAX - 1 <= value <= _INT64_MAX


def wrong(value: Any, what: str, kind: str, access: str, verb: str = "parse") -> ServeError:
    """The error for a member named `what` that is missing or is not of this `kind`."""
    if value is UNSET:
        return malformed(f"Unable to {verb} '{what}': attempt to access non-existing object member '{what}'")
    return malformed(f"Unable to {verb} '{what}': attempt to access JSON non-{kind} as {access}")
