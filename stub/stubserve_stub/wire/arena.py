"""The arena: all shared memory of a server, in one anonymous file that the stubs inherit.

- No name anywhere: nothing in /dev/shm, nothing to guess. When the last process that maps it is gone, the kernel frees
  it, however that process ended.
- One hard limit for everybody. Before a process touches new memory it commits the bytes to its account (`budget`); over
  the limit that raises `ArenaFull`. The sums are the parent's own and do not lie in the arena.
- A stub can write to no more than it needs (`stub_arena`).
- A reader sees what a writer wrote: descriptors are announced through an eventfd (see `ring`).

Costs: address space, not memory. Each segment spans sixteen times the limit, so that its heap never runs out of room
because of fragmentation or of blocks that are reserved and not written yet; but at most MAX_SPAN: the parent maps the
segments of all instances, and its address space has 128 TiB. Pages are committed when first touched. A process maps a
segment when it first needs an offset in it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from typing import Any, Dict

import numpy as np

from stubserve_stub.wire import layout
from stubserve_stub.wire.budget import ArenaFull as ArenaFull
from stubserve_stub.wire.budget import Grant, Ledger

MAX_SPAN = 1 << 36

_libc = ctypes.CDLL(None, use_errno=True)
_mprotect = _libc.mprotect
_mprotect.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
_madvise = _libc.madvise
_madvise.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]


class Segment:
    """One mapped segment: `view` is its memory, `start` its offset in the arena, `address` where it is mapped.

    `parent_words` and `stub_words` are the words that the parent and the stub of an instance's segment write.
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
            text = "no address space for another {} GiB of shared memory; lower --shm-limit, or raise 'ulimit -v'"
            raise OSError(error.errno, text.format(max(span >> 30, 1))) from None
        self.view = memoryview(self._map)
        self.parent_words = self._words(layout.PARENT_WORDS)
        self.stub_words = self._words(layout.STUB_WORDS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def ring(self, start: int) -> memoryview:
        """The records of one of the rings, by where the layout has it."""
        return self.view[start : start + layout.RING_BYTES]

    def protect(self, offset: int, nbytes: int, protection: int) -> None:
        """Says what this process may do with whole pages (offset in the segment). Raises OSError."""
        if _mprotect(self.address + offset, nbytes, protection):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def release_pages(self, offset: int, nbytes: int) -> None:
        """Gives the pages of a range (arena offset, whole pages) back to the system; they read as zeros after that.

        Takes about 80 µs for a megabyte, in which other threads may run.
        """
        if _madvise(self.address + offset - self.start, nbytes, mmap.MADV_REMOVE):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def _words(self, start: int) -> memoryview:
        return self.view[start : start + layout.PAGE].cast("Q")


class Arena:
    """The parent's sight of the arena, which `Arena.create` makes; `account` says what may be committed."""

    def __init__(self, fd: int, limit: int, span: int, account: "Ledger | Grant") -> None:
        self.fd = fd
        self.limit = limit
        self.span = span
        self.commit = account.commit
        self.uncommit = account.uncommit
        self._segments: Dict[int, Segment] = {}

    @classmethod
    def create(cls, ledger: Ledger) -> Arena:
        """Makes an arena that will commit at most what the ledger has."""
        fd = os.memfd_create("stubserve", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        # Models inherit the descriptor, and some write to or truncate what is not theirs. Shrinking would end everybody
        # with a SIGBUS; and where the largest file ends there is nothing to write over.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        os.lseek(fd, (1 << 63) - 1, os.SEEK_SET)
        span = min(1 << max(16 * ledger.limit - 1, layout.HEAP).bit_length(), MAX_SPAN)
        return cls(fd, ledger.limit, span, ledger)

    def facts(self) -> Dict[str, Any]:
        """What a stub has to know of it beside its descriptor, see `StubArena`."""
        return {"version": layout.WIRE_VERSION, "limit": self.limit, "span": self.span}

    def segment(self, index: int) -> Segment:
        """The segment, mapped on first use; the file grows (sparsely) to hold it."""
        found = self._segments.get(index)
        if found is None:
            found = self._segments[index] = self._map(index)
        return found

    def view(self, offset: int, nbytes: int) -> memoryview:
        """The memory behind a descriptor."""
        segment = self.segment(offset // self.span)
        at = offset - segment.start
        return segment.view[at : at + nbytes]

    def address(self, offset: int) -> int:
        """Where the memory behind a descriptor is mapped in this process."""
        segment = self.segment(offset // self.span)
        return segment.address + offset - segment.start

    def offset(self, memory: memoryview) -> int:
        """The arena offset of memory that a view of this arena gave. Raises ValueError for other memory."""
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
    """What lies at the bottom of an array: it lives as long as anything that is made of its memory."""
    while isinstance(array, np.ndarray):
        array = array.base
    return array


def bytes_at(address: int, nbytes: int) -> Dict[str, Any]:
    """The `__array_interface__` of an object that keeps memory of this process alive; bytes that may be written to."""
    return {"version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (address, False)}


def address_of(buffer: Any) -> int:
    """Where a contiguous buffer lies in this process."""
    array = buffer if isinstance(buffer, np.ndarray) else np.frombuffer(buffer, np.uint8)
    address: int = array.__array_interface__["data"][0]
    return address
