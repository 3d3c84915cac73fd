"""A stub's view of the arena: it can read all that it maps, and write only where it has to.

A model runs native code, and native code writes past the end of arrays. So the pages of a stub are protected:

- its own segment: it can write to its own half, and read the parent's half;
- other memory (ingress, other stubs' outputs) is read-only, except for tensors that are the model's own: their pages
  are writable while it has them.

A stray write anywhere else is a SIGSEGV in the process of the model that made it, at the line that made it.

Costs: two system calls for each input in the arena outside the stub's own segment, 20 µs together and another 10 µs for
each megabyte; and as much again where the processor has to look up pages again.
"""

from __future__ import annotations

import errno
import mmap
import threading
from typing import Any, Dict, List

from stubserve_stub.wire import layout
from stubserve_stub.wire.arena import Arena, Segment
from stubserve_stub.wire.budget import Grant
from stubserve_stub.wire.layout import PAGE

_NOTHING = 0
_READ = mmap.PROT_READ
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE


class StubArena(Arena):
    """The arena behind an inherited descriptor, for the stub that writes segment `own`.

    `facts` are the parent's `Arena.facts()`, `grant` is the account of what the stub may commit. Safe on any thread,
    but not in a finalizer. Raises RuntimeError if the arena's layout is of another version.
    """

    def __init__(self, fd: int, facts: Dict[str, Any], own: int, grant: Grant) -> None:
        if facts["version"] != layout.WIRE_VERSION:
            raise RuntimeError(
                f"the server speaks wire version {facts['version']}, this stub {layout.WIRE_VERSION}: they are of "
                "different releases"
            )
        super().__init__(fd, facts["limit"], facts["span"], grant)
        self.grant = grant
        self.own = own
        self._changing = threading.Lock()
        # Writable memory by its offset: how often it was made writable, and the largest size
        self._writable: Dict[int, List[int]] = {}
        # By the number of a page: how many of these begin or end in it, because neighbours share it
        self._shared_pages: Dict[int, int] = {}
        # Whether the kernel has refused so many separate mappings
        self._open = False

    def make_writable(self, offset: int, nbytes: int) -> None:
        """Lets the model write to memory that it has been given, until `make_read_only`."""
        index = offset // self.span
        if index == self.own:
            return
        segment = self.segment(index)
        with self._changing:
            entry = self._writable.get(offset)
            if entry is not None:
                entry[0] += 1
                if nbytes <= entry[1]:
                    return
                self._count_edges(offset, entry[1], -1)
                entry[1] = nbytes
            else:
                self._writable[offset] = [1, nbytes]
            self._count_edges(offset, nbytes, 1)
            self._protect(segment, offset // PAGE, (offset + nbytes - 1) // PAGE, _READ_WRITE)

    def make_read_only(self, offset: int) -> None:
        """Undoes one `make_writable` of this offset; does nothing if there was none."""
        if offset not in self._writable:
            return
        with self._changing:
            entry = self._writable[offset]
            entry[0] -= 1
            if entry[0]:
                return
            del self._writable[offset]
            first, last = offset // PAGE, (offset + entry[1] - 1) // PAGE
            self._count_edges(offset, entry[1], -1)
            if first in self._shared_pages:
                first += 1
            if last >= first and last in self._shared_pages:
                last -= 1
            if first <= last:
                self._protect(self.segment(offset // self.span), first, last, _READ)

    def _count_edges(self, offset: int, nbytes: int, change: int) -> None:
        pages = self._shared_pages
        for page in {offset // PAGE, (offset + nbytes - 1) // PAGE}:
            count = pages.get(page, 0) + change
            if count:
                pages[page] = count
            else:
                del pages[page]

    def _protect(self, segment: Segment, first: int, last: int, protection: int) -> None:
        if self._open:
            return
        try:
            segment.protect(first * PAGE - segment.start, (last - first + 1) * PAGE, protection)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            # The model keeps tens of thousands of tensors, each a mapping by now, and the kernel has a limit.
            self._open = True
            for other in self._segments.values():
                if other.index != self.own:
                    other.protect(0, other.span, _READ_WRITE)

    def _map(self, index: int) -> Segment:
        segment = Segment(self.fd, index, index * self.span, self.span)
        if index == self.own:
            segment.protect(0, layout.GUARD_BYTES, _NOTHING)
            segment.protect(layout.PARENT_WORDS, layout.STUB_WORDS - layout.PARENT_WORDS, _READ)
            segment.protect(layout.HEAP_GUARD, layout.GUARD_BYTES, _NOTHING)
            segment.parent_words = segment.parent_words.toreadonly()
        elif not self._open:
            segment.protect(0, segment.span, _READ)
        return segment
