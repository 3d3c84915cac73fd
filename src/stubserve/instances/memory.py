"""The server's shared memory as one thing: the arena, what ingress allocates, and the segments for stubs."""

from __future__ import annotations

from stubserve_stub.wire import layout
from stubserve_stub.wire.allocator import Allocator, size_class
from stubserve_stub.wire.arena import Arena
from stubserve_stub.wire.budget import Ledger

from stubserve.errors import unavailable
from stubserve.inference.heap_account import HeapAccount
from stubserve.inference.memory import Block
from stubserve.instances.reclaim import Reclaim
from stubserve.instances.stub_memory import SegmentPool


class Memory:
    """The server's shared memory: the arena, its ledger, ingress's allocator, and the pool of segments for stubs.

    `batches_in_flight` counts what all stubs together are busy with.
    """

    def __init__(self, limit: int) -> None:
        self.ledger = Ledger(limit)
        self.arena = Arena.create(self.ledger)
        self.segments = SegmentPool(self.arena, self.ledger)
        self.reclaim = Reclaim(self.ledger)
        self.batches_in_flight = 0
        self.ingress = Allocator(self.arena, 0, retain=min(128 << 20, limit // 8), skip=layout.GUARD_BYTES)
        self.heap = HeapAccount(self.ingress, self.usage)

    def block(self, nbytes: int) -> Block:
        """A block of ingress memory. Raises ServeError (503) that names the limit and who holds the memory.

        Where there is none, stubs are asked for what they do not use (`reclaim`).
        """
        try:
            offset = self.ingress.allocate(nbytes)
        except MemoryError:
            self.reclaim.wait(size_class(nbytes))
            try:
                offset = self.ingress.allocate(nbytes)
            except MemoryError as full:
                raise unavailable(f"{full}. {self.usage()}") from None
        return Block(offset, nbytes, self.arena.view(offset, nbytes), self._free)

    def store(self, data: bytes | memoryview) -> Block:
        """A block with a copy of `data`."""
        block = self.block(len(data))
        block.view[:] = data
        return block

    def usage(self) -> str:
        """Who holds shared memory, for people."""
        committed = self.ledger.committed()
        ingress = committed.pop(0, 0) - self.heap.taken
        stubs = ", ".join(f"segment {index}: {nbytes} bytes" for index, nbytes in sorted(committed.items()))
        return (
            f"Requests hold {ingress} bytes of tensors and {self.heap.taken} bytes of texts and bodies; "
            f"outputs of stubs: {stubs or 'none'}"
        )

    def _free(self, block: Block) -> None:
        self.ingress.free(block.offset)
