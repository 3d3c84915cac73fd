"""Outputs and responses as the wire has them: small tensors inside the message, large ones where a `Placer` says."""

from __future__ import annotations

from typing import Any, List, Sequence, Tuple

import numpy as np

from stubserve_stub.wire import codes
from stubserve_stub.wire.arena import ArenaFull
from stubserve_stub.wire.layout import INLINE_BYTES

# (name, datatype, shape, where its bytes are)
WireTensor = Tuple[str, int, Sequence[int], Any]
# (error, outputs, parameters)
WireResponse = Tuple[Any, ...]


class Placer:
    """Finds room for what is too large for a message.

    This one is without an arena: every tensor stays in its message.
    """

    def place(self, buffer: Any) -> Any:
        """Where the bytes of a contiguous buffer lie, or the bytes themselves. May raise ArenaFull."""
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


def placed(outputs: Sequence[WireTensor]) -> List[int]:
    """The offsets of those encoded outputs that lie in memory of this stub's own."""
    return [data[0] for _, _, _, data in outputs if isinstance(data, tuple) and len(data) == 2]


def arena_bytes(wire: WireResponse) -> int:
    """How many bytes of the arena an encoded response takes up."""
    return sum(data[1] for _, _, _, data in wire[1] if not isinstance(data, bytes))
