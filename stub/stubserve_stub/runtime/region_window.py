"""A mapping of a region of a client's shared memory, and what happens when the region goes away.

The owner of a file in /dev/shm can make it smaller at any moment. Then an access to the missing part is a SIGBUS, and
so is one to a page for which a full /dev/shm has no room. Reading and writing with system calls would be safe, but take
another 0.6 ms for 4 MiB both ways. So the signal is caught: its handler puts pages of zeros in place of the missing
ones, notes it, and the thread goes on. After that any answer to the request is an error (`torn`). The file's size is
checked, too, because a system call fails in the gap without a signal, and a forked process has a handler of its own.
The other requests of the batch, the stub and its model do not notice.

The handler is a Python function, which the kernel calls through ctypes. That is sound because the thread stands at an
instruction that accesses a region, so in no allocator and in no lock of Python's. The handler waits for the
interpreter's lock, and waits for ever if the holder of that lock waits for this thread. Native code can do so that
starts threads and keeps the lock (numpy, onnxruntime, torch and `ctypes.CDLL` release it). The server sees a thread
that stays in the handler, and ends the stub with the cause (`stubserve.instances.execution_watch`). A SIGBUS at any
other address goes to the previous handler, and kills the process as without this.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import resource
import signal
from typing import Dict, List, Tuple

import numpy as np

from stubserve_stub.wire.layout import PAGE

_libc = ctypes.CDLL(None, use_errno=True)
_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_longlong]
_mremap = _libc.mremap
_mremap.restype = ctypes.c_void_p
_mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
_munmap = _libc.munmap
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_madvise = _libc.madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_MAP_FIXED = 0x10
_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2
_FAILED = ctypes.c_void_p(-1).value
_MADV_DONTNEED = 4
_MADV_POPULATE_WRITE = 23


class RegionGone(Exception):
    """A region, or a part of it, is missing."""


class RegionWindow:
    """A mapping of a whole region, which begins at `address` in this process."""

    __slots__ = ("__weakref__", "_descriptor", "_faults", "_span", "_start", "address", "is_spent", "used")

    def __init__(self, descriptor: int, start: int, nbytes: int, flags: int) -> None:
        _catch_sigbus()
        before = start % PAGE
        size = -(-(before + nbytes) // PAGE) * PAGE
        address = _mmap(None, size, _READ_WRITE, flags, descriptor, start - before)
        if address is None or address == _FAILED:
            raise RegionGone("it cannot be mapped: " + os.strerror(ctypes.get_errno()))
        self.address = address + before
        self._descriptor = descriptor
        # Where the region begins in its file
        self._start = start
        # The range of the region that a model had last
        self.used: Tuple[int, int] = (0, 0)
        # Whether a part of it has become this process's own memory
        self.is_spent = False
        # The count of page faults when it last showed the client's memory; below 0 before the first look
        self._faults = -1
        # For the handler: address, size, whether it is torn
        self._span: List[int] = [address, size, 0]
        _live[address] = self._span

    @property
    def torn(self) -> bool:
        """Whether the client has taken away memory that is or was used."""
        return bool(self._span[2]) or (not self.is_spent and self._is_short())

    def _is_short(self) -> bool:
        """Whether the file ends before the used range; False when it has been closed, because nothing refers to it."""
        try:
            return os.fstat(self._descriptor).st_size < self._start + sum(self.used)
        except OSError:
            return False

    def keep(self) -> None:
        """Copies the used range into this process's own memory, at the same address. Raises RegionGone."""
        start, size = self.pages(*self.used)
        copy = _mmap(None, size, _READ_WRITE, _ANONYMOUS, -1, 0)
        if copy is None or copy == _FAILED:
            raise RegionGone("there is no memory for what the model keeps of it")
        ctypes.memmove(copy, start, size)
        if _mremap(copy, size, size, _MREMAP_MAYMOVE | _MREMAP_FIXED, start) == _FAILED:
            _munmap(copy, size)
            raise RegionGone("what the model keeps of it cannot be kept: " + os.strerror(ctypes.get_errno()))
        self.is_spent = True

    def detach(self) -> None:
        """As `keep`, for memory that the model may be writing to. It is lost if the client makes its file smaller."""
        self._faults = -1
        start, size = self.pages(*self.used)
        if _madvise(start, size, _MADV_POPULATE_WRITE):
            # A kernel before 5.14, or a part is gone, which a write to it finds out.
            for address in range(start, start + size, PAGE):
                byte = ctypes.c_ubyte.from_address(address)
                byte.value = byte.value

    def renew(self) -> bool:
        """Shows the client's memory again where a model has written; whether that was possible."""
        if self._faults == _page_faults() and _faults_are_counted():
            return True
        start, size = self.pages(*self.used)
        if _written(start, size) and _madvise(start, size, _MADV_DONTNEED):
            return False
        self._faults = _page_faults()
        return True

    def pages(self, offset: int, nbytes: int) -> Tuple[int, int]:
        """Address and size of the pages in which a part of the region lies."""
        first = (self.address + offset) // PAGE * PAGE
        return first, -(-(self.address + offset + nbytes - first) // PAGE) * PAGE

    def __del__(self) -> None:
        span = getattr(self, "_span", None)
        if span is not None:
            del _live[span[0]]
            _munmap(span[0], span[1])


# The mapped windows by address, for the handler
_live: Dict[int, List[int]] = {}
# The descriptor, in the stub's process once it is open
_pagemap = -1


def _page_faults() -> int:
    """How many page faults this process has had.

    While the count stays, no page of a private mapping has become its own. Only a write from outside, by a debugger,
    causes no fault of this process.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt


@functools.lru_cache(maxsize=None)
def _faults_are_counted() -> bool:
    """Whether the kernel counts page faults; one that only looks like Linux may not."""
    with mmap.mmap(-1, PAGE) as page:
        before = _page_faults()
        page[0] = 1
        return _page_faults() > before


def _written(start: int, size: int) -> bool:
    """Whether this process has pages of its own in a private mapping of a file; True if that is not known."""
    global _pagemap
    try:
        if _pagemap < 0:
            _pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        entries = np.frombuffer(os.pread(_pagemap, size // PAGE * 8, start // PAGE * 8), np.uint64)
    except OSError:
        return True
    # The three highest bits: whether the page is there, whether it is swapped out, and whether it is the file's
    kinds = entries >> np.uint64(61)
    return len(kinds) < size // PAGE or bool(((kinds != 0) & (kinds & np.uint64(1) == 0)).any())


class _Action(ctypes.Structure):
    """`struct sigaction` of Linux's C libraries."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_SA_SIGINFO = 4
# Where in `siginfo_t` the address is
_SI_ADDR = 16
_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, use_errno=True)
_before = _Action()
_installed = False
_sigaction = _libc.sigaction
_sigaction.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]


def _on_sigbus(number: int, info: int, context: int) -> None:
    """Puts zeros in place of missing pages, from the accessed page to the end of its mapping."""
    address = ctypes.c_size_t.from_address(info + _SI_ADDR).value
    for span in list(_live.values()):
        start, size, _ = span
        if start <= address < start + size:
            page = address // PAGE * PAGE
            span[2] = 1
            if _mmap(page, start + size - page, _READ_WRITE, _ANONYMOUS | _MAP_FIXED, -1, 0) != _FAILED:
                return
    # Not an address of ours: the previous handler is installed again, and the instruction is repeated.
    _sigaction(number, ctypes.addressof(_before), None)


_handler = _Handler(_on_sigbus)


def _catch_sigbus() -> None:
    global _installed
    if not _installed:
        action = _Action(handler=ctypes.cast(_handler, ctypes.c_void_p), flags=_SA_SIGINFO)
        if _sigaction(signal.SIGBUS, ctypes.addressof(action), ctypes.addressof(_before)):
            raise RegionGone("it cannot be guarded: " + os.strerror(ctypes.get_errno()))
        _installed = True
