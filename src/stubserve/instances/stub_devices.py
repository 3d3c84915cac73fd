"""Pools of GPU memory on their way between stubs: descriptors of chunks, over a socket of their own.

A stub has this socket beside its control socket on servers with GPUs only. Over it a stub tells of each chunk that it
makes, once, before the first place in it; and it is told of each chunk of another stub, once, before the first batch or
answer with a place in it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from stubserve_stub.wire.messages import pack, unpack

from stubserve.inference.tensor import Tensor
from stubserve.memory.device_pools import DevicePool, DeviceSpan, StubPools
from stubserve.memory.stub_memory import SegmentPool, StubMemory

log = logging.getLogger("stubserve.instances")

# More than any message has
_DATAGRAM = 256


class GpuMemory(NamedTuple):
    """The memory of GPUs that a stub's tensors may lie on: of the first `gpus` GPUs.

    `limits` are the most bytes of a pool, by GPU. `peers`: tensors may go from one GPU to another directly. `pinned` is
    how many bytes of host memory a stub may pin. `load_limits` are the parts of GPUs' memory above which a load fails.
    """

    gpus: int = 0
    limits: Mapping[int, int] = {}
    peers: bool = True
    pinned: int = 0
    load_limits: Mapping[int, float] = {}


NO_GPU_MEMORY = GpuMemory()


class StubDevices:
    """The pools of one stub, `name`, and the chunks that it has of others. Raises OSError.

    `theirs` is the stub's end of the socket.
    """

    def __init__(self, name: str, allowed: GpuMemory, segments: SegmentPool) -> None:
        self._name = name
        self._allowed = allowed
        self._socket, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._look)
        self._known: dict[DevicePool, set[int]] = {}
        self.pools = StubPools(segments.take_pools(allowed.gpus), self._look, self.send_chunks, self._free)
        # The memory of the stub's seats
        self._seats: list[StubMemory] = []
        # Tells the stub that a pool is gone
        self.on_gone: Callable[[int], object] = lambda number: None

    def join(self, memory: StubMemory) -> None:
        """A seat of the stub begins."""
        memory.pools = self.pools
        self._seats.append(memory)

    def leave(self, memory: StubMemory) -> None:
        """A seat of the stub ends."""
        self._seats.remove(memory)

    def boot(self) -> dict[str, Any]:
        """What the stub has to know of them."""
        return {
            "line": self.theirs.fileno(),
            "pools": self.pools.first,
            **self._allowed._asdict(),
        }

    def send_chunks_of(self, tensors: Iterable[Tensor]) -> None:
        """The stub is about to get these tensors."""
        for tensor in tensors:
            if isinstance(tensor.span, DeviceSpan):
                self.send_chunks(tensor.span)

    def send_chunks(self, span: DeviceSpan) -> None:
        """Makes sure that the stub has the chunks of a span."""
        pool = span.pool
        if self.pools.owns(pool):
            return
        known = self._known.get(pool)
        if known is None:
            known = self._known[pool] = set()
            pool.users.add(self)
        for index in pool.chunks_of(span.offset, span.nbytes):
            if index in known:
                continue
            message = pack((pool.number, pool.device, pool.span, pool.chunk_bytes, index))
            try:
                socket.send_fds(self._socket, [message], [pool.chunks[index]])
            except OSError as error:
                # The stub does not get the chunk, and will answer the request with an error.
                log.error("GPU memory could not be passed on to stub '%s': %s", self._name, error)
            else:
                known.add(index)

    def pool_gone(self, pool: DevicePool) -> None:
        del self._known[pool]
        self.on_gone(pool.number)

    def close(self) -> None:
        """The stub is gone."""
        self._look()
        self.pools.close()
        for pool in self._known:
            pool.users.discard(self)
        self._known.clear()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self.theirs.close()

    def _free(self, offset: int, nbytes: int) -> None:
        # Any seat of the stub can tell it.
        self._seats[0].free_later(offset, nbytes)

    def _look(self) -> None:
        """Takes the chunks that the stub has told of."""
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._socket, _DATAGRAM, 1, socket.MSG_CMSG_CLOEXEC)
            except OSError:  # nothing more is there
                return
            if not data:
                self._loop.remove_reader(self._socket)
                return
            try:
                (descriptor,) = descriptors
                device, span, chunk_bytes, index = unpack(data)
                self.pools.add_chunk(device, span, chunk_bytes, index, descriptor)
            except Exception as wrong:
                # A place in it will be refused.
                log.error("what stub '%s' has told of GPU memory makes no sense: %s", self._name, wrong)
                for descriptor in descriptors:
                    os.close(descriptor)
