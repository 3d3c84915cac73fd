"""A tensor as it passes through the parent: a name, a type, a shape, and where its bytes are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stubserve_stub.wire import strings
from stubserve_stub.wire.datatypes import BY_NUMBER, BYTES

from stubserve.errors import ServeError, internal
from stubserve.memory.blocks import Block, Span
from stubserve.memory.regions import RegionPlace


class Tensor:
    """An input or output.

    `datatype` is the number in Triton's DataType enum, `shape` includes the batch dimension. The bytes (little-endian,
    row-major; BYTES elements behind 4-byte lengths) are either `data` itself, for small tensors, or, where `data` is
    None, the `nbytes` at arena offset `offset` inside `span`: all of it, where these two are not given. A tensor that
    has neither has no place: as an input of an empty slot it is zeros, which its stub makes.

    A small tensor of strings may be its `elements`, one by one. Its `data` is made when it is asked for.

    `strings` is how many elements the bytes are known to be, where whoever made them of strings has counted; else -1.
    """

    __slots__ = ("_data", "datatype", "elements", "name", "nbytes", "offset", "shape", "span", "strings")

    def __init__(
        self,
        name: str,
        datatype: int,
        shape: Sequence[int],
        data: bytes | None,
        span: Span | None = None,
        offset: int | None = None,
        nbytes: int | None = None,
    ) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self._data = data
        self.span = span
        self.strings = -1
        self.elements: Sequence[bytes] | None = None
        if data is not None:
            self.offset = 0
            self.nbytes = len(data)
        elif span is None:
            self.offset = offset or 0
            self.nbytes = nbytes or 0
        else:
            self.offset = span.offset if offset is None else offset
            self.nbytes = span.nbytes if nbytes is None else nbytes

    @staticmethod
    def of_strings(name: str, shape: Sequence[int], elements: Sequence[bytes], nbytes: int) -> Tensor:
        """A tensor of these elements, `nbytes` with their lengths."""
        tensor = Tensor(name, BYTES, shape, None, None, 0, nbytes)
        tensor.elements = elements
        tensor.strings = len(elements)
        return tensor

    def again(self, name: str, shape: Sequence[int], span: Span | None = None) -> Tensor:
        """The same bytes under a name and in a shape; in another `span`, which is theirs, where one is given."""
        if span is not None:
            tensor = Tensor(name, self.datatype, shape, None, span)
        else:
            tensor = Tensor(name, self.datatype, shape, self.data, self.span, self.offset, self.nbytes)
        tensor.strings = self.strings
        return tensor

    def lie_in(self, block: Block) -> None:
        """Its bytes are about to be put into this block, whose hold becomes the tensor's."""
        self.span, self.offset = block.whole(), block.offset

    @property
    def data(self) -> bytes | None:
        """The bytes themselves, None where they lie in a span."""
        if self._data is None and self.elements is not None:
            self._data = strings.join(list(self.elements))
        return self._data

    @property
    def block(self) -> Block | None:
        """The block that it lies in, None for bytes."""
        return None if self.span is None else self.span.block

    @property
    def buffer(self) -> bytes | memoryview:
        """The tensor's bytes, without a copy. Only valid while the span is held.

        Those of an input in a client's region are read, and a copy. Raises ServeError where they are gone.
        """
        data = self.data
        if data is not None:
            return data
        assert self.span is not None
        return self.span.read(self.offset, self.nbytes)

    def beginning(self, nbytes: int) -> bytes | memoryview:
        """As `buffer`, but no more than the first `nbytes`. Raises as that does."""
        if self.data is not None:
            return self.data[:nbytes]
        assert self.span is not None
        return self.span.read(self.offset, min(nbytes, self.nbytes))

    @property
    def datatype_name(self) -> str:
        """The protocol's name of the type, as in 'FP32'."""
        return BY_NUMBER[self.datatype].name

    def __repr__(self) -> str:
        return f"<Tensor {self.name!r} {self.datatype_name} {list(self.shape)}, {self.nbytes} bytes>"


def hold_blocks(tensors: Iterable[Tensor]) -> None:
    """Keeps the memory that tensors lie in."""
    for tensor in tensors:
        if tensor.span is not None:
            tensor.span.hold()


def drop_blocks(tensors: Iterable[Tensor]) -> None:
    """Lets go of the memory that tensors lie in."""
    for tensor in tensors:
        if tensor.span is not None:
            tensor.span.drop()


def write_output(tensor: Tensor, place: RegionPlace) -> None:
    """Puts an output into the region that its client has named; what its stub has written there is not here any more.

    Raises ServeError, upstream's where there is too little room.
    """
    if tensor.nbytes > place.nbytes:
        raise too_small(tensor.name, tensor.nbytes, place.nbytes)
    if tensor.nbytes:
        place.region.write(place.offset, tensor.buffer)


def too_small(output: str, needed: int, given: int) -> ServeError:
    """The refusal of an output that does not fit."""
    return internal(
        f"shared memory size specified with the request for output '{output}' ({given} bytes) should be at least "
        f"{needed} bytes to hold the results"
    )
