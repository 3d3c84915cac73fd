"""A pool of a device's memory that a process hands out and other processes map.

The arena's allocator cuts the blocks, over addresses that reach to the pool's limit (`window`). A chunk of memory is
made when a block first needs it. So a pool takes from the device what its blocks needed at once, rounded up to chunks,
and never more than its limit. It keeps what it has until it is closed, as Triton's pool does.

- The descriptor of each chunk is exported once, when the chunk is made. `new_chunks` hands it out once.
- A block begins at a multiple of 256 bytes, as what libraries of CUDA expect of memory.
- A block may be freed only when all work that reads or writes it is done: the next block there is another tensor's.

Not safe for threads. Blocks cost about what they cost in the arena.
"""

from __future__ import annotations

import os
from typing import Dict, List, NamedTuple, Sequence, Tuple

from stubserve_stub.device.cuda import Device
from stubserve_stub.device.driver import OutOfDeviceMemory
from stubserve_stub.device.window import Window
from stubserve_stub.wire.allocator import Allocator
from stubserve_stub.wire.budget import ArenaFull

ALIGNMENT = 256
CHUNK_BYTES = 32 << 20


class PoolFull(ArenaFull):
    """There is no room in a pool; the text says what holds its memory, and what to do."""


class PoolStatistics(NamedTuple):
    """All in bytes: the limit, what is taken from the device, what is handed out; and the last by its holder."""

    limit: int
    mapped: int
    held: int
    holders: Dict[str, int]


class Pool:
    """Memory of `device`: at most `limit` bytes, rounded down to whole chunks, but at least one. Raises DriverError.

    Devices among `readers` may use it, too; they must be peers of `device`.
    """

    def __init__(self, device: Device, limit: int, chunk_bytes: int = CHUNK_BYTES, readers: Sequence[int] = ()) -> None:
        unit = max(device.granularity, 1)
        chunk_bytes = max(min(chunk_bytes, limit) // unit, 1) * unit
        self.window = Window(device, max(limit // chunk_bytes, 1) * chunk_bytes, chunk_bytes, readers)
        self._number = device.facts.number
        self._device = device
        self._allocator = Allocator(_Room(self.window.span), 0, retain=0, skip=0)
        # What is handed out: offset -> (bytes, holder)
        self._blocks: Dict[int, Tuple[int, str]] = {}
        self._new_chunks: List[Tuple[int, int]] = []

    def close(self) -> None:
        """Gives up all memory; what others have mapped stays theirs. No work may be under way."""
        for _, descriptor in self.new_chunks():
            os.close(descriptor)
        self.window.close()

    def allocate(self, nbytes: int, holder: str) -> int:
        """The offset of a block of at least `nbytes`; `holder` says in errors what has it. Raises PoolFull."""
        size = max((nbytes + ALIGNMENT - 1) // ALIGNMENT, 1) * ALIGNMENT
        try:
            offset = self._allocator.allocate(size)
        except ArenaFull:
            raise PoolFull(self._no_room(nbytes), nbytes) from None
        try:
            for index in self.window.missing(offset, size):
                self._new_chunks.append((index, self.window.make(index)))
        except OutOfDeviceMemory as error:
            self._allocator.free(offset)
            raise PoolFull(self._no_memory(nbytes, error)) from None
        except BaseException:
            self._allocator.free(offset)
            raise
        self._blocks[offset] = nbytes, holder
        return offset

    def free(self, offset: int) -> None:
        """Takes a block back. Raises KeyError if it is not handed out."""
        del self._blocks[offset]
        self._allocator.free(offset)

    def new_chunks(self) -> List[Tuple[int, int]]:
        """(number, file descriptor) of each chunk that was made since the last call; the caller closes the latter."""
        found, self._new_chunks = self._new_chunks, []
        return found

    def statistics(self) -> PoolStatistics:
        holders: Dict[str, int] = {}
        for nbytes, holder in self._blocks.values():
            holders[holder] = holders.get(holder, 0) + nbytes
        held = sum(holders.values())
        return PoolStatistics(self.window.span, self.window.mapped_bytes, held, holders)

    def _no_room(self, nbytes: int) -> str:
        return (
            "no room for {} bytes in the pool of GPU {}, which has {} bytes; {}. "
            "Raise --cuda-memory-pool-byte-size={}:BYTES".format(
                nbytes, self._number, self.window.span, self._held(), self._number
            )
        )

    def _no_memory(self, nbytes: int, error: OutOfDeviceMemory) -> str:
        return "no room for {} bytes: GPU {} has {} of its {} bytes left. {}. Of the pool, {}".format(
            nbytes, self._number, self._device.free_memory(), self._device.facts.memory, error, self._held()
        )

    def _held(self) -> str:
        holders = sorted(self.statistics().holders.items(), key=lambda item: -item[1])
        if not holders:
            return "nothing is in use"
        shown = ", ".join("{} has {}".format(*one) for one in holders[:5])
        return shown + (", and {} more".format(len(holders) - 5) if len(holders) > 5 else "")


class _Room:
    """A pool's addresses, as its allocator wants them. Memory that turns cold stays mapped."""

    index = 0
    start = 0

    def __init__(self, span: int) -> None:
        self.span = self.limit = span

    def segment(self, index: int) -> "_Room":
        return self

    def commit(self, index: int, nbytes: int) -> None:
        """Counts nothing: the addresses end where the limit does."""

    def uncommit(self, index: int, nbytes: int) -> None:
        """Counts nothing."""

    def release_pages(self, offset: int, nbytes: int) -> None:
        """Gives nothing back."""
