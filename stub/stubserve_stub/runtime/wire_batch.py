"""A batch as it reaches a backend: the requests of one EXECUTE message, before anything is made of them."""

from __future__ import annotations

import time
from typing import Optional, Sequence

from stubserve_stub.runtime.batch_memory import BatchMemory
from stubserve_stub.runtime.region_batch import RegionBatch
from stubserve_stub.wire.messages import WireRequest


class WireBatch:
    """The requests of one batch (None for each slot that is empty), and its memory.

    `sequences` are the numbers of the sequences whose states go with them, empty for models without implicit state.
    `cancelled` are the indices of those that nobody waits for any more; it may be replaced at any time, from another
    thread. `regions` is None for a batch that does not refer to shared memory of clients; in one that does, an input
    there is an array in place of its place.
    """

    __slots__ = ("cancelled", "computed_ns", "memory", "number", "regions", "requests", "sequences")

    def __init__(
        self,
        number: int,
        requests: Sequence[Optional[WireRequest]],
        memory: BatchMemory,
        sequences: Sequence[int] = (),
        regions: Optional[RegionBatch] = None,
    ) -> None:
        self.sequences = sequences
        self.number = number
        self.requests = requests
        self.memory = memory
        self.regions = regions
        self.cancelled: Sequence[int] = ()
        # CLOCK_MONOTONIC, 0 until then
        self.computed_ns = 0

    def computed(self) -> None:
        """The model is done; what follows is the encoding of its answers, which the statistics count apart."""
        self.computed_ns = time.monotonic_ns()
