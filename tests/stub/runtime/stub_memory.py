"""An arena with a real channel of a stub on it, and a parent's segment beside the stub's."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from stubserve_stub.runtime.channel import Channel
from stubserve_stub.wire import layout, messages
from stubserve_stub.wire.allocator import Allocator
from stubserve_stub.wire.arena import Arena, ArenaFull
from stubserve_stub.wire.places import InArena
from stubserve_stub.wire.ring import RingReader, read_doorbell

PARENT, STUB = 0, 1


class StubMemory:
    """`channel` is the stub's; `give` is what the parent does."""

    def __init__(self, arena: Arena, channel: Channel, doorbell: int) -> None:
        self.arena = arena
        self.channel = channel
        self._doorbell = doorbell
        self._parent = Allocator(arena, PARENT, 1 << 20)
        ring = arena.segment(STUB).view[layout.RESPONSE_RING : layout.RESPONSE_RING + layout.RING_BYTES]
        self._ring = RingReader(ring)

    def give(self, data: bytes) -> InArena:
        """Puts an input into the parent's segment."""
        offset = self._parent.allocate(len(data))
        self.arena.view(offset, len(data))[:] = data
        return InArena(offset, len(data))

    def read(self, place: Any) -> bytes:
        return bytes(self.arena.view(place.offset, place.nbytes))

    def fill(self) -> None:
        """Leaves the stub no room for more than a few bytes."""
        for nbytes in (100_000, 5000):
            with contextlib.suppress(ArenaFull):
                while True:
                    self.channel.place(bytes(nbytes))

    def sent(self) -> list[Any]:
        """The messages that the stub has sent; waits for one."""
        count, _ = read_doorbell(self._doorbell)
        return self._ring.take(count, lambda data, _: messages.unpack(data))


@contextlib.contextmanager
def stub_memory(limit: int = 1 << 20) -> Iterator[StubMemory]:
    with contextlib.ExitStack() as stack:
        doorbells = [os.eventfd(0) for _ in range(3)]
        for doorbell in doorbells:
            stack.callback(os.close, doorbell)
        arena = Arena.create(limit)
        stack.callback(os.close, arena.fd)
        yield StubMemory(arena, Channel(arena, STUB, *doorbells), doorbells[1])
