"""The operator's limit for one `execute` of a model, after which its stub is taken for hung; off by default."""

from __future__ import annotations

import math
from typing import Any

from stubserve.errors import invalid

PARAMETER = "EXECUTE_TIMEOUT_SECS"


def execute_timeout(config: Any, default_s: float) -> float:
    """Seconds, 0 for no limit: the model's parameter, else `default_s`. Raises ServeError INVALID_ARG."""
    if PARAMETER not in config.parameters:
        return default_s
    text = config.parameters[PARAMETER].string_value
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not (math.isfinite(seconds) and seconds >= 0):
        raise invalid(
            f"parameter '{PARAMETER}' of model '{config.name}' must be a number of seconds, or 0 for no limit. "
            f"Got '{text}'"
        ).at("parameters", PARAMETER)
    return seconds
