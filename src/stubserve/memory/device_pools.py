"""Pools of GPU memory as the parent knows them: numbers and descriptors. It maps none of them.

A stub makes a pool chunk by chunk, and sends the descriptor of each chunk once. The parent keeps the descriptors as
long as the stub lives or a block of the pool is held, and passes each on, once, to every stub that gets a place in the
chunk. So a stub that dies takes nothing from the readers of its tensors. After that the descriptors are closed, and the
stubs that have the pool are told to let go of it: then the device has its memory back.
"""

# Compiled by mypyc.
from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from stubserve_stub.wire.places import DEVICE_BASE, POOL_SPAN, OnDevice, Place

from stubserve.errors import internal
from stubserve.memory.blocks import Block, Span

_NO_MEMORY = memoryview(b"")


class PoolUser(Protocol):
    """A stub with chunks of others' pools."""

    def pool_gone(self, pool: DevicePool) -> None:
        """The pool will not be used again."""


class DevicePool:
    """The pool number `number` of the memory of GPU `device`: `span` bytes in chunks of one size.

    `chunks` are the descriptors by the number of the chunk. `users` are the other stubs that have some. `blocks` are
    those that are held.
    """

    def __init__(self, number: int, device: int, span: int, chunk_bytes: int) -> None:
        self.number = number
        self.device = device
        self.span = span
        self.chunk_bytes = chunk_bytes
        self.chunks: dict[int, int] = {}
        self.users: set[PoolUser] = set()
        self.blocks = 0
        self.is_orphan = False

    def chunks_of(self, offset: int, nbytes: int) -> range:
        """The chunks in which these bytes lie; `offset` is that of a place."""
        at = offset - DEVICE_BASE - self.number * POOL_SPAN
        return range(at // self.chunk_bytes, (at + max(nbytes, 1) - 1) // self.chunk_bytes + 1)

    def has(self, offset: int, nbytes: int) -> bool:
        """Whether the pool's owner has told of all chunks that these bytes need."""
        at = offset - DEVICE_BASE - self.number * POOL_SPAN
        if at < 0 or nbytes < 0 or at + nbytes > self.span:
            return False
        return all(index in self.chunks for index in self.chunks_of(offset, nbytes))

    def orphan(self) -> None:
        """The stub that made the pool is gone."""
        self.is_orphan = True
        self.close_if_done()

    def close_if_done(self) -> None:
        if self.is_orphan and not self.blocks:
            for descriptor in self.chunks.values():
                os.close(descriptor)
            self.chunks.clear()
            users, self.users = self.users, set()
            for user in users:
                user.pool_gone(self)


class DeviceSpan(Span):
    """A block of a pool, which belongs to one tensor. Its bytes cannot be read here."""

    __slots__ = ("pool",)

    def __init__(self, block: Block, pool: DevicePool) -> None:
        super().__init__(block, block.offset, block.nbytes)
        self.pool = pool

    def read(self, offset: int, nbytes: int) -> bytes | memoryview:
        raise internal(f"a tensor lies in memory of GPU {self.pool.device}, which the server cannot read")

    def as_place(self, offset: int, nbytes: int) -> Place:
        return OnDevice(offset, nbytes, int(self.shared))


class StubPools:
    """The pools of one stub, by GPU. `first` is the number of the one on GPU 0.

    `look` takes what the stub has told meanwhile, `send_chunks` sends the stub the chunks of a span, `free` takes
    blocks that have been read, by offset and size.
    """

    def __init__(
        self,
        first: int,
        look: Callable[[], None],
        send_chunks: Callable[[DeviceSpan], None],
        free: Callable[[int, int], None],
    ) -> None:
        self.first = first
        self.look = look
        self.send_chunks = send_chunks
        self._free = free
        self._pools: dict[int, DevicePool] = {}

    def add_chunk(self, device: int, span: int, chunk_bytes: int, index: int, descriptor: int) -> None:
        """The stub has made a chunk. Raises ValueError for one that cannot be, and does not close the descriptor."""
        number = self.first + device
        pool = self._pools.get(number)
        if pool is None:
            if not 0 < chunk_bytes <= span <= POOL_SPAN or device < 0:
                raise ValueError(f"a stub has told of a pool of {span} bytes on GPU {device}")
            pool = self._pools[number] = DevicePool(number, device, span, chunk_bytes)
        if index in pool.chunks or not 0 <= index < pool.span // pool.chunk_bytes:
            raise ValueError(f"a stub has told of chunk {index} of a pool with {len(pool.chunks)} chunks")
        pool.chunks[index] = descriptor

    def output(self, offset: int, nbytes: int) -> Span:
        """The span of a block that the stub names as its own; its creator is its first holder. Raises ServeError."""
        number = (offset - DEVICE_BASE) // POOL_SPAN
        pool = self._pools.get(number)
        if pool is None or not pool.has(offset, nbytes):
            self.look()
            pool = self._pools.get(number)
            if pool is None or not pool.has(offset, nbytes):
                raise internal("a stub named memory of a GPU as its own that is in none of its pools")
        pool.blocks += 1
        return DeviceSpan(Block(offset, nbytes, _NO_MEMORY, self._read), pool)

    def owns(self, pool: DevicePool) -> bool:
        return self._pools.get(pool.number) is pool

    def close(self) -> None:
        """The stub is gone. Its blocks live on until they have been read."""
        for pool in self._pools.values():
            pool.orphan()

    def _read(self, block: Block) -> None:
        pool = self._pools[(block.offset - DEVICE_BASE) // POOL_SPAN]
        pool.blocks -= 1
        if pool.is_orphan:
            pool.close_if_done()
        else:
            self._free(block.offset, block.nbytes)
