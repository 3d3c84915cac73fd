"""Versions as clients write them."""

from __future__ import annotations

from stubserve.errors import invalid


def parse_version(text: str) -> int | None:
    """A version as clients write it; None for the empty text. Raises ServeError (INVALID_ARG)."""
    if not text:
        return None
    try:
        number = int(text)
    except ValueError:
        number = 2**63
    if number >= 2**63:
        raise invalid(
            f"failed to get model version from specified version string '{text}' (details: stol), "
            "version should be an integral value > 0"
        )
    if number < 0:
        raise invalid(f"invalid model version specified '{text}' , version should be an integral value > 0")
    return number
