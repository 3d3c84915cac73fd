"""Blocks of shared memory: made, lent, given back by the death of the last array, dropped.

A block is one file in /dev/shm, mapped here and registered with the server as a region of the same name. The pool does
not talk to the server. It says which names the server has yet to forget (`next_leaving`), and is told what the server
knows (`registered`, `lost`). So the same pool serves HTTP and gRPC, with and without asyncio.

Guarantees:

- A block is lent to one holder at a time. It is free again when the last array that views it is gone, in whatever
  thread. Nothing has to be given back, and an array is never overwritten behind its holder's back.
- A file has its name until the server has the file open (`registered`). From then on only mappings keep it, so a killed
  process leaves nothing in /dev/shm. What a kill leaves between the two moments, the next pool removes (`owner.sweep`).
- The blocks of a pool never pass its limit, those included that somebody still views. Their memory is committed when
  they are made: a full /dev/shm is an error then, and no SIGBUS later.
- A block that the server may still use, because its request ended without an answer, is not lent again (`spoiled`).

Costs. A new block costs the zeroing of its pages and one call of the server, and sizes are rounded up by an eighth at
most. A free block lends itself to what is at least half its size. Blocks that nobody wanted for `idle_s` are dropped
when the next one is asked for; there is no thread and no timer.

A loan may end at any moment, within a garbage collection in the middle of this module too. So it takes no lock: its
block goes to a deque, and is looked at when the next block is asked for.
"""

from __future__ import annotations

import contextlib
import logging
import math
import mmap
import os
import threading
import time
from collections import deque
from typing import Any

import numpy as np

from stubserve.client import owner

log = logging.getLogger("stubserve.client")


class SharedBlock:
    """One file of `nbytes` bytes. OSError if it cannot be had."""

    def __init__(self, nbytes: int, generation: int) -> None:
        self.name = owner.new_name()
        self.nbytes = nbytes
        self.generation = generation
        self.known = False
        self.spoiled = False
        self.free_since = 0.0
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, nbytes)
            self._memory = mmap.mmap(descriptor, nbytes)
        except BaseException:
            self.unlink()
            raise
        finally:
            os.close(descriptor)
        self.address = int(np.frombuffer(self._memory, np.uint8).ctypes.data)

    @property
    def path(self) -> str:
        return f"{owner.FOLDER}/{self.name}"

    def unlink(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)


class BlockLoan:
    """A block that is lent: the base of all arrays in it. When the last one is gone, so is the loan."""

    def __init__(self, block: SharedBlock, returned: deque[SharedBlock]) -> None:
        self.block = block
        self._returned = returned

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "shape": (self.block.nbytes,), "typestr": "|u1", "data": (self.block.address, False)}

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """The beginning of the block as an array, which keeps the loan."""
        nbytes = math.prod(shape) * dtype.itemsize
        return np.asarray(self)[:nbytes].view(dtype).reshape(shape)

    def offset_of(self, array: np.ndarray) -> int:
        """Where an array begins in the block, in bytes; 0 for an array elsewhere, whose copy is in the block."""
        return int(array.ctypes.data) - self.block.address if loan_of(array) is self else 0

    def __del__(self) -> None:
        self._returned.append(self.block)


def loan_of(array: np.ndarray) -> BlockLoan | None:
    """The loan that an array is a view of."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, BlockLoan) else None


class BlockPool:
    """The blocks of one client. `limit` is in bytes; all methods may be called from any thread."""

    def __init__(self, limit: int, idle_s: float = 60.0) -> None:
        self._limit = limit
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._returned: deque[SharedBlock] = deque()
        # Under the lock
        self._blocks: set[SharedBlock] = set()
        self._free: list[SharedBlock] = []  # the one that was used last comes last
        self._nbytes = 0
        self._generation = 0
        self._leaving: deque[str] = deque()
        self._told = False
        owner.sweep()

    def lend(self, nbytes: int) -> BlockLoan | None:
        """A block of at least `nbytes`; None if the limit, or /dev/shm, has no room for it."""
        with self._lock:
            self._look_at_returned()
            fitting = [block for block in self._free if nbytes <= block.nbytes <= 2 * nbytes]
            if fitting:
                block = min(reversed(fitting), key=lambda block: block.nbytes)
                self._free.remove(block)
                return BlockLoan(block, self._returned)
            size = _rounded(nbytes)
            while self._free and self._nbytes + size > self._limit:
                self._drop(self._free.pop(0))
            if self._nbytes + size > self._limit:
                return None
            self._nbytes += size
            generation = self._generation
        try:
            block = SharedBlock(size, generation)
        except OSError as error:
            self._tell(f"{owner.FOLDER} has no room for {size} bytes more ({error.strerror})")
            with self._lock:
                self._nbytes -= size
            return None
        with self._lock:
            self._blocks.add(block)
        return BlockLoan(block, self._returned)

    def usable(self, block: SharedBlock) -> bool:
        """Whether a block may be named to the server: it is this pool's, and the server has not lost it."""
        with self._lock:
            return block in self._blocks and block.generation == self._generation and not block.spoiled

    def registered(self, block: SharedBlock) -> None:
        """The server has the block's file open, so its name goes."""
        block.known = True
        block.unlink()

    def refused(self, block: SharedBlock) -> None:
        """The server did not take the block, or did not say so."""
        block.spoiled = True
        block.unlink()
        with self._lock:
            self._leaving.append(block.name)

    def lost(self, generation: int) -> None:
        """The server does not know a block of this generation any more: it has been restarted, or made to forget."""
        with self._lock:
            if generation != self._generation:
                return
            self._generation += 1
            self._look_at_returned()
            while self._free:
                self._drop(self._free.pop())

    def next_leaving(self) -> str | None:
        """A name that the server has yet to forget."""
        with self._lock:
            return self._leaving.popleft() if self._leaving else None

    def leave(self, name: str) -> None:
        """The server could not forget it yet."""
        with self._lock:
            self._leaving.append(name)

    def close(self) -> None:
        """Drops all blocks. What is lent stays valid until its last array is gone."""
        with self._lock:
            self._limit = 0
            self._free.clear()
            for block in list(self._blocks):
                self._drop(block)

    def counts(self) -> tuple[int, int, int]:
        """Blocks, how many of them are lent, and the bytes of all."""
        with self._lock:
            self._look_at_returned()
            return len(self._blocks), len(self._blocks) - len(self._free), self._nbytes

    def _look_at_returned(self) -> None:
        now = time.monotonic()
        while self._returned:
            block = self._returned.popleft()
            if block not in self._blocks:
                continue
            if block.spoiled or not block.known or block.generation != self._generation:
                self._drop(block)
            else:
                block.free_since = now
                self._free.append(block)
        while self._free and now - self._free[0].free_since > self._idle_s:
            self._drop(self._free.pop(0))

    def _drop(self, block: SharedBlock) -> None:
        """Lets go of a block. The memory goes when nobody here has it mapped, and the server has forgotten it."""
        self._blocks.remove(block)
        self._nbytes -= block.nbytes
        if block.known:
            self._leaving.append(block.name)
        else:
            block.unlink()

    def _tell(self, why: str) -> None:
        """Once"""
        if not self._told:
            self._told = True
            log.warning("some tensors go over the wire: %s", why)


def _rounded(nbytes: int) -> int:
    """Up to whole pages, and to an eighth of a power of two."""
    step = max(mmap.PAGESIZE, 1 << max(0, nbytes.bit_length() - 4))
    return -(-nbytes // step) * step
