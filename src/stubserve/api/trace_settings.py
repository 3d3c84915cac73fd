"""A request to change the trace settings: upstream's names, limits and texts, for every protocol."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from stubserve.errors import ServeError, invalid, unsupported

OFF = "OFF"
_LEVELS = ("TIMESTAMPS", "TENSORS")
_UINT32_MAX = (1 << 32) - 1
_INT32_MAX = (1 << 31) - 1
# As C reads numbers: what is behind the digits does not count
_NUMBER = re.compile(r"\s*([+-]?[0-9]+)")

# Name -> field of TraceRules, least and most
_NUMBERS = {
    "trace_rate": ("rate", 0, _UINT32_MAX),
    "trace_count": ("count", -1, _INT32_MAX),
    "log_frequency": ("log_frequency", 0, _UINT32_MAX),
}
NUMBERS = tuple(_NUMBERS)


def fixed_trace_file() -> ServeError:
    return unsupported("trace file location can not be updated through network protocol")


def levels(names: Sequence[str]) -> dict[str, Any]:
    """The change that these levels ask for; names that are none are passed over. Raises ServeError."""
    if OFF in names:
        if len(names) > 1:
            raise invalid("Expect only one trace level 'OFF' is specified")
        return {"levels": ()}
    wanted = tuple(level for level in _LEVELS if level in names)
    return {"levels": wanted} if wanted else {}


def number(name: str, text: str, space: str = "") -> dict[str, Any]:
    """The change that this number asks for, a text as the protocols have it. Raises ServeError."""
    field, least, most = _NUMBERS[name]
    match = _NUMBER.match(text)
    if match is None or len(match[1]) > 20:
        if match is None:
            raise invalid(f"Unable to parse '{name}', got: {text}")
        raise invalid(f"Unable to parse '{name}', value is out of range [ {least}, {most} ], got: {text}")
    value = int(match[1])
    if name == "trace_count" and value < least:
        raise invalid(f"Unable to parse '{name}'. Expecting value >= -1, got:{space}{text}")
    if not least <= value <= most:
        raise invalid(f"Unable to parse '{name}', value is out of range [ {least}, {most} ], got: {text}")
    return {field: value}


def cleared(name: str) -> dict[str, Any]:
    """The change that takes a setting back."""
    return {"levels" if name == "trace_level" else _NUMBERS[name][0]: None}
