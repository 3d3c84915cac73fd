"""Memory of the arena that must live until a socket has taken it."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np

from stubserve.inference.memory import Block


class SentMemory:
    """Keeps blocks held while a transport still has pieces of them to send.

    A transport drops its reference to a buffer when the socket has taken the last byte, or when the connection is
    closed. `wrap` gives the transport an array over the memory, which any buffer made from it keeps alive, and watches
    it with a weak reference: when that dies, the block is dropped. No flow-control callback has to be trusted for it.
    """

    def __init__(self) -> None:
        # By the reference's id: arrays have no hash, and so neither have references to them.
        self._waiting: dict[int, tuple[weakref.ref[np.ndarray], list[Block]]] = {}

    def wrap(self, piece: memoryview, blocks: Sequence[Block]) -> memoryview:
        """The same bytes, in a view whose death drops one hold of each of `blocks` (taken here)."""
        array = np.frombuffer(piece, np.uint8)
        reference = weakref.ref(array, self._sent)
        self._waiting[id(reference)] = (reference, [block.hold() for block in blocks])
        return array.data

    def _sent(self, reference: weakref.ref[np.ndarray]) -> None:
        for block in self._waiting.pop(id(reference))[1]:
            block.drop()
