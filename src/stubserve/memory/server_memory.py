"""The server's shared memory as one object: the arena, the memory of ingress, and the segments for stubs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from stubserve_stub.wire import layout
from stubserve_stub.wire.allocator import Allocator
from stubserve_stub.wire.arena import Arena
from stubserve_stub.wire.budget import ArenaFull, Ledger

from stubserve.errors import overloaded, unavailable
from stubserve.memory.blocks import Block
from stubserve.memory.heap_account import HeapAccount
from stubserve.memory.reclaim import Reclaim
from stubserve.memory.stub_memory import SegmentPool

T = TypeVar("T")


class Memory:
    """The server's shared memory: arena, ledger, heap account, ingress's allocator, and the segments for stubs.

    `stubs_at_work` counts the stubs that have a batch. If ingress finds no room, stubs are asked for memory that they
    do not use (`reclaim`). Then `make_room` takes memory from a slow client, again and again, until there is room or
    until it returns False.
    """

    def __init__(self, limit: int) -> None:
        self.ledger = Ledger(limit)
        self.arena = Arena.create(self.ledger)
        self.ingress = Allocator(self.arena, 0, retain=min(128 << 20, limit // 8), skip=layout.GUARD_BYTES)
        self.heap = HeapAccount(self)
        self.make_room: Callable[[], bool] = lambda: False
        self.segments = SegmentPool(self.arena, self.ledger)
        self.reclaim = Reclaim(self.ledger)
        self.stubs_at_work = 0

    def block(self, nbytes: int) -> Block:
        """A block of ingress memory. Raises ServeError (503) that names the limit and the holders of the memory."""
        offset = self._with_room(self.ingress.allocate, nbytes)
        return Block(offset, nbytes, self.arena.view(offset, nbytes), self._free)

    def reserve(self, nbytes: int, first: int) -> tuple[Block, int]:
        """A block with at least its `first` bytes committed, and how many bytes are. The rest is only address space.

        `grow` commits more of it. Raises ServeError (503).
        """
        offset = self._with_room(self.ingress.reserve, nbytes)
        block = Block(offset, nbytes, self.arena.view(offset, nbytes), self._free)
        committed = self.ingress.committed(offset)
        if committed < first:
            try:
                committed = self.grow(block, first)
            except BaseException:
                block.drop()
                raise
        return block, committed

    def grow(self, block: Block, nbytes: int) -> int:
        """Commits the first `nbytes` of a reserved block. Returns how many may be used. Raises ServeError (503)."""
        return self._with_room(lambda wanted: self.ingress.grow(block.offset, wanted), nbytes)

    def shrink(self, block: Block, nbytes: int) -> None:
        """Turns a reserved block into one of `nbytes`. Raises ServeError (503)."""
        self._with_room(lambda wanted: self.ingress.shrink(block.offset, wanted), nbytes)

    def commit(self, nbytes: int) -> None:
        """Counts bytes outside of the arena. Raises ServeError (503)."""
        self._with_room(self.ingress.commit, nbytes)

    def uncommit(self, nbytes: int) -> None:
        self.ingress.uncommit(nbytes)

    def store(self, data: bytes | memoryview) -> Block:
        """A block with a copy of `data`."""
        block = self.block(len(data))
        block.view[:] = data
        return block

    def spare(self, nbytes: int) -> Block | None:
        """A block of free memory; None if that would need memory from another holder."""
        try:
            offset = self.ingress.allocate(nbytes)
        except ArenaFull:
            return None
        return Block(offset, nbytes, self.arena.view(offset, nbytes), self._free)

    @property
    def limit(self) -> int:
        """How many bytes may be committed."""
        return self.arena.limit

    def held(self) -> dict[str, int]:
        """Committed bytes by holder: tensors of requests, texts and bodies in the heap, outputs of stubs."""
        committed = self.ledger.committed()
        ingress = committed.pop(0, 0)
        return {"requests": ingress - self.heap.taken, "heap": self.heap.taken, "stubs": sum(committed.values())}

    def usage(self) -> str:
        """The holders of shared memory, as text for people."""
        committed = self.ledger.committed()
        ingress = committed.pop(0, 0) - self.heap.taken
        stubs = ", ".join(f"segment {index}: {nbytes} bytes" for index, nbytes in sorted(committed.items()))
        return (
            f"Requests hold {ingress} bytes of tensors and {self.heap.taken} bytes of texts and bodies; "
            f"outputs of stubs: {stubs or 'none'}"
        )

    def _with_room(self, act: Callable[[int], T], nbytes: int) -> T:
        """The result of `act` for that many bytes, as soon as there is room for them. Raises ServeError (503)."""
        while True:
            try:
                return act(nbytes)
            except ArenaFull as full:
                if full.nbytes and self.reclaim.wait(full.nbytes):
                    continue
                # A size that never fits takes memory from no client.
                if nbytes > self.arena.limit or not self.make_room():
                    raise (unavailable if nbytes > self.arena.limit else overloaded)(
                        f"{full}. {self.usage()}"
                    ) from None

    def _free(self, block: Block) -> None:
        self.ingress.free(block.offset)
