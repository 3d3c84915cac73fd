"""Reading the JSON of a request to change the trace settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stubserve.api.trace_settings import NUMBERS, cleared, fixed_trace_file, levels, number
from stubserve.errors import ServeError, internal
from stubserve.http.json.values import UNSET, find, parse_json


def parse_trace_settings(body: bytes) -> dict[str, Any]:
    """The fields to change, for `Tracing.update`; None takes one back. Raises ServeError with upstream's texts."""
    document = parse_json(body)
    changes: dict[str, Any] = {}
    if find(document, "trace_file") is not UNSET:
        raise fixed_trace_file()
    value = find(document, "trace_level")
    if value is None:
        changes |= cleared("trace_level")
    elif value is not UNSET:
        if not isinstance(value, list):
            raise _wrong("array")
        if not all(isinstance(name, str) for name in value):
            raise _wrong("string")
        changes |= levels(value)
    for name in NUMBERS:
        value = find(document, name)
        if value is UNSET:
            continue
        if value is not None and not isinstance(value, str):
            raise _wrong("string")
        changes |= cleared(name) if value is None else number(name, value)
    return changes


def shown(settings: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The settings as JSON has them: the levels are a list, all else is a text."""
    return {name: list(values) if name == "trace_level" else values[0] for name, values in settings.items()}


def _wrong(kind: str) -> ServeError:
    return internal(f"attempt to access JSON non-{kind} as {kind}")
