"""One cached answer, and the responses that are made from it.

A kept entry has memory of its own (`kept`): small outputs are bytes of the parent's heap, larger ones lie in blocks of
ingress memory. So it pins no memory of a stub. Its spans are shared, so nobody may write to them.
"""

# Compiled by mypyc.
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stubserve.inference.request import Response
from stubserve.inference.tensor import Tensor, drop_blocks, hold_blocks
from stubserve.memory.blocks import Block, Span

# The rough size of Python's objects around an entry, and around each of its outputs
ENTRY_BYTES = 512
OUTPUT_BYTES = 256

# Gives memory of so many bytes, None if none is to spare
Spare = Callable[[int], "Block | None"]


class CacheEntry:
    """The outputs and parameters of a successful response. Its maker holds its memory, until `drop`."""

    __slots__ = ("nbytes", "outputs", "parameters", "size")

    def __init__(self, outputs: Sequence[Tensor], parameters: dict[str, Any] | None) -> None:
        self.outputs = outputs
        self.parameters = parameters
        # Bytes of tensors; and the size that counts for the entry
        nbytes = 0
        for tensor in outputs:
            nbytes += tensor.nbytes
        self.nbytes = nbytes
        self.size = nbytes + ENTRY_BYTES + OUTPUT_BYTES * len(outputs)

    @property
    def in_arena(self) -> bool:
        return any(tensor.span is not None for tensor in self.outputs)

    def response(self) -> Response:
        """A response with these outputs, whose memory is held for it."""
        hold_blocks(self.outputs)
        outputs = [kept.renamed(kept.name, kept.shape) for kept in self.outputs]
        return Response(outputs, dict(self.parameters) if self.parameters else None)

    def drop(self) -> None:
        """Ends the entry; responses made from it stay until they are let go of."""
        drop_blocks(self.outputs)

    def __repr__(self) -> str:
        return f"<Entry {list(self.outputs)}>"


def lent(response: Response) -> CacheEntry:
    """An entry that uses the memory of a response that is being passed on."""
    for tensor in response.outputs:
        if tensor.span is not None:
            tensor.span.shared = True
    hold_blocks(response.outputs)
    outputs = [tensor.renamed(tensor.name, tuple(tensor.shape)) for tensor in response.outputs]
    return CacheEntry(outputs, dict(response.parameters) if response.parameters else None)


def with_room(entry: CacheEntry, spare: Spare) -> CacheEntry | None:
    """The same entry in memory of its own, which `fill` is still to fill; None if no memory is to spare."""
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
        outputs.append(tensor.renamed(tensor.name, tensor.shape, span))
    return CacheEntry(outputs, entry.parameters)


def fill(to: CacheEntry, source: CacheEntry) -> None:
    """Copies the bytes of outputs in the arena. Runs in any thread, and releases the interpreter's lock."""
    for target, tensor in zip(to.outputs, source.outputs, strict=True):
        if target.span is not None and target.nbytes:
            np.copyto(np.frombuffer(target.buffer, np.uint8), np.frombuffer(tensor.buffer, np.uint8))
