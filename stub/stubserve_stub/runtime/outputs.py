"""What becomes of a response as the wire has it: errors in its place, and the memory that its outputs take up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Sequence

from stubserve_stub.wire import codes, strings
from stubserve_stub.wire.arena import ArenaFull
from stubserve_stub.wire.places import AsList, InArena

if TYPE_CHECKING:
    # What it imports, msgpack, is not there where only the public module is wanted.
    from stubserve_stub.wire.messages import WireResponse, WireTensor


class InMessages:
    """Places tensors where there is no arena: every one stays in its message."""

    def place(self, buffer: Any) -> bytes:
        """The bytes of a contiguous buffer, or of a list of strings."""
        if isinstance(buffer, list):
            return strings.join(buffer)
        return buffer if isinstance(buffer, bytes) else buffer.tobytes()

    def free(self, offsets: Sequence[int]) -> None:
        """Takes back what `place` has given, which is nothing."""


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
    return sum(
        _INLINE_WEIGHT * len(place)
        if isinstance(place, bytes)
        else place.nbytes * (_INLINE_WEIGHT if isinstance(place, AsList) else 1)
        for _, _, _, place in outputs
    )
