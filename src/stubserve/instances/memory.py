"""The server's shared memory as one thing: the arena, what ingress allocates, and the segments for stubs."""

from __future__ import annotations

from stubserve_stub.wire import layout
from stubserve_stub.wire.allocator import Allocator
from stubserve_stub.wire.arena import Arena

from stubserve.errors import unavailable
from stubserve.inference.heap_account import HeapAccount
from stubserve.inference.memory import Block
from stubserve.instances.stub_memory import SegmentPool


class Memory:
    """The server's shared memory: the arena, ingress's allocator, and the pool of segments for stubs.

    `batches_in_flight` counts what all stubs together are busy with.
    """

    def __init__(self, limit: int) -> None:
        self.arena = Arena.create(limit)
        self.segments = SegmentPool(self.arena)
        self.batches_in_flight = 0
        self.ingress = Allocator(self.arena, 0, retain=min(128 << 20, limit // 8), skip=layout.HEADER_BYTES)
        self.heap = HeapAccount(self.ingress, self.usage)

    def block(self, nbytes: int) -> Block:
        """A block of ingress memory. Raises ServeError (503) that names the limit and who holds the memory."""
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
        committed = self.arena.committed()
        ingress = committed.pop(0, 0) - self.heap.taken
        stubs = ", ".join(f"segment {index}: {nbytes} bytes" for index, nbytes in sorted(committed.items()))
        return (
            f"Requests hold {ingress} bytes of tensors and {self.heap.taken} bytes of texts and bodies; "
            f"outputs of stubs: {stubs or 'none'}"
        )

    def _free(self, block: Block) -> None:
        self.ingress.free(block.offset)
