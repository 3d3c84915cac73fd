"""Where the bytes of a tensor are: one vocabulary for parent and stub.

The bytes themselves are a place, too: a small tensor travels inside its message, as msgpack's own binary type, without
an object and without a tag. Every other place is a tuple that begins with its tag, and goes into a message as it is::

    inline    bytes                                           the tensor itself, up to INLINE_BYTES
    InArena   (1, offset, nbytes)                             memory of the arena that belongs to this tensor alone
    Shared    (2, offset, nbytes)           parent ▶ stub     memory of the arena that others read too: nobody writes
    Lent      (3, offset, nbytes, within)   stub ▶ parent     memory that the stub was given, as the input or answer
                                                              that begins at `within`
    InRegion  (4, region, offset, nbytes)                     inside a client's own memory, registered under a number
    OnDevice  (5, offset, nbytes, shared)                     in a pool of a GPU's memory; `shared` (1, else 0): nobody
                                                              writes
    AsList    (7, elements)                                   no place: strings one by one (`are_listed`)
    Zeros     (8, nbytes)             parent ▶ stub     no place: what an empty slot of a batch is given (`zeros`)

Offsets and sizes are bytes, from the beginning of the arena or of the region. Behind all of the arena each pool of a
GPU's memory has POOL_SPAN offsets of its own. So an offset tells memory of the host from memory of a GPU, and frees,
held inputs and lent memory need no other form for GPUs.
"""

from __future__ import annotations

import mmap
from typing import Any, Dict, NamedTuple, Sequence, Tuple, Type, Union

import numpy as np

from stubserve_stub.wire.layout import INLINE_BYTES, LISTED_STRINGS

ARENA = 1
SHARED = 2
LENT = 3
REGION = 4
DEVICE = 5
LIST = 7
ZEROS = 8

# The offsets of pools: of number n from DEVICE_BASE + n * POOL_SPAN on. Offsets of regions begin at 1 << 62.
DEVICE_BASE = 1 << 61
POOL_SPAN = 1 << 39
POOLS = DEVICE_BASE // POOL_SPAN


class _ArenaFields(NamedTuple):
    tag: int
    offset: int
    nbytes: int


class _LentFields(NamedTuple):
    tag: int
    offset: int
    nbytes: int
    within: int


class _RegionFields(NamedTuple):
    tag: int
    region: int
    offset: int
    nbytes: int


class _DeviceFields(NamedTuple):
    tag: int
    offset: int
    nbytes: int
    shared: int


class _ListFields(NamedTuple):
    tag: int
    elements: Sequence[bytes]


class _ZerosFields(NamedTuple):
    tag: int
    nbytes: int


class InArena(_ArenaFields):
    """Memory of the arena that belongs to one tensor alone: the reader of the tensor may write to it."""

    __slots__ = ()

    def __new__(cls, offset: int, nbytes: int) -> InArena:
        return super().__new__(cls, ARENA, offset, nbytes)


class Shared(_ArenaFields):
    """Memory of the arena with several readers: a model that looks at it gets a copy."""

    __slots__ = ()

    def __new__(cls, offset: int, nbytes: int) -> Shared:
        return super().__new__(cls, SHARED, offset, nbytes)


class Lent(_LentFields):
    """Memory, or a part of it, that a stub was given as the input or answer that begins at `within`."""

    __slots__ = ()

    def __new__(cls, offset: int, nbytes: int, within: int) -> Lent:
        return super().__new__(cls, LENT, offset, nbytes, within)


class InRegion(_RegionFields):
    """A piece of shared memory that a client has registered; `region` is the server's number for it."""

    __slots__ = ()

    def __new__(cls, region: int, offset: int, nbytes: int) -> InRegion:
        return super().__new__(cls, REGION, region, offset, nbytes)


class OnDevice(_DeviceFields):
    """Memory of a GPU, in the pool of a stub. Where it is `shared`, a model that looks at it gets a copy."""

    __slots__ = ()

    def __new__(cls, offset: int, nbytes: int, shared: int = 0) -> OnDevice:
        return super().__new__(cls, DEVICE, offset, nbytes, shared)


class AsList(_ListFields):
    """The elements of a tensor of BYTES."""

    __slots__ = ()

    def __new__(cls, elements: Sequence[bytes]) -> AsList:
        return super().__new__(cls, LIST, elements)

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.elements)) + 4 * len(self.elements)


class Zeros(_ZerosFields):
    """Zeros, without memory."""

    __slots__ = ()

    def __new__(cls, nbytes: int) -> Zeros:
        return super().__new__(cls, ZEROS, nbytes)


Place = Union[bytes, InArena, Shared, Lent, InRegion, OnDevice, AsList, Zeros]

# By the tag and the types of all fields, because a message may hold anything
_CLASSES: Dict[Tuple[int, Tuple[type, ...]], Type[Any]] = {
    (ARENA, (int,) * 3): InArena,
    (SHARED, (int,) * 3): Shared,
    (LENT, (int,) * 4): Lent,
    (REGION, (int,) * 4): InRegion,
    (DEVICE, (int,) * 4): OnDevice,
    (LIST, (int, tuple)): AsList,
    (ZEROS, (int, int)): Zeros,
}


def unpack(wire: Any) -> Place:
    """The place in an unpacked message. Raises ValueError for anything else."""
    if type(wire) is bytes:
        return wire
    if type(wire) is tuple and wire and type(wire[0]) is int:
        found = _CLASSES.get((wire[0], tuple(map(type, wire))))
        if found is AsList:
            fits = list(map(type, wire[1])).count(bytes) == len(wire[1])
        else:
            fits = found is not None and min(wire) >= 0
        if found is not None and fits:
            place: Place = tuple.__new__(found, wire)
            return place
    raise ValueError(f"no place of a tensor: {wire!r}")


def are_listed(count: int, nbytes: int) -> bool:
    """Whether a tensor of `count` strings, `nbytes` in all with their lengths, goes into a message string by string.

    That saves joining and splitting them. Each is an object for as long as its message is kept.
    """
    return 1 < count <= LISTED_STRINGS and nbytes <= INLINE_BYTES


def refusal(place: Place) -> str:
    """Why memory of this kind cannot be used here, as a text for people; empty if it can."""
    if isinstance(place, InRegion):
        return f"lies in a client's shared memory (region {place.region}), of which nobody has told"
    if isinstance(place, OnDevice):
        return "lies in memory of a GPU, which cannot be read here"
    if isinstance(place, AsList):
        return "is a list of strings, which only a tensor of BYTES may be"
    if isinstance(place, Zeros):
        return "is zeros that lie nowhere, which only inputs of empty slots may be"
    return ""


class ZeroPages(np.ndarray):
    """Zeros of uint8. To copy them into memory that is zeros already, they need not be read."""


def zeros(nbytes: int) -> Union[bytes, ZeroPages]:
    """So many zeros for one reader. It may write to them where they are many; only writing takes memory.

    Unwritten pages of a private mapping are all the kernel's one page of zeros; the heap's may have to be cleared.
    """
    if nbytes <= INLINE_BYTES:
        return bytes(nbytes)
    return np.frombuffer(mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE), np.uint8).view(ZeroPages)
