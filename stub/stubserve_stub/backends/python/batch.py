"""One batch on its way through the stub: wire requests in, the model's objects, wire responses out.

The delicate part is memory. An input above INLINE_BYTES is a view of the arena, owned by its request until the batch's
result reaches the parent. So after the model has run

1. an output that lies inside an input of this batch, or inside an output of another model that this one has called
   (a lease), is answered with a descriptor of that memory, without a copy;
2. all objects of the batch are dropped, and what is still alive is held by the model: those inputs are named as held,
   and an output of step 1 that lies in held memory is copied after all, for the model may write to it at any time.

An input whose memory others read too is a read-only view; a tensor makes its own copy of that when it is looked at.
Everything else that a model returns is copied once, into the stub's own segment, or into the message when it is small.

A request that is answered through a sender is left to it when `execute` has returned, its inputs too.
"""

from __future__ import annotations

import weakref
from typing import Any, List, Optional, Sequence, Tuple

import numpy as np

from stubserve_stub.api.constants import REQUEST_RELEASE_RESCHEDULE
from stubserve_stub.api.requests import InferenceRequest
from stubserve_stub.api.responses import InferenceResponse
from stubserve_stub.api.sender import InferenceResponseSender, Senders
from stubserve_stub.api.tensors import Tensor
from stubserve_stub.backends.python.encoding import WireResponse, encode_response, no_memory, placed
from stubserve_stub.backends.python.model import ContractBroken
from stubserve_stub.runtime.channel import Channel
from stubserve_stub.runtime.lease import Lease, lease_of
from stubserve_stub.wire import messages
from stubserve_stub.wire.arena import ArenaFull


def _address(buffer: Any) -> int:
    """Where a contiguous buffer lies in this process."""
    array = buffer if isinstance(buffer, np.ndarray) else np.frombuffer(buffer, np.uint8)
    address: int = array.__array_interface__["data"][0]
    return address


