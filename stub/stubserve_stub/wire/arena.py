"""The arena: all shared memory of a server, in one anonymous file that the stubs inherit.

Guarantees:

- No name anywhere: nothing in /dev/shm, nothing to guess, nothing left behind. When the last process that maps it is
  gone, the kernel frees it, however that process ended.
- One hard limit for everybody. A process that wants to touch new memory first adds the bytes to its own word of the
  ledger and then sums all words; over the limit it takes them back and raises `ArenaFull`. Adding before summing means
  that of two processes racing for the last bytes at least one sees both claims; the sum never passes the limit.
- A reader sees what a writer wrote: descriptors are announced through an eventfd (see `ring`), whose lock in the
  kernel orders memory between the two.

Costs: address space, not memory. Each segment spans sixteen times the limit, so that its heap never runs out of room
because of fragmentation before the limit is reached, nor because of blocks that are reserved and not written yet; but
at most MAX_SPAN: the parent maps the segments of all instances, and its address space has 128 TiB. Pages are committed
when first touched. A process maps a segment when it first needs an offset in it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from typing import Dict, List

import numpy as np

from stubserve_stub.wire import layout

MAX_SPAN = 1 << 36


class ArenaFull(MemoryError):
    """The arena's limit leaves no room for `nbytes` more; `committed` says what each segment holds (bytes)."""

    def __init__(self, nbytes: int, limit: int, committed: Dict[int, int]) -> None:
        self.nbytes = nbytes
        self.limit = limit
        self.committed = committed
        super().__init__(
            "no room for {} bytes in shared memory: {} of {} bytes are in use; raise --shm-limit".format(
                nbytes, sum(committed.values()), limit
            )
        )


class Segment:
    """One mapped segment: `view` is its memory, `start` its offset in the arena, `address` where it is mapped."""

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
        self.words = self.view[: layout.HEADER_BYTES].cast("Q")
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def release_pages(self, offset: int, nbytes: int) -> None:
        """Gives the pages of a range (arena offset, whole pages) back to the system; they read as zeros after that."""
        self._map.madvise(mmap.MADV_REMOVE, offset - self.start, nbytes)


class Arena:
    """A process's sight of the arena. `Arena.create` makes it (the parent), `Arena.attach` joins it (a stub)."""

    def __init__(self, fd: int, limit: int, span: int) -> None:
        self.fd = fd
        self.limit = limit
        self.span = span
        self._ledger_map = mmap.mmap(fd, layout.LEDGER_BYTES)
        self._ledger = memoryview(self._ledger_map).cast("Q")
        self._committed = self._ledger[layout.LEDGER_HEAD_WORDS :]
        self._segments: Dict[int, Segment] = {}

    @classmethod
    def create(cls, limit: int) -> Arena:
        """Makes an arena that will commit at most `limit` bytes."""
        fd = os.memfd_create("stubserve", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, layout.LEDGER_BYTES)
        # Models inherit the descriptor, and some write to or truncate what is not theirs. Shrinking would end everybody
        # with a SIGBUS; and where the largest file ends there is nothing to write over.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        os.lseek(fd, (1 << 63) - 1, os.SEEK_SET)
        span = min(1 << max(16 * limit - 1, layout.HEAP).bit_length(), MAX_SPAN)
        arena = cls(fd, limit, span)
        arena._ledger[layout.LEDGER_VERSION] = layout.WIRE_VERSION
        arena._ledger[layout.LEDGER_LIMIT] = limit
        arena._ledger[layout.LEDGER_SPAN] = span
        return arena

    @classmethod
    def attach(cls, fd: int) -> Arena:
        """Joins the arena behind an inherited descriptor. Raises RuntimeError if its layout is of another version."""
        with mmap.mmap(fd, layout.LEDGER_BYTES) as head:
            words = memoryview(head).cast("Q")
            version, limit, span = (
                words[layout.LEDGER_VERSION],
                words[layout.LEDGER_LIMIT],
                words[layout.LEDGER_SPAN],
            )
            words.release()
        if version != layout.WIRE_VERSION:
            raise RuntimeError(
                "the server speaks wire version {}, this stub {}: they are of different releases".format(
                    version, layout.WIRE_VERSION
                )
            )
        return cls(fd, limit, span)

    def segment(self, index: int) -> Segment:
        """The segment, mapped on first use; the file grows (sparsely) to hold it."""
        found = self._segments.get(index)
        if found is None:
            start = layout.LEDGER_BYTES + index * self.span
            if os.fstat(self.fd).st_size < start + self.span:
                os.ftruncate(self.fd, start + self.span)
            found = self._segments[index] = Segment(self.fd, index, start, self.span)
        return found

    def view(self, offset: int, nbytes: int) -> memoryview:
        """The memory behind a descriptor, as writable bytes."""
        segment = self.segment((offset - layout.LEDGER_BYTES) // self.span)
        at = offset - segment.start
        return segment.view[at : at + nbytes]

    def address(self, offset: int) -> int:
        """Where the memory behind a descriptor is mapped in this process."""
        segment = self.segment((offset - layout.LEDGER_BYTES) // self.span)
        return segment.address + offset - segment.start

    def offset(self, memory: memoryview) -> int:
        """The arena offset of memory that a view of this arena gave. Raises ValueError for other memory."""
        address: int = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
        for segment in self._segments.values():
            if 0 <= address - segment.address < segment.span:
                return segment.start + address - segment.address
        raise ValueError("the memory does not lie in the arena")

    def commit(self, index: int, nbytes: int) -> None:
        """Accounts for `nbytes` that segment `index` is about to touch. Only that segment's writer may call this.

        Raises ArenaFull if the limit would be passed.
        """
        self._committed[index] += nbytes
        if sum(self._committed[: self._segment_count()]) > self.limit:
            self._committed[index] -= nbytes
            raise ArenaFull(nbytes, self.limit, self.committed())

    def uncommit(self, index: int, nbytes: int) -> None:
        """Takes `nbytes` back that segment `index` has given to the system."""
        self._committed[index] -= nbytes

    def forget(self, index: int) -> None:
        """Empties a segment whose writer is gone: its pages return to the system, its word in the ledger to zero."""
        segment = self.segment(index)
        segment.release_pages(segment.start, self.span)
        self._committed[index] = 0

    def committed(self) -> Dict[int, int]:
        """Bytes that each segment has committed."""
        words: List[int] = self._committed[: self._segment_count()].tolist()
        return {index: nbytes for index, nbytes in enumerate(words) if nbytes}

    def _segment_count(self) -> int:
        return (os.fstat(self.fd).st_size - layout.LEDGER_BYTES) // self.span
