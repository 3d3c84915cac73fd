"""The arena: all shared memory of a server, in one anonymous file that the stubs inherit.

- It has no name: nothing in /dev/shm, nothing to guess. When the last process that maps it is gone, the kernel frees
  it, however that process ended.
- It has one hard limit. Before a process touches new memory, it commits the bytes to its account (`budget`); over the
  limit that raises `ArenaFull`. The sums are in the parent's own memory.
- A stub can write to no more than it needs (`stub_arena`).
- A reader sees what a writer wrote, because descriptors are announced through an eventfd (see `ring`).

Costs: address space, not memory. Each segment spans sixteen times the limit, so fragmentation and blocks that are
reserved but not written never exhaust its heap. It spans at most MAX_SPAN, because the parent maps the segments of all
instances, and its address space has 128 TiB. Pages are committed when first touched. A process maps a segment when it
first needs an offset in it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from typing import Any, Callable, Dict, Optional

import numpy as np

from stubserve_stub.wire import layout
from stubserve_stub.wire.budget import ArenaFull as ArenaFull
from stubserve_stub.wire.budget import Grant, Ledger

MAX_SPAN = 1 << 36

# Bytes, and number, of the parts in which pages go back to the system
_LEAST_PART = 1 << 20
_MOST_PARTS = 256

_libc = ctypes.CDLL(None, use_errno=True)
_mprotect = _libc.mprotect
_mprotect.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
_madvise = _libc.madvise
_madvise.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]


class Segment:
    """One mapped segment: its memory, its `start` in the arena, and the `address` at which it is mapped.

    In an instance's segment the parent writes `parent_words`, and the stub writes `stub_words`.
    """

    def __init__(self, fd: int, index: int, start: int, span: int) -> None:
        self.index = index
        self.start = start
        self.span = span
        try:
            self._map = mmap.mmap(fd, span, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=start)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            size = max(span >> 30, 1)
            text = f"no address space for another {size} GiB of shared memory; lower --shm-limit, or raise 'ulimit -v'"
            raise OSError(error.errno, text) from None
        self.view = memoryview(self._map)
        self.parent_words = self._words(layout.PARENT_WORDS)
        self.stub_words = self._words(layout.STUB_WORDS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        # Is told the address and size of pages before they go back to the system
        self.before_release: Optional[Callable[[int, int], None]] = None

    def ring(self, start: int) -> memoryview:
        """The records of the ring at `start` of the layout."""
        return self.view[start : start + layout.RING_BYTES]

    def protect(self, offset: int, nbytes: int, protection: int) -> None:
        """Sets the protection of whole pages (offset in the segment) for this process. Raises OSError."""
        if _mprotect(self.address + offset, nbytes, protection):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def release_pages(self, offset: int, nbytes: int) -> None:
        """Gives whole pages (arena offset) back to the system; they read as zeros after that.

        Takes about 80 µs for a megabyte; other threads may run meanwhile. But all segments are one file, and the kernel
        gives back one part of a file at a time. So this goes by small parts: the event loop waits for one of them only.
        """
        start = self.address + offset - self.start
        if self.before_release is not None:
            self.before_release(start, nbytes)
        part = max(_LEAST_PART, nbytes // _MOST_PARTS // layout.PAGE * layout.PAGE)
        for at in range(0, nbytes, part):
            if _madvise(start + at, min(part, nbytes - at), mmap.MADV_REMOVE):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))

    def _words(self, start: int) -> memoryview:
        return self.view[start : start + layout.PAGE].cast("Q")


class Arena:
    """The parent's view of the arena, made by `Arena.create`; `account` says what may be committed."""

    def __init__(self, fd: int, limit: int, span: int, account: "Ledger | Grant") -> None:
        self.fd = fd
        self.limit = limit
        self.span = span
        self.commit = account.commit
        self.uncommit = account.uncommit
        self._segments: Dict[int, Segment] = {}

    @classmethod
    def create(cls, ledger: Ledger) -> Arena:
        """Makes an arena that commits at most what the ledger has."""
        fd = os.memfd_create("stubserve", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        # Models inherit the descriptor, and a faulty one may truncate or write to it. Shrinking would end all processes
        # with a SIGBUS. At the end of the largest possible file a write has nothing to overwrite.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        os.lseek(fd, (1 << 63) - 1, os.SEEK_SET)
        span = min(1 << max(16 * ledger.limit - 1, layout.HEAP).bit_length(), MAX_SPAN)
        return cls(fd, ledger.limit, span, ledger)

    def facts(self) -> Dict[str, Any]:
        """What a stub has to know about it besides its descriptor, see `StubArena`."""
        return {"version": layout.WIRE_VERSION, "limit": self.limit, "span": self.span}

    def segment(self, index: int) -> Segment:
        """The segment, mapped on first use; the sparse file grows to hold it."""
        found = self._segments.get(index)
        if found is None:
            found = self._segments[index] = self._map(index)
        return found

    def view(self, offset: int, nbytes: int) -> memoryview:
        segment = self.segment(offset // self.span)
        at = offset - segment.start
        return segment.view[at : at + nbytes]

    def address(self, offset: int) -> int:
        """The address in this process of memory at an arena offset."""
        segment = self.segment(offset // self.span)
        return segment.address + offset - segment.start

    def offset(self, memory: memoryview) -> int:
        """The arena offset of memory that comes from a view of this arena. Raises ValueError for other memory."""
        address = address_of(memory)
        for segment in self._segments.values():
            if 0 <= address - segment.address < segment.span:
                return segment.start + address - segment.address
        raise ValueError("the memory does not lie in the arena")

    def _map(self, index: int) -> Segment:
        start = index * self.span
        if os.fstat(self.fd).st_size < start + self.span:
            os.ftruncate(self.fd, start + self.span)
        return Segment(self.fd, index, start, self.span)


def bottom_of(array: Any) -> Any:
    """The object at the bottom of an array, which lives as long as any view of its memory."""
    while isinstance(array, np.ndarray):
        array = array.base
    return array


def bytes_at(address: int, nbytes: int) -> Dict[str, Any]:
    """The `__array_interface__`, as writable bytes, of an object that keeps memory of this process alive."""
    return {"version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (address, False)}


def address_of(buffer: Any) -> int:
    array = buffer if isinstance(buffer, np.ndarray) else np.frombuffer(buffer, np.uint8)
    address: int = array.__array_interface__["data"][0]
    return address