class Batch:
    """The requests of one EXECUTE message."""

    def __init__(
        self, channel: Channel, senders: Senders, number: int, wire_requests: Sequence[Any], output_names: List[str]
    ) -> None:
        self._channel = channel
        self._senders = senders
        self.number = number
        # Inputs in the arena: (address, nbytes, offset) of each
        self._inputs: List[Tuple[int, int, int]] = []
        # Of inputs that senders look after, and whose models may go on writing to them: (offset, nbytes)
        self._lent: List[Tuple[int, int]] = []
        self._tensors: List[Tuple[int, Tensor]] = []
        # Leases in which outputs lie
        self._leases: "List[weakref.ref[Lease]]" = []
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
                view = view.toreadonly()
            tensor = Tensor._received(name, datatype, shape, None, view)
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
            self,
        )

    def create_sender(self, request: InferenceRequest) -> InferenceResponseSender:
        """The sender of one of these requests; a closed one if the request has been answered."""
        for index, candidate in enumerate(self.requests):
            if candidate is request:
                own = [entry for entry in self._tensors if any(entry[1] is tensor for tensor in request._inputs)]
                return self._senders.create((self.number, index), request._requested_output_names, own)
        return self._senders.closed()

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

    def encode(self, responses: List[Optional[InferenceResponse]]) -> List[Any]:
        """The entries of RESULT: the responses as they go over the wire, outputs pruned to what was asked for."""
        entries: List[Any] = []
        try:
            for request, response in zip(self.requests, responses):
                entries.append(self._entry(request, response))
        except BaseException:
            self.take_back(entries)
            raise
        return entries

    def take_back(self, entries: List[Any]) -> None:
        """Frees the outputs of entries that are not to be sent after all."""
        self.free([offset for entry in entries if isinstance(entry, tuple) for offset in placed(entry[1])])

    def _entry(self, request: InferenceRequest, response: Optional[InferenceResponse]) -> Any:
        if request._release_flags & REQUEST_RELEASE_RESCHEDULE:
            if response is None:
                return self._rescheduled(request)
            if response._error is None:
                raise ContractBroken(
                    "Expected a None object in the execute function return list for reschduled request, "
                    "found type '{}'.".format(type(response))
                )
        if response is None:
            request.get_response_sender()
            return None
        sender = request._sender
        if sender is not None:
            if sender._sent:
                raise ContractBroken("Unable to send response. Non-decoupled model cannot send more than one response.")
            sender._revoke()
        return encode_response(response, request._requested_output_names, self)

    def left_open(self) -> List[Any]:
        """The entries of RESULT for a decoupled model: all is said, or will be, through senders."""
        entries: List[Any] = []
        for request in self.requests:
            if request._release_flags & REQUEST_RELEASE_RESCHEDULE:
                entries.append(self._rescheduled(request))
            else:
                request.get_response_sender()
                entries.append(None)
        return entries

    @staticmethod
    def _rescheduled(request: InferenceRequest) -> int:
        if request._sender is not None:
            request._sender._revoke()
        return messages.RESCHEDULED

    def give_up_senders(self, error: str) -> None:
        """Ends what is open: the whole batch has failed."""
        for request in self.requests:
            if request._sender is not None:
                request._sender._give_up(error)

    def senders(self) -> List["weakref.ref[InferenceResponseSender]"]:
        """Those that there are, without keeping them alive."""
        return [weakref.ref(request._sender) for request in self.requests if request._sender is not None]

    def place(self, buffer: Any) -> Tuple[int, ...]:
        """Where an output lies that is too large for the message. Raises ArenaFull."""
        given = None if isinstance(buffer, bytes) else self._given(buffer, buffer.nbytes)
        return self._channel.place(buffer) if given is None else given

    def free(self, offsets: List[int]) -> None:
        """Takes back what `place` has given."""
        self._channel.free(offsets)

    def _given(self, buffer: Any, nbytes: int) -> Optional[Tuple[int, int, int]]:
        """The descriptor of a buffer that lies in memory which the stub was given, else None."""
        if self._inputs:
            address = _address(buffer)
            for start, length, offset in self._inputs:
                if start <= address and address + nbytes <= start + length:
                    return (offset + address - start, nbytes, offset)
        lease = lease_of(buffer)
        if lease is None:
            return None
        self._leases.append(weakref.ref(lease))
        return (lease.offset + _address(buffer) - lease.address, nbytes, lease.offset)

    def watches(self) -> "List[Tuple[int, Optional[weakref.ref[Any]]]]":
        """For each input in the arena its offset and a reference that dies with the last view, None without a view."""
        own = self._own_tensors()
        if own is not self._tensors:
            mine = {offset for offset, _ in own}
            self._lent = [(offset, nbytes) for _, nbytes, offset in self._inputs if offset not in mine]
        return [(offset, tensor._watch()) for offset, tensor in own]

    def _own_tensors(self) -> List[Tuple[int, Tensor]]:
        """All but those that senders look after."""
        if not self._tensors:
            return self._tensors
        others = [
            id(tensor)
            for request in self.requests
            if request._sender is not None and not request._sender._revoked
            for tensor in request._inputs
        ]
        return [entry for entry in self._tensors if id(entry[1]) not in others] if others else self._tensors

    def drop(self) -> None:
        """Lets go of every object that the model was given."""
        self.requests = []
        self._tensors = []

    def settle(
        self, watches: "List[Tuple[int, Optional[weakref.ref[Any]]]]", wire: List[Any]
    ) -> Tuple[List[int], List[Any]]:
        """Finds the inputs that the model still holds, and moves outputs out of them: (held offsets, responses)."""
        held = []
        spans = list(self._lent)
        for offset, watch in watches:
            memory = watch() if watch is not None else None
            if memory is not None:
                held.append(offset)
                spans.append((offset, memory.nbytes))
                self._channel.hold(offset, memory)
        for reference in self._leases:
            lease = reference()
            if lease is not None:
                spans.append((lease.offset, lease.nbytes))
        if not spans:
            return held, wire
        return held, [self._moved(entry, spans) if isinstance(entry, tuple) else entry for entry in wire]

    def _moved(self, response: WireResponse, spans: List[Tuple[int, int]]) -> WireResponse:
        error, outputs, parameters = response
        moved: List[Any] = []
        for name, datatype, shape, data in outputs:
            if not isinstance(data, bytes) and any(at <= data[0] < at + nbytes for at, nbytes in spans):
                try:
                    data = self._channel.place(self._channel.arena.view(data[0], data[1]))
                except ArenaFull as full:
                    self.free(placed([*moved, *outputs[len(moved) :]]))
                    return no_memory(full)
            moved.append((name, datatype, shape, data))
        return (error, moved, parameters)
