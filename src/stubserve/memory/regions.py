"""Clients' shared memory as requests know it: regions that clients have registered, and pieces of them.

A request that refers to a region keeps it, as an object keeps another: whoever unregisters it meanwhile takes it from
the list, and its memory goes when the last request is over. What the server itself wants of a region it reads and
writes through its descriptor, never through a mapping: a region that its client has made smaller is a short read then,
and nobody's SIGBUS.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from stubserve_stub.wire.places import InRegion

from stubserve.memory.blocks import Block, Span

# Where regions begin among offsets: the arena ends far before, so that neither is ever taken for the other.
REGION_BASE = 1 << 62
_NO_MEMORY = memoryview(b"")


class Region(Protocol):
    """A region that a client has registered. Stubs know it by `number`; offsets count from its beginning.

    `descriptor` is open for reading and writing; the region is `nbytes` from `start` on in it.
    """

    @property
    def name(self) -> str: ...

    @property
    def number(self) -> int: ...

    @property
    def descriptor(self) -> int: ...

    @property
    def start(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def read(self, offset: int, into: memoryview) -> None:
        """Fills the memory with what is there. Raises ServeError."""

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Raises ServeError."""


class RegionPlace(NamedTuple):
    """`nbytes` of a region, as a request names them."""

    region: Region
    offset: int
    nbytes: int

    def read(self) -> memoryview:
        """What is there now. Raises ServeError."""
        data = memoryview(bytearray(self.nbytes))
        self.region.read(self.offset, data)
        return data


class RegionSpan(Span):
    """A piece of a region that is an input. A model that looks at it has a private view, so it counts as shared."""

    __slots__ = ("place",)

    def __init__(self, place: RegionPlace) -> None:
        super().__init__(Block(REGION_BASE, 0, _NO_MEMORY, _released), REGION_BASE + place.offset, place.nbytes)
        self.place = place
        self.shared = True

    def read(self, offset: int, nbytes: int) -> bytes | memoryview:
        return RegionPlace(self.place.region, offset - REGION_BASE, nbytes).read()

    def in_region(self, offset: int, nbytes: int) -> InRegion | None:
        return InRegion(self.place.region.number, offset - REGION_BASE, nbytes)


def _released(block: Block) -> None:
    """Nothing of the arena is freed with it."""
