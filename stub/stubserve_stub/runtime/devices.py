"""Memory of GPUs in a stub: pools that it hands out, windows on the pools of others, and what tensors lie in.

A tensor in memory of a GPU has a place (`OnDevice`) as any other, and its block is held, lent, released and freed by
its offset as blocks of the arena are. Only three things differ:

- **Chunks.** A pool grows by chunks. The descriptor of each goes over the socket `line` to the server, before the first
  place in it, and from there once to each stub that gets such a place, again before the place. A stub takes what has
  come over the line when it meets a place that it has no chunk for.
- **Order.** The server and other stubs know nothing of streams. So a place is told when its bytes are there, and memory
  is released when nothing here works on it any more: before a stub lets go of inputs on a GPU, it waits for all of its
  work on its GPUs (`finish`). A model's work on its own memory is waited for by DLPack's handshake (`ordered`).
- **Sharing.** Pages of a GPU cannot be protected for one tensor. A model that looks at memory which others read, too,
  gets a copy; so does one whose instance runs on another GPU, by peers or, where they are none, through the host.

The driver is loaded with the first tensor that needs it.
"""

from __future__ import annotations

import array
import collections
import os
import socket
import threading
from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, Tuple

import msgpack
import numpy as np

from stubserve_stub.device import gpu as gpus
from stubserve_stub.device.gpu import Gpu
from stubserve_stub.device.pinned import Pinned
from stubserve_stub.device.pool import Pool
from stubserve_stub.device.window import Window
from stubserve_stub.runtime.control import Control
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import codes
from stubserve_stub.wire.arena import address_of
from stubserve_stub.wire.places import DEVICE_BASE, POOL_SPAN, OnDevice

# More than any message on the line has, and the descriptor that comes with it
_DATAGRAM = 256
_ANCILLARY = socket.CMSG_SPACE(4)


class DeviceMemory:
    """`nbytes` of a GPU at an `address` of this process, at the bottom of everything that a model can make of them.

    `offset` is where they lie in the pools, -1 for memory that is the model's own; `keeps` keeps that alive. `shared`:
    others read it, too. `ordered`: all work on it is done, or is waited for by our stream. `is_lease`: an answer to a
    request of the model. `let_go` gets the offset at the end.
    """

    __slots__ = (
        "__weakref__",
        "_keeps",
        "_let_go",
        "address",
        "gpu",
        "is_lease",
        "nbytes",
        "offset",
        "ordered",
        "shared",
    )

    def __init__(
        self,
        gpu: Gpu,
        address: int,
        nbytes: int,
        offset: int = -1,
        shared: bool = False,
        keeps: Any = None,
        let_go: Optional[Callable[[int], None]] = None,
    ) -> None:
        self.gpu = gpu
        self.address = address
        self.nbytes = nbytes
        self.offset = offset
        self.shared = shared
        self.ordered = True
        self.is_lease = False
        self._keeps = keeps
        self._let_go = let_go

    def wait(self) -> None:
        """Waits for the work on it that our stream does not wait for."""
        if not self.ordered:
            self.gpu.device.synchronize()

    def copy_to_host(self, address: int) -> None:
        """Copies the memory to an address of the host, and waits for the end."""
        self.wait()
        if self.nbytes:
            self.gpu.copy_to_host(address, self.address, self.nbytes)

    def on_host(self) -> "np.ndarray[Any, Any]":
        """A copy, as writable bytes."""
        copied = np.empty(self.nbytes, np.uint8)
        self.copy_to_host(address_of(copied))
        return copied

    def tobytes(self) -> bytes:
        return self.on_host().tobytes()

    def __del__(self) -> None:
        if self._let_go is not None:
            self._let_go(self.offset)


