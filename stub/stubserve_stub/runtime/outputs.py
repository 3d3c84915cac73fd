"""Outputs and responses as the wire has them: small tensors inside the message, large ones where a `Placer` says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Sequence

import numpy as np

from stubserve_stub.wire import codes
from stubserve_stub.wire.arena import ArenaFull
from stubserve_stub.wire.layout import INLINE_BYTES
from stubserve_stub.wire.places import InArena, Place

if TYPE_CHECKING:
    # What it imports, msgpack, is not there where only the public module is wanted.
    from stubserve_stub.wire.messages import WireResponse, WireTensor


class Placer:
    """Finds room for what is too large for a message.

    This one is without an arena: every tensor stays in its message.
    """

    def place(self, buffer: Any) -> Place:
        """Where the bytes of a contiguous buffer lie. May raise ArenaFull."""
        return buffer.tobytes() if isinstance(buffer, (np.ndarray, memoryview)) else bytes(buffer)

    def free(self, offsets: Sequence[int]) -> None:
        """Takes back what `place` has given."""


def wire_tensor(name: str, datatype: int, shape: Sequence[int], buffer: Any, placer: Any) -> WireTensor:
    """A tensor whose bytes are a contiguous buffer: bytes, a memoryview or an array. Raises ArenaFull."""
    if isinstance(buffer, bytes):
        if len(buffer) <= INLINE_BYTES:
            return (name, datatype, shape, buffer)
    elif buffer.nbytes <= INLINE_BYTES:
        return (name, datatype, shape, buffer.tobytes())
    return (name, datatype, shape, placer.place(buffer))


def failed(message: str, code: int) -> WireResponse:
    """A response that is an error."""
    return ((message, code), (), None)


def no_memory(full: ArenaFull) -> WireResponse:
    """The response in place of one whose outputs find no memory."""
    return failed(str(full), codes.UNAVAILABLE)


def placed(response: WireResponse) -> List[int]:
    """The offsets of those outputs of a response that lie in memory of this stub's own."""
    _, outputs, _ = response
    return own_offsets(outputs)


def own_offsets(outputs: Sequence[WireTensor]) -> List[int]:
    """As `placed`, of outputs that are no response yet."""
    return [place.offset for _, _, _, place in outputs if isinstance(place, InArena)]


# Bytes inside of a message become the parent's own, whose small answers nobody counts. So they weigh more.
_INLINE_WEIGHT = 8


def weight(response: WireResponse) -> int:
    """What an encoded response adds to its group (`api.sender`): bytes that it takes up in the arena, or as many."""
    _, outputs, _ = response
    return sum(_INLINE_WEIGHT * len(place) if isinstance(place, bytes) else place.nbytes for _, _, _, place in outputs)
