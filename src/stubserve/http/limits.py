"""The limit on what a request may make the server hold at once, and the texts about it."""

from __future__ import annotations

from stubserve.errors import ServeError, invalid

DEFAULT_MAX_INPUT_SIZE = 64 << 20

LIMIT_HINT = "Use --http-max-input-size to increase the limit."


def too_large(what: str, nbytes: int, max_input_size: int) -> ServeError:
    return invalid(
        f"{what} has a byte_size ({nbytes} bytes) that exceeds the maximum allowed value of {max_input_size} bytes. "
        f"{LIMIT_HINT}"
    )
