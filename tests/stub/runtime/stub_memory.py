"""An arena with a real channel of a stub on it, and a parent's segment beside the stub's."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from stubserve_stub.runtime.channel import Channel
from stubserve_stub.wire import layout, messages
from stubserve_stub.wire.allocator import Allocator
from stubserve_stub.wire.arena import Arena
from stubserve_stub.wire.budget import ArenaFull, Grant, Ledger
from stubserve_stub.wire.places import InArena
from stubserve_stub.wire.ring import RingReader, read_doorbell
from stubserve_stub.wire.stub_arena import StubArena

PARENT, STUB = 0, 1


class StubMemory:
    """`channel` is the stub's; `give` is what the parent does."""

    def __init__(self, arena: Arena, channel: Channel, doorbell: int) -> None:
        self.arena = arena
        self.channel = channel
        self._doorbell = doorbell
        self._parent = Allocator(arena, PARENT, 1 << 20)
        segment = arena.segment(STUB)
        self._ring = RingReader(segment.ring(layout.RESPONSE_RING), segment.parent_words, layout.RESPONSES_READ)

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
                    self.channel.memory.place(bytes(nbytes))

    def sent(self) -> list[Any]:
        """The messages that the stub has sent; waits for one."""
        count, _ = read_doorbell(self._doorbell)
        return self._ring.take(count, lambda data, _: messages.unpack(data))


def forget_held(channel: Channel) -> None:
    """Memory that is collected later, in another test, tells nobody: a doorbell's number may be another file's then."""
    channel._held.clear()


@contextlib.contextmanager
def stub_memory(limit: int = 1 << 20) -> Iterator[StubMemory]:
    with contextlib.ExitStack() as stack:
        doorbells = [os.eventfd(0) for _ in range(3)]
        for doorbell in doorbells:
            stack.callback(os.close, doorbell)
        arena = Arena.create(Ledger(limit))
        stack.callback(os.close, arena.fd)
        arena.segment(STUB)
        stub_arena = StubArena(arena.fd, arena.facts(), STUB, Grant(limit // 2))
        channel = Channel(stub_arena, *doorbells)
        stack.callback(forget_held, channel)
        yield StubMemory(arena, channel, doorbells[1])
