"""A batch as it reaches a backend: the requests of one EXECUTE message, before anything is made of them."""

from __future__ import annotations

import time
from typing import Optional, Sequence

from stubserve_stub.runtime.batch_memory import BatchMemory
from stubserve_stub.wire.messages import WireRequest


class WireBatch:
    """The requests of one batch (None for each slot that is empty), and its memory.

    `cancelled` are the indices of those that nobody waits for any more; it may be replaced at any time, from another
    thread.
    """

    __slots__ = ("cancelled", "computed_ns", "memory", "number", "requests")

    def __init__(self, number: int, requests: Sequence[Optional[WireRequest]], memory: BatchMemory) -> None:
        self.number = number
        self.requests = requests
        self.memory = memory
        self.cancelled: Sequence[int] = ()
        # CLOCK_MONOTONIC, 0 until then
        self.computed_ns = 0

    def computed(self) -> None:
        """The model is done; what follows is the encoding of its answers, which the statistics count apart."""
        self.computed_ns = time.monotonic_ns()
