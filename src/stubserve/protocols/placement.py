"""Where the tensors of a request lie: inside their message, in the body that is in the arena, or put there now.

What travels inside a message is kept by the parent's heap until it is answered, and counted nowhere. So of one request
that is no more than MOST_INLINE, beside tensors that are SMALL_BYTES or less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from stubserve_stub.wire.layout import INLINE_BYTES

from stubserve.inference.memory import Block, Span
from stubserve.inference.tensor import Tensor

# A tensor of this size is always inside its message.
SMALL_BYTES = 1024
MOST_INLINE = INLINE_BYTES

Store = Callable[["bytes | memoryview"], Block]


class Placer(Protocol):
    """Makes the tensors of a request whose body is `size` bytes. Raises ServeError where there is no room."""

    size: int

    def slice(self, name: str, datatype: int, shape: Sequence[int], at: int, nbytes: int) -> Tensor:
        """The tensor that the body holds from `at` on."""
        ...

    def put(self, name: str, datatype: int, shape: Sequence[int], data: bytes | memoryview) -> Tensor:
        """A tensor of bytes that the body does not hold as they are."""
        ...

    def undo(self) -> None:
        """Lets go of all of them."""
        ...


class BodyPlacer:
    """A `Placer` for a body that is here: in the arena or not. It remembers the blocks that the tensors hold."""

    __slots__ = ("_block", "_body", "_body_offset", "_held", "_inside", "_store", "size")

    def __init__(self, body: bytes | memoryview, block: Block | None, body_offset: int, store: Store) -> None:
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

    def _goes_inside(self, nbytes: int) -> bool:
        if nbytes > INLINE_BYTES or self._inside + nbytes > MOST_INLINE:
            return False
        self._inside += nbytes
        return True

    def undo(self) -> None:
        for block in self._held or ():
            block.drop()

    def _keep(self, block: Block) -> Block:
        if self._held is None:
            self._held = []
        self._held.append(block)
        return block
