"""The allocator of one segment's heap: private to the process that writes the segment, so it needs no lock.

Memory is in one of three states:

- *live*: handed out.
- *warm*: free but still committed, by size class, last in first out: the next tensor of that size gets pages that are
  mapped and in the cache. Allocating from here is two dictionary operations.
- *cold*: free address space, given back to the system, coalesced with its neighbours; first fit.

A freed block becomes warm. When the warm blocks together pass `retain` bytes, the oldest large ones become cold
(MADV_REMOVE). Blocks up to `SMALL` are cut from slabs and always stay warm, because they are few.

A block may also be *reserved*: handed out as address space, of which `grow` commits what its holder is about to touch.
So a client that only announces many bytes takes none from others.

Size classes have sixteen steps per doubling, so a block wastes at most 1/16 of its size; blocks above SMALL are whole
pages. Costs: about 0.4 µs per pair of `allocate` and `free` when warm; a new large block costs its page faults. Frees
are by offset; freeing what is not handed out raises KeyError.
"""

from __future__ import annotations

from typing import Dict, List, Protocol, Tuple

from stubserve_stub.wire.budget import ArenaFull, NotGranted
from stubserve_stub.wire.layout import ALIGNMENT, HEAP, PAGE

SMALL = 4 * 1024
SLAB = 32 * 1024


def size_class(nbytes: int) -> int:
    """The size of the block that holds `nbytes`: a multiple of 64, above SMALL whole pages."""
    step = max(nbytes.bit_length() - 5, 12 if nbytes > SMALL else 6)
    return max((nbytes + (1 << step) - 1) >> step << step, ALIGNMENT)


class Extent(Protocol):
    """A part of some memory: `span` bytes from `start` on. Cold bytes are given back by `release_pages`."""

    index: int
    start: int
    span: int

    def release_pages(self, offset: int, nbytes: int) -> None: ...


class Backing(Protocol):
    """What blocks are cut from: the arena, or a pool of a GPU's memory. `commit` raises ArenaFull over the limit."""

    limit: int

    def segment(self, index: int) -> Extent: ...

    def commit(self, index: int, nbytes: int) -> None: ...

    def uncommit(self, index: int, nbytes: int) -> None: ...


