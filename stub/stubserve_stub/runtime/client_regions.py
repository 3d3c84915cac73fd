"""Clients' shared memory in a stub: inputs are read and outputs written where they are.

A client registers a file in /dev/shm with the server, which passes its descriptor on to each stub that needs it. A stub
maps it when a batch first refers to it. `region_window` says what happens when a region goes away while it is used.

**Inputs are private.** A model may write to its inputs, and its client must not see that. So an input is a view of a
private mapping (MAP_PRIVATE): the kernel copies a page that the model writes to, the others are the client's own. A
mapping is lent to one input at a time, and lent again when the last view of that input has died. Before that, pages
that the model has written to go back to the kernel: none if this process has had no page fault meanwhile (2 µs to
know), else /proc/self/pagemap tells which (36 µs for 4 MiB). For 4 MiB a kept mapping takes 9 µs, a new one 147 µs, a
copy with `preadv` 437 µs.

**What a model keeps is its own.** A client may write the next request into its region, or make the region smaller, as
soon as it has its answer. So inputs that are still alive after `execute` move into memory of this process, at the same
address. Inputs of an answered request are copied (`keep`). A thread of the model may still work on inputs of an open
request, and a copy could lose its writes: so their pages become private in place (`detach`). The kernel takes these
away when the file shrinks, and `torn` is true then. After the last response this is not checked any more: a model that
goes on with such an input may find zeros there. Either way takes 2 ms for 4 MiB, and is rare.

**Outputs are copied once**, from where the model has them into a shared mapping, if they fit.
"""

from __future__ import annotations

import collections
import ctypes
import mmap
import os
import socket
import threading
from typing import Any, Deque, Dict, Optional, Tuple

import msgpack
import numpy as np

from stubserve_stub.runtime.region_window import RegionGone, RegionWindow
from stubserve_stub.wire.arena import bytes_at

# How many private mappings of a region are kept for the next input
_KEPT = 4
# More than any datagram of the server has
_DATAGRAM = 256


class InputLoan:
    """The bottom of all views of one input; it ends with the last of them."""

    __slots__ = ("__array_interface__", "__weakref__", "_pool", "window")

    def __init__(self, window: RegionWindow, pool: "Deque[RegionWindow]", offset: int, nbytes: int) -> None:
        self.window = window
        self._pool = pool
        window.used = (offset, nbytes)
        self.__array_interface__ = bytes_at(window.address + offset, nbytes)

    def __del__(self) -> None:
        if len(self._pool) < _KEPT and not self.window.is_spent:
            self._pool.append(self.window)


class MappedRegion:
    """One region: `nbytes` from `start` on in the file behind a descriptor, which the region closes."""

    def __init__(self, descriptor: int, start: int, nbytes: int) -> None:
        self.nbytes = nbytes
        self._descriptor = descriptor
        self._start = start
        self._kept: Deque[RegionWindow] = collections.deque()
        self._shared: Optional[RegionWindow] = None
        status = os.fstat(descriptor)
        self._file = (status.st_dev, status.st_ino)

    def overlaps(self, offset: int, nbytes: int, other: MappedRegion, at: int, size: int) -> bool:
        """Whether a part of this region overlaps a part of another."""
        if self._file != other._file:
            return False
        first, second = self._start + offset, other._start + at
        return first < second + size and second < first + nbytes

    def lend(self, offset: int, nbytes: int) -> Tuple["np.ndarray[Any, Any]", InputLoan]:
        """A part of the region as private bytes. Raises RegionGone."""
        self._check(offset, nbytes)
        loan = InputLoan(self._private(), self._kept, offset, nbytes)
        return np.asarray(loan), loan

    def copy(self, offset: int, nbytes: int) -> "np.ndarray[Any, Any]":
        """A copy of a part of it. Raises RegionGone."""
        array, loan = self.lend(offset, nbytes)
        copied: np.ndarray = array.copy()
        if loan.window.torn:
            raise RegionGone("it has become smaller")
        return copied

    def write(self, offset: int, data: Any) -> None:
        """Writes a contiguous buffer into it. Raises RegionGone, perhaps after a part has been written."""
        source = np.frombuffer(data, np.uint8) if not isinstance(data, np.ndarray) else data.reshape(-1).view(np.uint8)
        self._check(offset, source.nbytes)
        window = self._shared
        if window is None or window.torn:
            window = self._shared = RegionWindow(self._descriptor, self._start, self.nbytes, mmap.MAP_SHARED)
        target = (ctypes.c_ubyte * source.nbytes).from_address(window.address + offset)
        np.copyto(np.frombuffer(memoryview(target), np.uint8), source)
        if window.torn:
            raise RegionGone("it has become smaller, or /dev/shm is full")

    def close(self) -> None:
        """Lends nothing more of it; what is lent stays valid."""
        os.close(self._descriptor)
        self._shared = None
        kept, self._kept = self._kept, collections.deque()
        kept.clear()

    def _check(self, offset: int, nbytes: int) -> None:
        if os.fstat(self._descriptor).st_size < self._start + offset + nbytes:
            raise RegionGone("it has become smaller")

    def _private(self) -> RegionWindow:
        """A private mapping with the present content of the region."""
        while self._kept:
            window = self._kept.pop()
            if not window.torn and window.renew():
                return window
        return RegionWindow(self._descriptor, self._start, self.nbytes, mmap.MAP_PRIVATE)


class MappedRegions:
    """The regions that the server has sent over the socket `descriptor`. Safe on any thread."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)
        self._changing = threading.Lock()
        self._regions: Dict[int, MappedRegion] = {}

    def find(self, number: int) -> MappedRegion:
        """The region of this number. Raises RegionGone."""
        region = self._regions.get(number)
        if region is None:
            with self._changing:
                self._receive()
                region = self._regions.get(number)
            if region is None:
                raise RegionGone("the server could not pass it on to the stub")
        return region

    def forget(self, number: int) -> None:
        """The server has closed it, and will not refer to it again."""
        with self._changing:
            self._receive()
            region = self._regions.pop(number, None)
            if region is not None:
                region.close()

    def _receive(self) -> None:
        """Takes the regions that the server has sent. It sends a region before a batch that refers to it."""
        while True:
            try:
                data, ancillary, _, _ = self._socket.recvmsg(_DATAGRAM, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
            except OSError:  # nothing more is there
                return
            if not data:
                return
            descriptors = [int.from_bytes(passed[:4], "little") for _, _, passed in ancillary]
            if not descriptors:
                continue  # this process has as many open files as it may
            number, start, nbytes = msgpack.unpackb(data)
            self._regions[number] = MappedRegion(descriptors[0], start, nbytes)
