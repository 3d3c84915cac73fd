"""Batches on their way to a stub: into its ring, or where that is crowded into the arena, and word of them.

Writing a batch and telling of it are two things, because the doorbell is a system call, and one tells of all batches
that are handed out together. Whoever hands a batch out hears whether the stub has got it: there is room for all that
may be in flight, so a ring without room is one that the stub, or its model, has written over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from stubserve_stub.wire import layout, messages
from stubserve_stub.wire.places import InArena
from stubserve_stub.wire.ring import MAX_RECORD, SPILLED, RingBroken, RingWriter

from stubserve.errors import internal
from stubserve.inference.request import Request
from stubserve.memory.blocks import Block
from stubserve.memory.regions import RegionSpan
from stubserve.memory.server_memory import Memory

# Many batches may be in flight (`schedulers.depth`). The ring has room for two records of any size, and beside them for
# as many of up to this size as there can be; what is longer goes through the arena.
_CROWDED = 2
_CROWDED_RECORD = 4 << 10

# From this size on, moving a request's bytes takes longer than a stub would look for the next one. Those in a client's
# shared memory are not moved.
_LARGE_BYTES = 128 << 10


class RequestRing:
    """The request ring of one stub. `words` are the parent's in its segment, `memory` the server's memory, `stub` its
    name for errors.

    `on_broken` is called when the stub has written over its side of the ring: nothing can be sent to it any more.
    """

    def __init__(
        self, stub: str, ring: RingWriter, words: memoryview, memory: Memory, on_broken: Callable[[], None]
    ) -> None:
        self._stub = stub
        self._ring = ring
        self._words = words
        self._memory = memory
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        # How many records the stub has been told of, and whether it will be told of more in this turn
        self._announced = 0
        self._announcement_is_due = False
        self._closed = False

    def put(self, message: bytes, requests: Sequence[Request], in_flight: int) -> Block | None:
        """Writes the message of a batch, beside so many that the stub has.

        Returns the block that it lies in where that is not the ring. Where it raises ServeError, which it does (503)
        when there is no memory for the message, the stub has not got the batch.
        """
        # Whether the stub may look for the next one (`stubserve_stub.runtime.patience`)
        alone = len(requests) == 1 and self._memory.stubs_at_work == 0 and not _is_large(requests[0])
        self._words[layout.ALONE] = alone
        if len(message) <= (MAX_RECORD if in_flight < _CROWDED else _CROWDED_RECORD):
            self._write(message, 0)
            return None
        spilled = self._memory.store(message)
        try:
            self._write(messages.pack_spilled(InArena(spilled.offset, spilled.nbytes)), SPILLED)
        except BaseException:
            spilled.drop()
            raise
        return spilled

    def stop(self) -> None:
        """Tells the stub that there is no further batch."""
        self._write(messages.pack_stop(), 0)
        self.announce()

    def announce(self) -> None:
        """Tells the stub of what has been written."""
        self._announcement_is_due = False
        count = 0 if self._closed else self._ring.announce()
        if count:
            self._announced += count
            self._words[layout.ANNOUNCED] = self._announced

    def announce_to(self, in_flight: int) -> None:
        """Tells a stub that has so many batches: at once if it has nothing else to execute.

        Otherwise with what else this turn of the event loop brings.
        """
        if self._ring.unannounced == in_flight:
            self.announce()
        elif not self._announcement_is_due:
            self._announcement_is_due = True
            self._loop.call_soon(self.announce)

    def close(self) -> None:
        """The stub is to be told of nothing any more."""
        self._closed = True

    def _write(self, data: bytes, flags: int) -> None:
        try:
            has_room = self._ring.put(data, flags)
        except RingBroken:
            has_room = False
        if not has_room:
            self._on_broken()
            raise internal(f"the request ring of stub '{self._stub}' cannot be written to")


def _is_large(request: Request) -> bool:
    return any(tensor.nbytes >= _LARGE_BYTES and not isinstance(tensor.span, RegionSpan) for tensor in request.inputs)
