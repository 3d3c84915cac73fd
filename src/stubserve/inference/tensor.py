"""A tensor in the parent: a name, a type, a shape, and where its bytes are."""

# Compiled by mypyc.
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
    row-major; BYTES elements behind 4-byte lengths) are `data` itself, for small tensors. If `data` is None, they are
    the `nbytes` at arena offset `offset` inside `span`, or all of the span if these two are not given. A tensor with
    neither is the input of an empty slot: its stub makes zeros.

    A small tensor of strings may have its `elements`, one by one; then `data` is made when first needed. `strings` is
    the known number of elements, -1 if they have not been counted.
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
        """A tensor of these elements; `nbytes` includes their lengths."""
        tensor = Tensor(name, BYTES, shape, None, None, 0, nbytes)
        tensor.elements = elements
        tensor.strings = len(elements)
        return tensor

    def renamed(self, name: str, shape: Sequence[int], span: Span | None = None) -> Tensor:
        """The same bytes under another name and in another shape, and in another `span` that holds them, if given."""
        if span is not None:
            tensor = Tensor(name, self.datatype, shape, None, span)
        else:
            tensor = Tensor(name, self.datatype, shape, self.data, self.span, self.offset, self.nbytes)
        tensor.strings = self.strings
        return tensor

    def lie_in(self, block: Block) -> None:
        """The tensor's bytes are about to be put into this block. The tensor takes over the caller's hold."""
        self.span, self.offset = block.whole(), block.offset

    @property
    def data(self) -> bytes | None:
        """The bytes themselves, None if they lie in a span."""
        if self._data is None and self.elements is not None:
            self._data = strings.join(list(self.elements))
        return self._data

    @property
    def block(self) -> Block | None:
        """The block that holds the bytes, None if `data` has them."""
        return None if self.span is None else self.span.block

    @property
    def buffer(self) -> bytes | memoryview:
        """The tensor's bytes, without a copy. Only valid while the span is held.

        An input in a client's region is read as a copy. Raises ServeError if the region is gone.
        """
        data = self.data
        if data is not None:
            return data
        assert self.span is not None
        return self.span.read(self.offset, self.nbytes)

    def beginning(self, nbytes: int) -> bytes | memoryview:
        """As `buffer`, but only the first `nbytes`. Raises ServeError as `buffer` does."""
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
    """Puts an output into its client's region, over anything the stub wrote.

    Raises ServeError, upstream's if too small.
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
