"""Memory of the arena as the parent counts it: blocks are allocated and freed, tensors lie in spans.

A block is one allocation, and may hold many tensors: an HTTP body is one block with all of its inputs. A span is the
part of one tensor. The permission to write belongs to the span. So an input that several models read does not make its
neighbours read-only.
"""

# Compiled by mypyc.
from __future__ import annotations

from collections.abc import Callable

from stubserve_stub.wire.places import InArena, Place, Shared


class Block:
    """One allocation in the arena, shared by reference count; `release` is called once, when the count falls to zero.

    `view` is the memory (writable bytes), `offset` its place in the arena. A holder calls `hold()` to keep the block
    longer than the giver does, and `drop()` when it is done. Not thread-safe: blocks live on the event loop.
    """

    __slots__ = ("_holders", "_release", "nbytes", "offset", "view")

    def __init__(self, offset: int, nbytes: int, view: memoryview, release: Callable[[Block], None]) -> None:
        self.offset = offset
        self.nbytes = nbytes
        self.view = view
        self._release = release
        self._holders = 1

    def hold(self) -> Block:
        self._holders += 1
        return self

    def drop(self) -> None:
        self._holders -= 1
        if self._holders == 0:
            self._release(self)

    def whole(self) -> Span:
        """The whole block as one span, which takes over the caller's hold."""
        return Span(self, self.offset, self.nbytes)

    def __repr__(self) -> str:
        return f"<Block {self.nbytes} bytes at {self.offset}, {self._holders} holders>"


class Span:
    """The `nbytes` at arena offset `offset` in a block that were given as one tensor.

    All tensors in this memory refer to the same span, also those that a model has cut out of it. A span belongs to one
    model at a time, which may write to it. A `shared` span may belong to several models, and none writes. `returned`: a
    model has sent the span on once; the second time the span becomes shared.

    `hold()` and `drop()` are the block's: a span lives as long as its block.
    """

    __slots__ = ("block", "nbytes", "offset", "returned", "shared")

    def __init__(self, block: Block, offset: int, nbytes: int) -> None:
        self.block = block
        self.offset = offset
        self.nbytes = nbytes
        self.returned = False
        self.shared = False

    def hold(self) -> Span:
        self.block.hold()
        return self

    def drop(self) -> None:
        self.block.drop()

    def read(self, offset: int, nbytes: int) -> bytes | memoryview:
        """The bytes of that range, valid while the span is held. Raises ServeError if its client has removed them."""
        block = self.block
        start = offset - block.offset
        return block.view[start : start + nbytes]

    def as_place(self, offset: int, nbytes: int) -> Place:
        """The place of that range, as a stub is told of it."""
        return Shared(offset, nbytes) if self.shared else InArena(offset, nbytes)

    def contains(self, offset: int, nbytes: int) -> bool:
        """Whether the arena range [offset, offset + nbytes) lies within the span."""
        return self.offset <= offset and offset + nbytes <= self.offset + self.nbytes

    def send_on(self) -> None:
        """A model passes the span on and does not keep it."""
        if self.returned:
            self.shared = True
        self.returned = True

    def __repr__(self) -> str:
        return f"<Span {self.nbytes} bytes at {self.offset}{', shared' if self.shared else ''}>"
