"""The parent's accounts of one stub's segment: outputs that are being read, inputs that the model still holds."""

# Compiled by mypyc.
from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from stubserve_stub.wire.arena import Arena
from stubserve_stub.wire.budget import Ledger
from stubserve_stub.wire.messages import Message, unpack, unpack_spilled
from stubserve_stub.wire.places import POOLS
from stubserve_stub.wire.ring import SPILLED

from stubserve.errors import internal
from stubserve.memory.blocks import Block, Span
from stubserve.memory.device_pools import DeviceSpan, StubPools

# Above this, the stub is told at once which blocks have been read, not with the next message.
_MOST_UNREPORTED_BYTES = 32 << 20


class SegmentPool:
    """Hands out segments of the arena. Segment 0 belongs to ingress; freed ones are used again, lowest first.

    `most_unreported` is how many bytes of a stub's outputs may have been read without the stub knowing it.
    """

    def __init__(self, arena: Arena, ledger: Ledger) -> None:
        self.arena = arena
        self.ledger = ledger
        self.most_unreported = min(_MOST_UNREPORTED_BYTES, ledger.limit // 16)
        self._next = 1
        self._free: list[int] = []
        self._pools = 0

    def take(self) -> int:
        if self._free:
            self._free.sort()
            return self._free.pop(0)
        self._next += 1
        return self._next - 1

    def take_pools(self, count: int) -> int:
        """The first of `count` numbers for pools of GPU memory. They are used again only after millions."""
        first = self._pools if self._pools + count <= POOLS else 0
        self._pools = first + count
        return first

    async def give_back(self, index: int) -> None:
        """Empties a segment that is no longer written or read: its pages return to the system.

        This runs in a thread, for they may be gigabytes. Until its end the pages count, and the segment stays taken.
        """
        segment = self.arena.segment(index)
        try:
            await asyncio.to_thread(segment.release_pages, segment.start, segment.span)
        finally:
            self.ledger.uncommit(index, self.ledger.committed_by(index))
            self._free.append(index)


class StubMemory:
    """The parts of a stub's segment that the parent still reads, and of the parent's that the model still reads.

    The stub frees an output when it is told to. `take_frees` collects these outputs for the next message;
    `on_many_frees` is called when there are too many to wait for one. When the stub is dead (`close`), its segment goes
    back to the pool as soon as the last output has been sent; `emptying` is the task for that.
    """

    def __init__(self, pool: SegmentPool) -> None:
        self._pool = pool
        self.index = pool.take()
        self._start = pool.arena.segment(self.index).start
        self._frees: list[int] = []
        self._unreported_bytes = 0
        self.on_many_frees: Callable[[], object] = lambda: None
        self._reading = 0
        self._reading_bytes = 0
        # By the stub's offset; one entry for each time that the stub holds it
        self._held: dict[int, list[Span]] = {}
        self._closed = False
        # None on servers without GPUs
        self.pools: StubPools | None = None
        self.emptying: asyncio.Task[None] | None = None

    def output(self, offset: int, nbytes: int) -> Block:
        """A block for an output in the stub's segment; its creator is its first holder. Raises ServeError."""
        if nbytes < 0 or not 0 <= offset - self._start <= self._pool.arena.span - nbytes:
            raise internal("a stub named memory outside of its segment as its own")
        self._reading += 1
        self._reading_bytes += nbytes
        return Block(offset, nbytes, self._pool.arena.view(offset, nbytes), self._read)

    def device_output(self, offset: int, nbytes: int) -> Span:
        """The span of an output in memory of a GPU, as `output`. Raises ServeError."""
        if self.pools is None:
            raise internal("a stub named memory of a GPU, and there is none")
        return self.pools.output(offset, nbytes)

    def send_chunks(self, span: DeviceSpan) -> None:
        """The stub is about to get a place in this span."""
        if self.pools is not None:
            self.pools.send_chunks(span)

    def message(self, data: memoryview, flags: int) -> Message:
        """The message of a ring's record: in the record or, if that was too small, in the stub's segment.

        Raises ServeError for a place outside of the segment; ValueError or any other exception for nonsense.
        """
        if not flags & SPILLED:
            message: Message = unpack(data)
            return message
        place = unpack_spilled(data)
        block = self.output(place.offset, place.nbytes)
        try:
            message = unpack(block.view)
        finally:
            block.drop()
        return message

    def take_frees(self) -> list[int]:
        """The outputs that have been read since the last call."""
        frees = self._frees
        if frees:
            self._frees = []
            self._unreported_bytes = 0
        return frees

    def keep_frees(self, frees: list[int]) -> None:
        """Puts back the result of `take_frees`, for a message that could not be sent."""
        self._frees[:0] = frees

    @property
    def unused_bytes(self) -> int:
        """About how much of its granted memory the stub could give back."""
        return self._pool.ledger.committed_by(self.index) - self._reading_bytes

    def returned(self, nbytes: int) -> None:
        """The stub gives granted memory back."""
        self._pool.ledger.uncommit(self.index, nbytes)

    def hold(self, offset: int, span: Span) -> None:
        """The model keeps an input beyond its batch, or gets an output of another model; both begin at `offset`."""
        self._held.setdefault(offset, []).append(span.hold())

    def held(self, offset: int) -> Span | None:
        """The span that the stub holds at `offset`."""
        spans = self._held.get(offset)
        return spans[-1] if spans else None

    def release(self, offsets: Iterable[int]) -> None:
        """The stub's last views of these inputs and outputs are gone."""
        for offset in offsets:
            spans = self._held.get(offset)
            if spans:
                spans.pop().drop()
                if not spans:
                    del self._held[offset]

    def close(self) -> None:
        """The stub is gone: it holds nothing, and no longer writes the segment."""
        for spans in self._held.values():
            for span in spans:
                span.drop()
        self._held.clear()
        self._closed = True
        self._give_back_if_done()

    def _read(self, block: Block) -> None:
        self._reading -= 1
        self._reading_bytes -= block.nbytes
        self.free_later(block.offset, block.nbytes)
        if self._closed:
            self._give_back_if_done()

    def free_later(self, offset: int, nbytes: int) -> None:
        """The stub is to free this output: with the next message, or at once where there are many."""
        self._frees.append(offset)
        before = self._unreported_bytes
        self._unreported_bytes = before + nbytes
        if before <= self._pool.most_unreported < self._unreported_bytes and not self._closed:
            self.on_many_frees()

    def _give_back_if_done(self) -> None:
        if self._reading == 0:
            self.emptying = asyncio.get_running_loop().create_task(self._pool.give_back(self.index))
