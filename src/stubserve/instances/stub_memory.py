"""The parent's accounts of one stub's segment: outputs that are being read, inputs that the model still holds."""

from __future__ import annotations

from collections.abc import Iterable

from stubserve_stub.wire.arena import Arena

from stubserve.inference.memory import Block


class SegmentPool:
    """Hands out segments of the arena. Segment 0 belongs to ingress; freed ones are used again, lowest first."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self._next = 1
        self._free: list[int] = []

    def take(self) -> int:
        if self._free:
            self._free.sort()
            return self._free.pop(0)
        self._next += 1
        return self._next - 1

    def give_back(self, index: int) -> None:
        """Empties a segment that nobody writes or reads any more."""
        self.arena.forget(index)
        self._free.append(index)


class StubMemory:
    """What the parent still reads in a stub's segment, and what the stub's model still reads in the parent's.

    The stub frees an output when it is told to: `take_frees` collects what to tell it, and rides on the next message.
    When the stub is dead (`close`), its segment goes back to the pool as soon as the last output has been sent.
    """

    def __init__(self, pool: SegmentPool) -> None:
        self._pool = pool
        self.index = pool.take()
        self._start = pool.arena.segment(self.index).start
        self._frees: list[int] = []
        self.unreported_bytes = 0
        self._reading = 0
        self._held: dict[int, Block] = {}
        self._closed = False

    def owns(self, offset: int) -> bool:
        """Whether an arena offset lies in the stub's segment."""
        return 0 <= offset - self._start < self._pool.arena.span

    def output(self, offset: int, nbytes: int) -> Block:
        """A block for an output in the stub's segment; its creator is its first holder."""
        self._reading += 1
        return Block(offset, nbytes, self._pool.arena.view(offset, nbytes), self._read)

    def take_frees(self) -> list[int]:
        """The outputs that have been read since the last call."""
        frees = self._frees
        if frees:
            self._frees = []
            self.unreported_bytes = 0
        return frees

    def keep_frees(self, frees: list[int]) -> None:
        """Puts back what `take_frees` gave for a message that could not be sent."""
        self._frees[:0] = frees

    def hold_input(self, offset: int, block: Block) -> None:
        """The model keeps the input at `offset` beyond its batch."""
        if offset not in self._held:
            self._held[offset] = block.hold()

    def release_inputs(self, offsets: Iterable[int]) -> None:
        """The last views of these inputs are gone."""
        for offset in offsets:
            block = self._held.pop(offset, None)
            if block is not None:
                block.drop()

    def close(self) -> None:
        """The stub is gone: nothing holds its inputs any more, nobody writes the segment."""
        self.release_inputs(list(self._held))
        self._closed = True
        self._give_back_if_done()

    def _read(self, block: Block) -> None:
        self._reading -= 1
        self._frees.append(block.offset)
        self.unreported_bytes += block.nbytes
        if self._closed:
            self._give_back_if_done()

    def _give_back_if_done(self) -> None:
        if self._reading == 0:
            self._pool.give_back(self.index)
