"""Blocks: pieces of the arena as the parent counts them."""

from __future__ import annotations

from collections.abc import Callable


class Block:
    """One allocation in the arena, shared by reference count; `release` is called once, when the count falls to zero.

    A request's body is one block for all of its inputs; an output in a stub's segment is one too. `view` is the memory
    (writable bytes), `offset` its place in the arena. A holder calls `hold()` before it keeps the block longer than
    whoever gave it, and `drop()` when it is done. Not thread-safe: blocks live on the event loop.

    The memory belongs to one model at a time, which may write to it, unless it is `shared`: then several may have it,
    and none writes. `returned` says that a model has sent it on once; the second time it becomes shared.
    """

    __slots__ = ("_holders", "_release", "nbytes", "offset", "returned", "shared", "view")

    def __init__(self, offset: int, nbytes: int, view: memoryview, release: Callable[[Block], None]) -> None:
        self.offset = offset
        self.nbytes = nbytes
        self.view = view
        self._release = release
        self._holders = 1
        self.returned = False
        self.shared = False

    def hold(self) -> Block:
        self._holders += 1
        return self

    def drop(self) -> None:
        self._holders -= 1
        if self._holders == 0:
            self._release(self)

    def contains(self, offset: int, nbytes: int) -> bool:
        """Whether the arena range [offset, offset + nbytes) lies within the block."""
        return self.offset <= offset and offset + nbytes <= self.offset + self.nbytes

    def __repr__(self) -> str:
        return f"<Block {self.nbytes} bytes at {self.offset}, {self._holders} holders>"
