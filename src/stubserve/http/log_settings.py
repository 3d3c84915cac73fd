"""Reading the JSON of a request to change the log settings."""

from __future__ import annotations

from typing import Any

from stubserve.api.management import fixed_log_file
from stubserve.errors import ServeError, internal, unavailable
from stubserve.http.json.values import UNSET, find, is_uint, parse_json
from stubserve.observability.logs import FORMATS

_UINT32_MAX = (1 << 32) - 1


def parse_log_settings(body: bytes) -> dict[str, Any]:
    """The settings to change, for `LogSettings.update`; null leaves one as it is.

    Raises ServeError with upstream's texts.
    """
    document = parse_json(body)
    changes: dict[str, Any] = {}
    if find(document, "log_file") not in (UNSET, None):
        raise fixed_log_file()
    for name in ("log_info", "log_warning", "log_error"):
        value = find(document, name)
        if value in (UNSET, None):
            continue
        if not isinstance(value, bool):
            raise _wrong("boolean")
        changes[name] = value
    value = find(document, "log_verbose_level")
    if value not in (UNSET, None):
        if not is_uint(value) or value > _UINT32_MAX:
            raise _wrong("unsigned-integer")
        changes["log_verbose_level"] = value
    value = find(document, "log_format")
    if value not in (UNSET, None):
        if not isinstance(value, str):
            raise _wrong("string")
        if value not in FORMATS:
            raise unavailable(f"invalid argument for --log_format, got: {value}")
        changes["log_format"] = value
    return changes


def _wrong(kind: str) -> ServeError:
    return internal(f"attempt to access JSON non-{kind} as {kind}")
