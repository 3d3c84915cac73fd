"""One answer that is kept, and the responses that are made of it.

An entry that stays has memory of its own (`kept`): small outputs are bytes of the parent's heap, larger ones lie in
blocks of ingress memory. So it pins no memory of a stub. Its spans are shared, so nobody who is given one writes to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stubserve.inference.request import Response
from stubserve.inference.tensor import Tensor, drop_blocks, hold_blocks
from stubserve.memory.blocks import Block, Span

# What Python's objects around an entry, and around each of its outputs, take, about
ENTRY_BYTES = 512
OUTPUT_BYTES = 256

# Memory for so many bytes, None where there is none to spare
Spare = Callable[[int], "Block | None"]


class CacheEntry:
    """The outputs and parameters of a successful response. Whoever makes it holds its memory, until `drop`."""

    __slots__ = ("nbytes", "outputs", "parameters", "size")

    def __init__(self, outputs: Sequence[Tensor], parameters: dict[str, Any] | None) -> None:
        self.outputs = outputs
        self.parameters = parameters
        # Bytes of tensors, and what the entry counts for in all
        nbytes = 0
        for tensor in outputs:
            nbytes += tensor.nbytes
        self.nbytes = nbytes
        self.size = nbytes + ENTRY_BYTES + OUTPUT_BYTES * len(outputs)

    @property
    def in_arena(self) -> bool:
        """Whether any of it lies in the arena."""
        return any(tensor.span is not None for tensor in self.outputs)

    def response(self) -> Response:
        """A response with these outputs, whose memory is held for it."""
        hold_blocks(self.outputs)
        outputs = [kept.again(kept.name, kept.shape) for kept in self.outputs]
        return Response(outputs, dict(self.parameters) if self.parameters else None)

    def drop(self) -> None:
        """It is not kept any more; what was given out of it stays until that is let go of."""
        drop_blocks(self.outputs)

    def __repr__(self) -> str:
        return f"<Entry {list(self.outputs)}>"


def lent(response: Response) -> CacheEntry:
    """An entry in the memory of a response that is passed on at this moment, where it lies."""
    for tensor in response.outputs:
        if tensor.span is not None:
            tensor.span.shared = True
    hold_blocks(response.outputs)
    outputs = [tensor.again(tensor.name, tuple(tensor.shape)) for tensor in response.outputs]
    return CacheEntry(outputs, dict(response.parameters) if response.parameters else None)


def with_room(entry: CacheEntry, spare: Spare) -> CacheEntry | None:
    """An entry as this one, in memory of its own that `fill` is still to fill; None where there is none to spare."""
    outputs: list[Tensor] = []
    for tensor in entry.outputs:
        span: Span | None = None
        if tensor.span is not None:
            block = spare(tensor.nbytes)
            if block is None:
                drop_blocks(outputs)
                return None
            span = block.whole()
            span.shared = True
        outputs.append(tensor.again(tensor.name, tensor.shape, span))
    return CacheEntry(outputs, entry.parameters)


def fill(to: CacheEntry, source: CacheEntry) -> None:
    """Copies the bytes of outputs that lie in the arena. Runs in any thread, and lets go of the interpreter's lock."""
    for target, tensor in zip(to.outputs, source.outputs, strict=True):
        if target.span is not None and target.nbytes:
            np.copyto(np.frombuffer(target.buffer, np.uint8), np.frombuffer(tensor.buffer, np.uint8))