class Devices:
    """A stub's pools, and its windows on those of others. Safe on any thread.

    `facts` came with the boot message: `line`, a socket to the server; `pools`, the number of the pool on GPU 0 (that
    on GPU n is n higher) and `gpus`, how many there are; `limits`, the most bytes of each pool; `peers`, whether memory
    goes from one GPU to another directly; `pinned`, the most bytes of pinned memory; `load_limits`, the part of each
    GPU's memory above which nothing is loaded.
    """

    def __init__(self, facts: Mapping[str, Any], control: Control) -> None:
        self._line = socket.socket(fileno=facts["line"])
        self._first, self._count = facts["pools"], facts["gpus"]
        self._limits: Mapping[int, int] = facts["limits"]
        self._load_limits: Mapping[int, float] = facts["load_limits"]
        self._pinned = Pinned(facts["pinned"], self._say)
        self.unpin = self._pinned.unpin
        if not facts["peers"]:
            gpus.forbid_peers()
        self._control = control
        # The GPU of the instance; None for one on the CPU, which takes tensors wherever they are
        self.home: Optional[int] = None
        self._guard = threading.RLock()
        self._pools: Dict[int, Pool] = {}
        # By the number of the pool
        self._windows: Dict[int, Tuple[Gpu, Window]] = {}
        # Blocks that others have read, and blocks of copies that the model has let go of
        self._freed: Deque[int] = collections.deque()
        self._dropped: Deque[int] = collections.deque()
        self._told: List[str] = []
        self.free = self._freed.append
        control.handle("pool_gone", lambda message: self._forget(message["number"]))

    def check_load(self, instance: str) -> None:
        """Raises Refusal if its GPU has less memory left, now that an instance is loaded, than the server wants.

        After the load, as upstream: it may have taken anything. The text is upstream's, too.
        """
        number = self.home
        if number is None or number not in self._load_limits:
            return
        limit, device = self._load_limits[number], gpus.gpu(number).device
        used = device.facts.memory - device.free_memory()
        if used > limit * device.facts.memory:
            raise Refusal(
                "can not create model '{}': memory limit set for GPU {} has exceeded, model loading is rejected. It "
                "has {} of its {} bytes in use, and --model-load-gpu-limit={}:{} allows {}".format(
                    instance, number, used, device.facts.memory, number, limit, int(limit * device.facts.memory)
                ),
                codes.UNAVAILABLE,
            )

    # Memory that the stub was given

    def memory_at(self, place: OnDevice, let_go: Optional[Callable[[int], None]] = None) -> DeviceMemory:
        """The memory at a place. Raises ValueError for one that the stub was not given, and DriverError."""
        number, at = divmod(place.offset - DEVICE_BASE, POOL_SPAN)
        with self._guard:
            try:
                gpu, window = self._window(number)
                address = window.address(at, place.nbytes)
            except (KeyError, ValueError):
                self._take_chunks()
                found = self._windows.get(number)
                if found is None:
                    raise ValueError("lies in a pool of GPU memory that the server has not passed on") from None
                gpu, window = found
                address = window.address(at, place.nbytes)
        return DeviceMemory(gpu, address, place.nbytes, place.offset, bool(place.shared), None, let_go)

    def on_instance_gpu(self, memory: DeviceMemory) -> DeviceMemory:
        """The memory, or a copy of it on the GPU of the instance if it lies on another one."""
        if self.home is None or memory.gpu.number == self.home:
            return memory
        if not gpus.driver().can_access(self.home, memory.gpu.number):
            text = "GPU {} and GPU {} are no peers: tensors from one to the other go through the host (said once)"
            self._say(text.format(memory.gpu.number, self.home))
        return self.copied(memory, self.home)

    def copied(self, memory: DeviceMemory, number: int) -> DeviceMemory:
        """A copy on a GPU that is the model's own. Raises PoolFull, DriverError."""
        memory.wait()
        copy = self.allocate(number, memory.nbytes, "a copy for its model")
        copy.gpu.fill(copy.address, memory.address, memory.nbytes, memory.gpu)
        return copy

    def uploaded(self, host: Any, number: int) -> DeviceMemory:
        """A copy of bytes of the host on a GPU that is the model's own. Raises PoolFull, DriverError."""
        copy = self.allocate(number, len(host), "a copy for its model")
        if copy.nbytes:
            copy.gpu.fill_from_host(copy.address, address_of(host), copy.nbytes)
        return copy

    def pin(self, memory: DeviceMemory, address: int, nbytes: int) -> None:
        """Pins a block of the stub's own segment that some memory is about to be copied to."""
        self._pinned.pin(memory.gpu.device, address, nbytes)

    def finish(self) -> None:
        """Waits for all work of this process on its GPUs, so that memory may be released."""
        gpus.finish_all()

    # Memory that the stub gives

    def put(self, memory: DeviceMemory, holder: str) -> OnDevice:
        """Copies memory into the pool of its GPU, and waits for the end. Raises PoolFull, DriverError."""
        memory.wait()
        offset, address = self._allocate(memory.gpu.number, memory.nbytes, holder)
        try:
            if memory.nbytes:
                memory.gpu.fill(address, memory.address, memory.nbytes, memory.gpu)
        except BaseException:
            self.free(offset)
            raise
        return OnDevice(offset, memory.nbytes)

    def allocate(self, number: int, nbytes: int, holder: str) -> DeviceMemory:
        """New memory on a GPU that is the stub's alone, as long as this lives. Raises PoolFull, DriverError.

        `holder` is what errors call it.
        """
        offset, address = self._allocate(number, nbytes, holder)
        return DeviceMemory(gpus.gpu(number), address, nbytes, let_go=lambda _: self._dropped.append(offset))

    def _allocate(self, number: int, nbytes: int, holder: str) -> Tuple[int, int]:
        """(offset, address) of a new block on a GPU."""
        with self._guard:
            if self._dropped:
                self.finish()
                self._freed.extend(self._dropped.popleft() for _ in range(len(self._dropped)))
            while self._freed:
                index, at = divmod(self._freed.popleft() - DEVICE_BASE, POOL_SPAN)
                self._pools[index - self._first].free(at)
            pool = self._pools.get(number) or self._new_pool(number)
            at = pool.allocate(nbytes, holder)
            for index, descriptor in pool.new_chunks():
                self._tell_chunk(number, pool, index, descriptor)
            return DEVICE_BASE + (self._first + number) * POOL_SPAN + at, pool.window.address(at, nbytes)

    def _new_pool(self, number: int) -> Pool:
        gpu = gpus.gpu(number)
        limit = self._limits.get(number, gpu.device.facts.memory)
        pool = self._pools[number] = Pool(gpu.device, min(limit, POOL_SPAN))
        return pool

    # The line

    def _tell_chunk(self, number: int, pool: Pool, index: int, descriptor: int) -> None:
        window = pool.window
        message = msgpack.packb((number, window.span, window.chunk_bytes, index))
        try:
            passed = array.array("i", [descriptor])
            self._line.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
        finally:
            os.close(descriptor)

    def _window(self, number: int) -> Tuple[Gpu, Window]:
        """Raises KeyError for a pool that is not known yet."""
        own = self._pools.get(number - self._first) if 0 <= number - self._first < self._count else None
        return self._windows[number] if own is None else (gpus.gpu(number - self._first), own.window)

    def _take_chunks(self) -> None:
        """Takes the chunks that the server has passed on. Raises DriverError, and then the chunk is lost."""
        while True:
            try:
                data, ancillary, _, _ = self._line.recvmsg(
                    _DATAGRAM, _ANCILLARY, socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
                )
            except OSError:  # nothing more is there
                return
            if not data:
                return
            for _, _, passed in ancillary:
                descriptor = int.from_bytes(passed[:4], "little")
                try:
                    number, device, span, chunk_bytes, index = msgpack.unpackb(data)
                    self._take_chunk(number, device, span, chunk_bytes, index, descriptor)
                finally:
                    os.close(descriptor)

    def _take_chunk(self, number: int, device: int, span: int, chunk_bytes: int, index: int, descriptor: int) -> None:
        found = self._windows.get(number)
        if found is None:
            gpu, home = gpus.gpu(device), self.home
            is_peer = home is not None and home != device and gpus.driver().can_access(home, device)
            window = Window(gpu.device, span, chunk_bytes, [home] if is_peer and home is not None else [])
            found = self._windows[number] = (gpu, window)
        found[1].take(index, descriptor)

    def _forget(self, number: int) -> None:
        """The pool is gone, and nothing of it is in use here. On the control thread."""
        with self._guard:
            self._take_chunks()
            found = self._windows.pop(number, None)
            if found is not None:
                found[0].device.synchronize()
                found[1].close()

    def _say(self, text: str) -> None:
        if text not in self._told:
            self._told.append(text)
            self._control.send("log", level=codes.LOG_WARNING, file="devices.py", line=0, message=text, request_id="")
