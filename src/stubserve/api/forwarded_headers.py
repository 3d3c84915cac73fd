"""Which of a client's headers (gRPC: metadata) become parameters of its request."""

from __future__ import annotations

from collections.abc import Iterable

from stubserve.api.re2 import compile_re2
from stubserve.errors import invalid

_RESERVED = frozenset(
    ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output")
)


class HeaderForwarding:
    """Forwards the headers whose names the pattern (RE2's syntax) matches anywhere."""

    def __init__(self, pattern: str) -> None:
        self._search = compile_re2(pattern).search

    def parameters(self, headers: Iterable[tuple[str, str | bytes]]) -> dict[str, str]:
        """The parameters that these headers make. Raises ServeError for names that mean something to the server."""
        forwarded: dict[str, str] = {}
        for name, value in headers:
            if not self._search(name):
                continue
            lower = name.lower()
            if lower in _RESERVED or lower.startswith("triton_"):
                raise invalid(f"Header '{lower}' is reserved for Triton usage and cannot be forwarded.")
            forwarded[name] = value if isinstance(value, str) else value.decode("utf-8", "replace")
        return forwarded
