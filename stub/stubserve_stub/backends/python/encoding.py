"""What a model returns or sends, as the wire has it: small tensors inside the message, large ones where `placer` says.

A placer has `place(buffer)`, which returns the place of a large tensor; one that may raise ArenaFull also has
`free(offsets)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Sequence

import numpy as np

from stubserve_stub.api import parameters as params
from stubserve_stub.api.exceptions import TritonError
from stubserve_stub.api.responses import InferenceResponse
from stubserve_stub.api.tensors import Tensor
from stubserve_stub.wire.arena import ArenaFull
from stubserve_stub.wire.layout import INLINE_BYTES
from stubserve_stub.wire.places import InArena

if TYPE_CHECKING:
    # What it imports, msgpack, is not there where only the public module is wanted.
    from stubserve_stub.wire.messages import WireResponse, WireTensor


class InMessage:
    """A placer without an arena: every tensor stays in its message, whatever its size."""

    def place(self, buffer: Any) -> bytes:
        return buffer.tobytes() if isinstance(buffer, (np.ndarray, memoryview)) else bytes(buffer)


def encode_response(response: InferenceResponse, requested: Sequence[str], placer: Any) -> WireResponse:
    """A response, its outputs pruned to what was requested; one that finds no memory becomes an error that says so."""
    error = response._error
    if error is not None:
        return ((error.message(), int(error.code())), (), None)
    refusal = params.refusal(response._parameters) if response._parameters else ""
    if refusal:
        return ((refusal, int(TritonError.INTERNAL)), (), None)
    response._prune(requested)
    outputs: List[WireTensor] = []
    try:
        for tensor in response._output_tensors:
            outputs.append(encode_tensor(tensor, placer))  # noqa: PERF401 - those before one that fails count
    except ArenaFull as full:
        placer.free(_own(outputs))
        return no_memory(full)
    return (None, outputs, response._parameters)


def encode_tensor(tensor: Tensor, placer: Any) -> WireTensor:
    """A tensor. Raises ArenaFull."""
    datatype, shape, buffer = tensor._payload()
    if isinstance(buffer, bytes):
        if len(buffer) <= INLINE_BYTES:
            return (tensor._name, datatype, shape, buffer)
    elif buffer.nbytes <= INLINE_BYTES:
        return (tensor._name, datatype, shape, buffer.tobytes())
    return (tensor._name, datatype, shape, placer.place(buffer))


def no_memory(full: ArenaFull) -> WireResponse:
    """The response in place of one whose outputs find no memory."""
    return ((str(full), int(TritonError.UNAVAILABLE)), (), None)


def placed(response: WireResponse) -> List[int]:
    """The offsets of those outputs that lie in memory of this stub's own."""
    _, outputs, _ = response
    return _own(outputs)


def arena_bytes(response: WireResponse) -> int:
    """How many bytes of the arena an encoded response takes up."""
    _, outputs, _ = response
    return sum(place.nbytes for _, _, _, place in outputs if not isinstance(place, bytes))


def _own(outputs: Sequence[WireTensor]) -> List[int]:
    return [place.offset for _, _, _, place in outputs if isinstance(place, InArena)]