class Allocator:
    """Hands out blocks of segment `index`, whose heap begins `skip` bytes into the segment."""

    def __init__(self, arena: Backing, index: int, retain: int, skip: int = HEAP) -> None:
        self._arena = arena
        self._segment = arena.segment(index)
        self._retain = retain
        self._live: Dict[int, int] = {}
        # For reserved blocks: how many bytes, from their start on, are committed
        self._growing: Dict[int, int] = {}
        self._warm: Dict[int, Dict[int, None]] = {}
        self._warm_large: Dict[int, int] = {}
        self._warm_large_bytes = 0
        # Cold extents as (start, size), ascending; short, because neighbours coalesce
        self._cold: List[Tuple[int, int]] = [(self._segment.start + skip, self._segment.span - skip)]

    @property
    def live_bytes(self) -> int:
        return sum(self._live.values())

    @property
    def live_blocks(self) -> int:
        return len(self._live)

    @property
    def warm_bytes(self) -> int:
        return sum(size * len(blocks) for size, blocks in self._warm.items())

    def allocate(self, nbytes: int) -> int:
        """The arena offset of a block of at least `nbytes`, 64-byte aligned. Raises ArenaFull."""
        size = size_class(nbytes)
        blocks = self._warm.get(size)
        if not blocks:
            if size <= SMALL:
                blocks = self._cut_slab(size)
            else:
                offset = self._from_cold(size)
                self._live[offset] = size
                return offset
        offset, _ = blocks.popitem()
        if size > SMALL:
            self._warm_large_bytes -= self._warm_large.pop(offset)
        self._live[offset] = size
        return offset

    def reserve(self, nbytes: int) -> int:
        """The arena offset of a block as from `allocate`; its memory may be touched only after `grow`.

        Raises ArenaFull if there is no address space for it, or could never be memory.
        """
        size = size_class(nbytes)
        if size > self._arena.limit:
            raise ArenaFull(
                f"no room for {nbytes} bytes in shared memory, which has {self._arena.limit} in all; raise --shm-limit"
            )
        if size <= SMALL or self._warm.get(size):
            return self.allocate(nbytes)
        offset = self._cut(size)
        self._live[offset] = size
        self._growing[offset] = 0
        return offset

    def committed(self, offset: int) -> int:
        """How many of a block's bytes may be touched, from its start on."""
        return self._growing.get(offset, self._live[offset])

    def grow(self, offset: int, nbytes: int) -> int:
        """Commits at least the first `nbytes` of a block; how many of its bytes are. Raises ArenaFull."""
        size = self._live[offset]
        committed = self._growing.get(offset, size)
        if nbytes > committed:
            wanted = (nbytes + PAGE - 1) // PAGE * PAGE
            if size - wanted <= size // 16:
                # The rest may be no more than its size class adds; and only a whole block can become warm.
                wanted = size
            self.commit(wanted - committed)
            committed = self._growing[offset] = wanted
        if committed == size:
            self._growing.pop(offset, None)
        return committed

    def shrink(self, offset: int, nbytes: int) -> None:
        """Shrinks a block of whole pages to `nbytes`; the rest becomes free. Raises ArenaFull."""
        size = self._live[offset]
        wanted = max(size_class(nbytes), SMALL + PAGE)
        if wanted < size:
            committed = self.grow(offset, wanted)
            self._growing.pop(offset, None)
            if committed > wanted:
                self._segment.release_pages(offset + wanted, committed - wanted)
                self.uncommit(committed - wanted)
            self._live[offset] = wanted
            self._insert_cold(offset + wanted, size - wanted)

    def free(self, offset: int) -> None:
        """Takes a block back. Raises KeyError if it is not handed out."""
        size = self._live.pop(offset)
        if offset in self._growing:
            committed = self._growing.pop(offset)
            if committed:
                self._segment.release_pages(offset, committed)
                self.uncommit(committed)
            self._insert_cold(offset, size)
            return
        blocks = self._warm.get(size)
        if blocks is None:
            blocks = self._warm[size] = {}
        blocks[offset] = None
        if size > SMALL:
            self._warm_large[offset] = size
            self._warm_large_bytes += size
            while self._warm_large_bytes > self._retain:
                self._cool(next(iter(self._warm_large)))

    def trim(self) -> None:
        """Gives every large warm block back to the system."""
        while self._warm_large:
            self._cool(next(iter(self._warm_large)))

    def _cut_slab(self, size: int) -> Dict[int, None]:
        start = self._from_cold(SLAB)
        blocks = self._warm.setdefault(size, {})
        for offset in range(start + (SLAB // size - 1) * size, start - 1, -size):
            blocks[offset] = None
        return blocks

    def commit(self, nbytes: int) -> None:
        """Counts bytes for this segment; at the limit warm memory makes room. Raises ArenaFull."""
        try:
            self._arena.commit(self._segment.index, nbytes)
        except NotGranted:
            raise
        except ArenaFull:
            if not self._warm_large:
                raise
            self.trim()
            self._arena.commit(self._segment.index, nbytes)

    def uncommit(self, nbytes: int) -> None:
        self._arena.uncommit(self._segment.index, nbytes)

    def _from_cold(self, size: int) -> int:
        self.commit(size)
        try:
            return self._cut(size)
        except ArenaFull:
            self.uncommit(size)
            raise

    def _cut(self, size: int) -> int:
        for at, (start, free) in enumerate(self._cold):
            if free >= size:
                if free == size:
                    del self._cold[at]
                else:
                    self._cold[at] = (start + size, free - size)
                return start
        raise ArenaFull(
            f"no room for {size} bytes in shared memory: there is no such range in its address space; raise --shm-limit"
        )

    def _cool(self, offset: int) -> None:
        size = self._warm_large.pop(offset)
        self._warm_large_bytes -= size
        blocks = self._warm[size]
        del blocks[offset]
        if not blocks:
            del self._warm[size]
        self._segment.release_pages(offset, size)
        self._arena.uncommit(self._segment.index, size)
        self._insert_cold(offset, size)

    def _insert_cold(self, start: int, size: int) -> None:
        at = 0
        while at < len(self._cold) and self._cold[at][0] < start:
            at += 1
        if at < len(self._cold) and start + size == self._cold[at][0]:
            size += self._cold.pop(at)[1]
        if at and sum(self._cold[at - 1]) == start:
            before, length = self._cold[at - 1]
            self._cold[at - 1] = (before, length + size)
        else:
            self._cold.insert(at, (start, size))


assert SLAB % PAGE == 0
