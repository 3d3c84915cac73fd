"""A tensor as it passes through the parent: a name, a type, a shape, and where its bytes are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stubserve_stub.wire.datatypes import BY_NUMBER

from stubserve.inference.memory import Block


class Tensor:
    """An input or output.

    `datatype` is the number in Triton's DataType enum, `shape` includes the batch dimension. The bytes (little-endian,
    row-major; BYTES elements behind 4-byte lengths) are either `data` itself, for small tensors, or, where `data` is
    None, the `nbytes` at arena offset `offset` inside `block`.
    """

    __slots__ = ("block", "data", "datatype", "name", "nbytes", "offset", "shape")

    def __init__(
        self,
        name: str,
        datatype: int,
        shape: Sequence[int],
        data: bytes | None,
        block: Block | None = None,
        offset: int = 0,
        nbytes: int = 0,
    ) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self.data = data
        self.block = block
        self.offset = offset
        self.nbytes = nbytes if data is None else len(data)

    @property
    def buffer(self) -> bytes | memoryview:
        """The tensor's bytes, without a copy. Only valid while the block is held."""
        if self.data is not None:
            return self.data
        assert self.block is not None
        start = self.offset - self.block.offset
        return self.block.view[start : start + self.nbytes]

    @property
    def datatype_name(self) -> str:
        """The protocol's name of the type, as in 'FP32'."""
        return BY_NUMBER[self.datatype].name

    def __repr__(self) -> str:
        return f"<Tensor {self.name!r} {self.datatype_name} {list(self.shape)}, {self.nbytes} bytes>"


def drop_blocks(tensors: Iterable[Tensor]) -> None:
    """Lets go of the memory that tensors lie in."""
    for tensor in tensors:
        if tensor.block is not None:
            tensor.block.drop()
