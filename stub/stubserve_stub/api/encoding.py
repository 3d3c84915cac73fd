"""Encoding of what a model returns or sends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, List, Optional, Sequence

from stubserve_stub.api import parameters as params
from stubserve_stub.api.responses import InferenceResponse
from stubserve_stub.api.tensors import Tensor
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.runtime.outputs import failed, no_memory, own_offsets, wire_tensor
from stubserve_stub.wire import codes
from stubserve_stub.wire.arena import ArenaFull

if TYPE_CHECKING:
    # What it imports, msgpack, is not there where only the public module is wanted.
    from stubserve_stub.runtime.region_batch import SlotOutputs
    from stubserve_stub.runtime.states import StateUpdate
    from stubserve_stub.wire.messages import WireResponse, WireTensor


def encode_response(
    response: InferenceResponse,
    requested: Sequence[str],
    placer: Any,
    in_regions: Optional[SlotOutputs] = None,
) -> WireResponse:
    """A response, its outputs pruned to what was requested; one that finds no memory becomes an error that says so.

    `in_regions` knows those that go into shared memory of the client.
    """
    error = response._error
    if error is not None:
        return failed(error.message(), int(error.code()))
    refusal = params.refusal(response._parameters) if response._parameters else ""
    if refusal:
        return failed(refusal, codes.INTERNAL)
    response._prune(requested)
    outputs: List[WireTensor] = []
    try:
        for tensor in response._output_tensors:
            if in_regions is None:
                outputs.append(encode_tensor(tensor, placer))
            else:
                outputs.append(in_regions.tensor(tensor._name, *tensor._payload(), placer))
    except ArenaFull as full:
        placer.free(own_offsets(outputs))
        return no_memory(full)
    except Refusal as refused:
        placer.free(own_offsets(outputs))
        return failed(str(refused), refused.code)
    return (None, outputs, response._parameters)


def encode_and_keep(
    response: InferenceResponse,
    requested: Sequence[str],
    placer: Any,
    update: Optional[StateUpdate],
    partly: bool = False,
    in_regions: Optional[SlotOutputs] = None,
) -> WireResponse:
    """As `encode_response`; what it has of the states of its request's sequence is kept, `partly` if need be."""
    if update is not None and update.sequence and response._error is None:
        failure = _failure(update.keep, response, placer, partly)
        if failure is not None:
            return failure
    return encode_response(response, requested, placer, in_regions)


def encode_states(response: InferenceResponse, placer: Any, update: StateUpdate) -> Optional[WireResponse]:
    """Keeps the new states, all that a request answers which executes again; the error if they cannot be kept."""
    return _failure(update.keep_only, response, placer) if update.sequence else None


def _failure(keep: Callable[..., None], response: InferenceResponse, *how: Any) -> Optional[WireResponse]:
    """The error where the states in a response cannot be kept."""
    try:
        keep({tensor._name: tensor._payload() for tensor in response._output_tensors}, *how)
    except Refusal as refusal:
        return failed(str(refusal), refusal.code)
    except ArenaFull as full:
        return no_memory(full)
    return None


def encode_tensor(tensor: Tensor, placer: Any) -> WireTensor:
    """A tensor. Raises ArenaFull."""
    return wire_tensor(tensor._name, *tensor._payload(), placer)
