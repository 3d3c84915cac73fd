"""`InferenceTrace`: what a model sees of the trace of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from stubserve_stub.wire.messages import WireTrace


class InferenceTrace:
    """The trace of a request, to be handed on to requests that a model makes."""

    __slots__ = ("__weakref__", "_wire")

    # (the server's number for it, its context); None where the request is not traced
    _wire: WireTrace

    def __init__(self) -> None:
        self._wire = None

    @staticmethod
    def _of(wire: WireTrace) -> InferenceTrace:
        """The trace of a request out of a message."""
        if wire is None:
            return NO_TRACE
        self = object.__new__(InferenceTrace)
        self._wire = wire
        return self

    def get_context(self) -> Optional[str]:
        """The context for other programs: JSON text with a `traceparent`; None without OpenTelemetry."""
        return None if self._wire is None else self._wire[1]


NO_TRACE = InferenceTrace()
