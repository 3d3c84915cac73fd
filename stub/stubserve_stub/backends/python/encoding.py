"""What a model returns or sends, as the wire has it: small tensors inside the message, large ones where `placer` says.

A placer has `place(buffer)`, which returns (offset, nbytes) in the arena and raises ArenaFull, or bytes; one that may
raise also has `free(offsets)`.
"""

from __future__ import annotations

from typing import Any, List, Sequence, Tuple

import numpy as np

from stubserve_stub.api import parameters as params
from stubserve_stub.api.exceptions import TritonError
from stubserve_stub.api.responses import InferenceResponse
from stubserve_stub.api.tensors import Tensor
from stubserve_stub.wire.arena import ArenaFull
from stubserve_stub.wire.layout import INLINE_BYTES

WireTensor = Tuple[str, int, Sequence[int], Any]
WireResponse = Tuple[Any, ...]


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
        placer.free(placed(outputs))
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


def placed(outputs: Sequence[WireTensor]) -> List[int]:
    """The offsets of those encoded outputs that lie in memory of this stub's own."""
    return [data[0] for _, _, _, data in outputs if isinstance(data, tuple) and len(data) == 2]


def arena_bytes(wire: WireResponse) -> int:
    """How many bytes of the arena an encoded response takes up."""
    return sum(data[1] for _, _, _, data in wire[1] if not isinstance(data, bytes))
