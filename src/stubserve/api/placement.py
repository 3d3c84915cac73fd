"""Where the tensors of a request lie, and where those of its answer go, as its client wants it.

A tensor of a request lies inside its message, in the body that is in the arena, or it is put there now.

What travels inside a message is kept by the parent's heap until it is answered, and counted nowhere. So of one request
that is no more than MOST_INLINE, beside tensors that are SMALL_BYTES or less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from stubserve_stub.wire import places, strings
from stubserve_stub.wire.datatypes import BYTES, DataType
from stubserve_stub.wire.layout import INLINE_BYTES

from stubserve.errors import not_found
from stubserve.inference.long_work import LARGE_BYTES
from stubserve.inference.tensor import Tensor
from stubserve.memory.blocks import Block, Span
from stubserve.memory.client_regions import ClientRegions
from stubserve.memory.regions import RegionPlace, RegionSpan

# A tensor of this size is always inside its message.
SMALL_BYTES = 1024
MOST_INLINE = INLINE_BYTES

# What upstream takes a datatype for that is none; what becomes of it depends on where the data is.
INVALID_DATATYPE = DataType(0, "<invalid>", "", 0, None)

Store = Callable[["bytes | memoryview"], Block]


class Slot(NamedTuple):
    """How one output goes into the reply; `classification` is the number of classes, 0 for the tensor itself.

    One that goes into a client's `region` is IN_REGION in place of that, and is not in the reply.
    """

    binary: bool
    classification: int
    region: RegionPlace | None = None


IN_REGION = -1


class ReplyFormat(NamedTuple):
    """How the outputs go into the reply: by name in `slots`, or, where that is None, all as `default_binary` says.

    With `empty_final` a stream is told of the end of its responses even where there is nothing else to say.
    """

    slots: dict[str, Slot] | None
    default_binary: bool
    empty_final: bool = False


def regions_of(in_regions: bool, slots: dict[str, Slot] | None) -> dict[str, RegionPlace] | None:
    """`Request.regions` of a request that wants its outputs so; `in_regions` says that inputs lie in such memory."""
    regions = {name: slot.region for name, slot in (slots or {}).items() if slot.region is not None}
    return regions if regions or in_regions else None


class Placer(Protocol):
    """Makes the tensors of a request whose body is `size` bytes. Raises ServeError where there is no room."""

    size: int

    def slice(self, name: str, datatype: int, shape: Sequence[int], at: int, nbytes: int) -> Tensor:
        """The tensor that the body holds from `at` on."""
        ...

    def put(self, name: str, datatype: int, shape: Sequence[int], data: bytes | memoryview) -> Tensor:
        """A tensor of bytes that the body does not hold as they are."""
        ...

    def in_region(
        self, name: str, datatype: int, shape: Sequence[int], region: str, offset: int, nbytes: int
    ) -> Tensor:
        """A tensor of bytes that a client has put into its shared memory."""
        ...

    def output_in_region(self, region: str, offset: int, nbytes: int) -> RegionPlace:
        """Where a client wants an output."""
        ...

    def undo(self) -> None:
        """Lets go of all of them, so that the request can be read once more."""
        ...


class BodyPlacer:
    """A `Placer` for a body that is here: in the arena or not. It remembers the blocks that the tensors hold.

    `regions` is None where clients may not use shared memory.
    """

    __slots__ = ("_block", "_body", "_body_offset", "_held", "_inside", "_regions", "_store", "size")

    def __init__(
        self,
        body: bytes | memoryview,
        block: Block | None,
        body_offset: int,
        store: Store,
        regions: ClientRegions | None = None,
    ) -> None:
        self._regions = regions
        self._body = body
        self._block = block
        self._body_offset = body_offset
        self._store = store
        self._held: list[Block] | None = None
        self._inside = 0
        self.size = len(body)

    def slice(self, name: str, datatype: int, shape: Sequence[int], at: int, nbytes: int) -> Tensor:
        if nbytes <= SMALL_BYTES or self._goes_inside(nbytes):
            return Tensor(name, datatype, shape, bytes(self._body[at : at + nbytes]))
        if self._block is None:
            return self.put(name, datatype, shape, memoryview(self._body)[at : at + nbytes])
        span = Span(self._keep(self._block.hold()), self._body_offset + at, nbytes)
        return Tensor(name, datatype, shape, None, span)

    def put(self, name: str, datatype: int, shape: Sequence[int], data: bytes | memoryview) -> Tensor:
        if len(data) <= SMALL_BYTES or self._goes_inside(len(data)):
            return Tensor(name, datatype, shape, bytes(data))
        return Tensor(name, datatype, shape, None, self._keep(self._store(data)).whole())

    def put_strings(self, name: str, shape: Sequence[int], elements: list[bytes]) -> Tensor:
        """A tensor of strings: one by one where they go inside the message."""
        nbytes = places.listed_bytes(elements)
        # An object for each takes up to 64 bytes more.
        weight = max(nbytes, 64 * len(elements))
        if nbytes and (weight <= SMALL_BYTES or self._goes_inside(weight)):
            return Tensor.of_strings(name, shape, elements, nbytes)
        tensor = self.put(name, BYTES, shape, strings.join(elements))
        tensor.strings = len(elements)
        return tensor

    def in_region(
        self, name: str, datatype: int, shape: Sequence[int], region: str, offset: int, nbytes: int
    ) -> Tensor:
        place = self.output_in_region(region, offset, nbytes)
        # Strings are looked at before a model gets them, and must not change after that.
        if nbytes <= INLINE_BYTES or (datatype == BYTES and nbytes <= LARGE_BYTES):
            return self.put(name, datatype, shape, place.read())
        return Tensor(name, datatype, shape, None, RegionSpan(place))

    def output_in_region(self, region: str, offset: int, nbytes: int) -> RegionPlace:
        if self._regions is None:
            raise not_found(f"Unable to find shared memory region: '{region}'")
        return self._regions.find(region, offset, nbytes)

    def _goes_inside(self, nbytes: int) -> bool:
        if nbytes > INLINE_BYTES or self._inside + nbytes > MOST_INLINE:
            return False
        self._inside += nbytes
        return True

    def undo(self) -> None:
        held, self._held = self._held, None
        for block in held or ():
            block.drop()
        self._inside = 0

    def _keep(self, block: Block) -> Block:
        if self._held is None:
            self._held = []
        self._held.append(block)
        return block
