"""One batch on its way through the stub: wire requests in, the model's objects, wire responses out.

The delicate part is memory. An input above INLINE_BYTES is a view of the arena, owned by its request until the batch's
result reaches the parent. So after the model has run

1. an output that lies inside an input of this batch is answered with a descriptor of that memory, without a copy;
2. all objects of the batch are dropped, and what is still alive is held by the model: those inputs are named as held,
   and an output of step 1 that lies in one of them is copied after all, for the model may write to it at any time.

Everything else that a model returns is copied once, into the stub's own segment, or into the message when it is small.
"""

from __future__ import annotations

import weakref
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from stubserve_stub.channel import Channel
from stubserve_stub.exceptions import TritonError
from stubserve_stub.model import ContractBroken
from stubserve_stub.requests import InferenceRequest
from stubserve_stub.responses import InferenceResponse
from stubserve_stub.tensors import Tensor
from stubserve_stub.wire.arena import ArenaFull
from stubserve_stub.wire.layout import INLINE_BYTES

WireTensor = Tuple[str, int, Sequence[int], Any]
WireResponse = Optional[Tuple[Any, ...]]


def _address(buffer: Any) -> int:
    """Where a contiguous buffer lies in this process."""
    array = buffer if isinstance(buffer, np.ndarray) else np.frombuffer(buffer, np.uint8)
    address: int = array.__array_interface__["data"][0]
    return address


class Batch:
    """The requests of one EXECUTE message."""

    def __init__(self, channel: Channel, number: int, wire_requests: Sequence[Any], output_names: List[str]) -> None:
        self._channel = channel
        self.number = number
        # Inputs in the arena: (address, nbytes, offset) of each
        self._inputs: List[Tuple[int, int, int]] = []
        self._tensors: List[Tuple[int, Tensor]] = []
        self.requests = [self._request(wire, output_names) for wire in wire_requests]

    def _request(self, wire: Any, output_names: List[str]) -> InferenceRequest:
        request_id, correlation_id, flags, timeout_us, parameters, requested, wire_inputs = wire
        inputs = []
        for name, datatype, shape, data in wire_inputs:
            if isinstance(data, bytes):
                inputs.append(Tensor._received(name, datatype, shape, data, None))
                continue
            view = self._channel.arena.view(data[0], data[1])
            if len(data) > 2:
                view = memoryview(bytearray(view))
            tensor = Tensor._received(name, datatype, shape, None, view)
            if len(data) == 2:
                self._inputs.append((_address(view), data[1], data[0]))
                self._tensors.append((data[0], tensor))
            inputs.append(tensor)
        return InferenceRequest._received(
            request_id,
            correlation_id,
            flags,
            timeout_us,
            parameters,
            output_names if requested is None else requested,
            inputs,
            self.number,
        )

    def check(self, result: Any) -> List[Optional[InferenceResponse]]:
        """What `execute` returned, as one response (or None) per request. Raises ContractBroken."""
        if result is None:
            return [None] * len(self.requests)
        if not isinstance(result, list):
            raise ContractBroken("Expected a list in the execute return, found type '{}'.".format(type(result)))
        if len(result) != len(self.requests):
            raise ContractBroken(
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                "InferenceRequest(s) size is:{}, and InferenceResponse(s) size is:{}\n".format(
                    len(self.requests), len(result)
                )
            )
        for response in result:
            if response is not None and not isinstance(response, InferenceResponse):
                raise ContractBroken(
                    "Expected an 'InferenceResponse' object in the execute function return list, "
                    "found type '{}'.".format(type(response))
                )
        return result

    def encode(self, responses: List[Optional[InferenceResponse]]) -> List[WireResponse]:
        """The responses as they go over the wire, outputs pruned to what each request asked for."""
        return [
            None if response is None else self._encode(request, response)
            for request, response in zip(self.requests, responses)
        ]

    def _encode(self, request: InferenceRequest, response: InferenceResponse) -> WireResponse:
        error = response.error()
        if error is not None:
            return ((error.message(), int(error.code())), (), None)
        response._prune(request._requested_output_names)
        try:
            outputs = [self._encode_tensor(tensor) for tensor in response.output_tensors()]
        except ArenaFull as full:
            return self._no_memory(full)
        return (None, outputs, response._parameters)

    def _encode_tensor(self, tensor: Tensor) -> WireTensor:
        datatype, shape, buffer = tensor._payload()
        if isinstance(buffer, bytes):
            nbytes = len(buffer)
        else:
            nbytes = buffer.nbytes
        if nbytes <= INLINE_BYTES:
            return (tensor.name(), datatype, shape, buffer if isinstance(buffer, bytes) else buffer.tobytes())
        place = None
        if not isinstance(buffer, bytes) and self._inputs:
            place = self._within_inputs(_address(buffer), nbytes)
        if place is None:
            place = self._channel.place(buffer)
        return (tensor.name(), datatype, shape, place)

    def _within_inputs(self, address: int, nbytes: int) -> Optional[Tuple[int, int]]:
        for start, length, offset in self._inputs:
            if start <= address and address + nbytes <= start + length:
                return (offset + address - start, nbytes)
        return None

    def watches(self) -> Dict[int, "weakref.ref[Any]"]:
        """For each input of which the model was given a view: its offset, and a reference that dies with the views."""
        found = {}
        for offset, tensor in self._tensors:
            watch = tensor._watch()
            if watch is not None:
                found[offset] = watch
        return found

    def drop(self) -> None:
        """Lets go of every object that the model was given."""
        self.requests = []
        self._tensors = []

    def settle(self, watches: Dict[int, "weakref.ref[Any]"], wire: List[WireResponse]) -> Tuple[List[int], List[Any]]:
        """Finds the inputs that the model still holds, and moves outputs out of them: (held offsets, responses)."""
        held = []
        spans = []
        for _, nbytes, offset in self._inputs:
            watch = watches.get(offset)
            memory = watch() if watch is not None else None
            if memory is not None:
                held.append(offset)
                spans.append((offset, nbytes))
                self._channel.hold(offset, memory)
        if not spans:
            return held, wire
        return held, [None if response is None else self._moved(response, spans) for response in wire]

    @staticmethod
    def _no_memory(full: ArenaFull) -> Tuple[Any, ...]:
        return ((str(full), int(TritonError.UNAVAILABLE)), (), None)

    def _moved(self, response: Tuple[Any, ...], spans: List[Tuple[int, int]]) -> Tuple[Any, ...]:
        error, outputs, parameters = response
        moved = []
        for name, datatype, shape, data in outputs:
            if not isinstance(data, bytes) and any(at <= data[0] < at + nbytes for at, nbytes in spans):
                try:
                    data = self._channel.place(self._channel.arena.view(*data))
                except ArenaFull as full:
                    return self._no_memory(full)
            moved.append((name, datatype, shape, data))
        return (error, moved, parameters)
