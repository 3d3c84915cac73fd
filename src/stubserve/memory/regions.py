"""Clients' shared memory as requests know it: regions that clients have registered, and pieces of them.

A request keeps the regions that it refers to. Unregistering removes a region only from the list; its memory goes when
the last request is over. The server reads and writes a region through its descriptor, never through a mapping: if the
client has shrunk the region, the server gets a short read, and no SIGBUS.
"""

# Compiled by mypyc.
from __future__ import annotations

from typing import NamedTuple, Protocol

from stubserve_stub.wire.places import InRegion, Place

from stubserve.errors import ServeError, invalid, not_found, unsupported
from stubserve.memory.blocks import Block, Span

# Offsets of regions begin here. The arena ends far below, so the two cannot be confused.
REGION_BASE = 1 << 62
_NO_MEMORY = memoryview(b"")


class Region(Protocol):
    """A region that a client has registered. Stubs know it by `number`; offsets count from its beginning.

    Stubs map the `nbytes` from `start` on in the file behind `descriptor`, which is open for reading and writing. One
    that is `on_device` has no file: only the server reads and writes it, and that may block.
    """

    @property
    def on_device(self) -> bool: ...

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
        """Fills the memory with the region's bytes. Raises ServeError."""

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Raises ServeError."""


class RegionPlace(NamedTuple):
    """`nbytes` of a region, as a request names them."""

    region: Region
    offset: int
    nbytes: int

    def read(self) -> memoryview:
        """The current bytes. Raises ServeError."""
        data = memoryview(bytearray(self.nbytes))
        self.region.read(self.offset, data)
        return data


class RegionSpan(Span):
    """A piece of a region that is an input. Each model has a private view of it, so it counts as shared."""

    __slots__ = ("place",)

    def __init__(self, place: RegionPlace) -> None:
        super().__init__(Block(REGION_BASE, 0, _NO_MEMORY, _released), REGION_BASE + place.offset, place.nbytes)
        self.place = place
        self.shared = True

    def read(self, offset: int, nbytes: int) -> bytes | memoryview:
        return RegionPlace(self.place.region, offset - REGION_BASE, nbytes).read()

    def as_place(self, offset: int, nbytes: int) -> Place:
        return InRegion(self.place.region.number, offset - REGION_BASE, nbytes)


def _released(block: Block) -> None:
    """Frees nothing: the block is not in the arena."""


# What is refused, in upstream's words


def disabled() -> ServeError:
    return unsupported("Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.")


def no_gpu(name: str) -> ServeError:
    return invalid(f"failed to register CUDA shared memory region: '{name}', GPUs not supported")


def unknown_system(name: str) -> ServeError:
    return not_found(f"Unable to find system shared memory region: '{name}'")


def unknown_cuda(name: str) -> ServeError:
    """The refusal of an unknown region of GPU memory."""
    return not_found(f"Unable to find cuda shared memory region: '{name}'")
