"""Where a request's tensors lie, and where those of its answer go, as the client wants it.

A request's tensor lies inside its message, or in the body in the arena, or is put into the arena now. Tensors inside a
message stay in the parent's heap until the answer, and no account counts them. So one request may have at most
MOST_INLINE bytes of them, beside tensors of SMALL_BYTES or less.
"""

# Compiled by mypyc.
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from stubserve_stub.wire import places, strings
from stubserve_stub.wire.datatypes import BYTES, DataType
from stubserve_stub.wire.layout import INLINE_BYTES

from stubserve.errors import not_found
from stubserve.inference.long_work import LARGE_BYTES
from stubserve.inference.tensor import Tensor
from stubserve.memory.blocks import Block, Span
from stubserve.memory.regions import Region, RegionPlace, RegionSpan

if TYPE_CHECKING:
    from stubserve.memory.client_regions import ClientRegions

# A tensor of up to this size is always inside its message.
SMALL_BYTES = 1024
MOST_INLINE = INLINE_BYTES

# Upstream's reading of an invalid datatype; the error depends on where the data is.
INVALID_DATATYPE = DataType(0, "<invalid>", "", 0, None)

Store = Callable[["bytes | memoryview"], Block]


class Slot(NamedTuple):
    """How one output goes into the reply; `classification` is the number of classes, 0 for the tensor itself.

    An output that goes into a client's `region` is not in the reply: IN_REGION stands in its place.
    """

    binary: bool
    classification: int
    region: RegionPlace | None = None

    @property
    def on_device(self) -> bool:
        """Whether the output goes into its client's memory on a GPU, which takes long."""
        return self.region is not None and self.region.region.on_device


IN_REGION = -1


class ReplyFormat(NamedTuple):
    """How the outputs go into the reply: by name in `slots`, or, if that is None, all as `default_binary` says.

    With `empty_final` a stream gets a final response even if it has no outputs. `regions` are kept for the inputs,
    also those that have been read already.
    """

    slots: dict[str, Slot] | None
    default_binary: bool
    empty_final: bool = False
    regions: Sequence[object] = ()


def regions_of(inputs: Sequence[object], slots: dict[str, Slot] | None) -> dict[str, RegionPlace] | None:
    """`Request.regions` of a request with these outputs, and with inputs in these regions."""
    regions = {name: slot.region for name, slot in (slots or {}).items() if slot.region is not None}
    return regions if regions or inputs else None


class Placer(Protocol):
    """Makes the tensors of a request with a body of `size` bytes. Raises ServeError if memory is short."""

    size: int

    @property
    def regions(self) -> Sequence[object]:
        """What stands for the regions that inputs are in."""

    def slice(self, name: str, datatype: int, shape: Sequence[int], at: int, nbytes: int) -> Tensor:
        """A tensor that lies in the body, from `at` on."""

    def put(self, name: str, datatype: int, shape: Sequence[int], data: bytes | memoryview) -> Tensor:
        """A tensor of bytes that are not in the body in this form."""

    def in_region(
        self, name: str, datatype: int, shape: Sequence[int], region: str, offset: int, nbytes: int
    ) -> Tensor:
        """A tensor of bytes in a client's shared memory."""

    def output_in_region(self, region: str, offset: int, nbytes: int) -> RegionPlace:
        """The place in a client's shared memory for an output."""

    def undo(self) -> None:
        """Lets go of all tensors, so that the request can be read again."""


class BodyPlacer:
    """A `Placer` for a complete body, in the arena or not. It remembers the blocks that the tensors hold.

    `regions` is None if clients may not use shared memory.
    """

    __slots__ = ("_block", "_body", "_body_offset", "_held", "_inside", "_known", "_store", "regions", "size")

    def __init__(
        self,
        body: bytes | memoryview,
        block: Block | None,
        body_offset: int,
        store: Store,
        regions: ClientRegions | None = None,
    ) -> None:
        self._known = regions
        self.regions: Sequence[Region] = ()
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
        """A tensor of strings; inside the message they are kept as a list."""
        nbytes = 4 * len(elements)
        for element in elements:
            nbytes += len(element)
        if places.are_listed(len(elements), nbytes):
            # Each string object takes up to 64 bytes more.
            weight = max(nbytes, 64 * len(elements))
            if weight <= SMALL_BYTES or self._goes_inside(weight):
                return Tensor.of_strings(name, shape, elements, nbytes)
        tensor = self.put(name, BYTES, shape, strings.join(elements))
        tensor.strings = len(elements)
        return tensor

    def in_region(
        self, name: str, datatype: int, shape: Sequence[int], region: str, offset: int, nbytes: int
    ) -> Tensor:
        place = self.output_in_region(region, offset, nbytes)
        self.regions = (*self.regions, place.region)
        # Strings are checked before a model gets them, and must not change after that.
        is_soon = nbytes <= INLINE_BYTES or (datatype == BYTES and nbytes <= LARGE_BYTES)
        if is_soon and not place.region.on_device:
            return self.put(name, datatype, shape, place.read())
        return Tensor(name, datatype, shape, None, RegionSpan(place))

    def output_in_region(self, region: str, offset: int, nbytes: int) -> RegionPlace:
        if self._known is None:
            raise not_found(f"Unable to find shared memory region: '{region}'")
        return self._known.find(region, offset, nbytes)

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
        self.regions = ()

    def _keep(self, block: Block) -> Block:
        if self._held is None:
            self._held = []
        self._held.append(block)
        return block
