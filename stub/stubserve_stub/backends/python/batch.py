"""One batch as a model sees it: from wire requests to the objects of `pb_utils`, and back to wire responses.

`runtime.batch` looks after the memory under its tensors. A tensor over memory that others read, too, is copied when the
model looks at it. When `execute` has returned, a request with a sender belongs to the sender, and so do its inputs. The
states of a sequence (`runtime.states`) are additional inputs, behind those of the request.
"""

from __future__ import annotations

import weakref
from typing import Any, List, Optional, Sequence, Tuple

import numpy as np

from stubserve_stub.api.constants import REQUEST_RELEASE_RESCHEDULE
from stubserve_stub.api.requests import InferenceRequest
from stubserve_stub.api.responses import InferenceResponse
from stubserve_stub.api.sender import InferenceResponseSender, Senders, blank
from stubserve_stub.api.tensors import Tensor, state_tensor
from stubserve_stub.backends.python.model import ContractBroken
from stubserve_stub.runtime.batch import Batch
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.runtime.states import States, StateUpdate
from stubserve_stub.wire import messages
from stubserve_stub.wire.messages import Entry, WireRequest
from stubserve_stub.wire.places import DEVICE, LIST, ZEROS


class ModelBatch:
    """The requests of one batch as the model's objects. Raises Refusal for a request that Python cannot represent.

    With `takes_devices` inputs in memory of a GPU stay there.
    """

    def __init__(
        self,
        batch: Batch,
        senders: Senders,
        output_names: List[str],
        states: Optional[States] = None,
        takes_devices: bool = False,
    ) -> None:
        self._batch = batch
        self._takes_devices = takes_devices
        self._senders = senders
        self.number = batch.number
        # Inputs in the arena: offset and tensor of each
        self._tensors: List[Tuple[int, Tensor]] = []
        self.requests: List[InferenceRequest] = []
        for wire in batch.requests:
            self.requests.append(self._request(wire, output_names))
        # What each request does with the states of its sequence; empty for models without implicit state
        self._updates: Sequence[StateUpdate] = ()
        if states is not None and batch.sequences:
            self._updates = states.updates(batch.sequences, [request.flags() for request in self.requests])
            for request, update in zip(self.requests, self._updates):
                for tensor, spec in zip(update.tensors, states.specs):
                    request._inputs.append(state_tensor(states, tensor, spec.in_place))

    def _request(self, wire: Optional[WireRequest], output_names: List[str]) -> InferenceRequest:
        if wire is None:
            raise Refusal("a slot of the batch is empty, which Python models have no way to see")
        request_id, options, trace, requested, wire_inputs = wire
        inputs = []
        for name, datatype, shape, data in wire_inputs:
            if isinstance(data, bytes):
                inputs.append(Tensor._received(name, datatype, shape, data, None))
                continue
            if isinstance(data, np.ndarray):
                inputs.append(Tensor._of_region(name, datatype, shape, data))
                continue
            if data[0] == LIST:
                inputs.append(Tensor._listed(name, shape, data[1]))  # type: ignore[arg-type]
                continue
            if data[0] == ZEROS:
                inputs.append(Tensor._of_zeros(name, datatype, shape, data[1]))  # type: ignore[arg-type]
                continue
            if data[0] == DEVICE and self._takes_devices:
                inputs.append(self._on_device(name, datatype, shape, data))
                continue
            offset, view = self._batch.input(name, data)
            tensor = Tensor._received(name, datatype, shape, None, view)
            self._tensors.append((offset, tensor))
            inputs.append(tensor)
        request: InferenceRequest = object.__new__(InferenceRequest)
        request._set(
            request_id,
            options,
            trace,
            output_names if requested is None else requested,
            inputs,
            None,
            self.create_sender,
        )
        return request

    def _on_device(self, name: str, datatype: int, shape: Sequence[int], data: Any) -> Tensor:
        from stubserve_stub.api.device_tensors import DeviceTensor  # not at the top: only servers with GPUs need it

        memory = self._batch.device_input(name, data)
        tensor = DeviceTensor(name, datatype, shape, memory, self._senders.channel.devices)
        if memory.offset >= 0:
            self._tensors.append((memory.offset, tensor))
        return tensor

    def create_sender(self, request: InferenceRequest) -> InferenceResponseSender:
        """The sender of one of these requests; a closed one if the request has been answered."""
        for index, candidate in enumerate(self.requests):
            if candidate is request:
                own = [entry for entry in self._tensors if any(entry[1] is tensor for tensor in request._inputs)]
                update = self._updates[index] if self._updates else None
                return self._senders.create((self.number, index), request._requested_output_names, own, update)
        return blank(self._senders, answered=True)

    def check(self, result: Any) -> List[Optional[InferenceResponse]]:
        """The result of `execute` as one response (or None) per request. Raises ContractBroken."""
        if result is None:
            return [None] * len(self.requests)
        if not isinstance(result, list):
            raise ContractBroken(f"Expected a list in the execute return, found type '{type(result)}'.")
        if len(result) != len(self.requests):
            raise ContractBroken(
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                f"InferenceRequest(s) size is:{len(self.requests)}, and InferenceResponse(s) size is:{len(result)}\n"
            )
        for response in result:
            if response is not None and not isinstance(response, InferenceResponse):
                raise ContractBroken(
                    "Expected an 'InferenceResponse' object in the execute function return list, "
                    f"found type '{type(response)}'."
                )
        return result

    def encode(self, responses: List[Optional[InferenceResponse]]) -> List[Entry]:
        """The entries of RESULT: the responses in the form of the wire, with only the wanted outputs."""
        entries: List[Entry] = []
        try:
            for index, (request, response) in enumerate(zip(self.requests, responses)):
                entries.append(self._entry(index, request, response))
        except BaseException:
            self._batch.take_back(entries)
            raise
        return entries

    def _entry(self, index: int, request: InferenceRequest, response: Optional[InferenceResponse]) -> Any:
        batch = self._batch
        update = self._updates[index] if self._updates else None
        if request._release_flags & REQUEST_RELEASE_RESCHEDULE:
            if response is None:
                return self._rescheduled(request)
            if response._error is None and update is not None:
                failure = response._keep(update, update.keep_only, batch)
                return self._rescheduled(request) if failure is None else failure
            if response._error is None:
                raise ContractBroken(
                    "Expected a None object in the execute function return list for reschduled request, "
                    f"found type '{type(response)}'."
                )
        if response is None:
            request.get_response_sender()
            return None
        sender = request._sender
        if sender is not None:
            if sender._sent:
                raise ContractBroken("Unable to send response. Non-decoupled model cannot send more than one response.")
            sender._end()
        outputs = None if batch.regions is None else batch.regions.writer(index)
        return response._encode(request._requested_output_names, batch, update, False, outputs, self._senders.misnamed)

    def left_open(self) -> List[Entry]:
        """The entries of RESULT for a decoupled model, which answers through senders."""
        entries: List[Entry] = []
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
            request._sender._end()
        return messages.RESCHEDULED

    def give_up_senders(self, error: str) -> None:
        """Ends what is open: the whole batch has failed."""
        for request in self.requests:
            if request._sender is not None:
                request._sender._end(error)

    def end_updates(self) -> None:
        """The batch has been executed, well or not: sequences whose last request was in it are over."""
        for update in self._updates:
            update.end()

    def senders(self) -> List["weakref.ref[InferenceResponseSender]"]:
        """The senders that there are, without keeping them alive."""
        return [weakref.ref(request._sender) for request in self.requests if request._sender is not None]

    def cancel(self, indices: Sequence[int]) -> None:
        """The clients of these requests are gone. Safe from any thread."""
        requests = self.requests
        for index in indices:
            if index < len(requests):  # there are none when the batch has been released
                requests[index]._cancelled = True

    def release(self) -> None:
        """Drops every object that the model was given, and has the batch's memory watch those that it keeps."""
        if self._tensors:
            batch = self._batch
            lent = [
                id(tensor)
                for request in self.requests
                if request._sender is not None and not request._sender._revoked
                for tensor in request._inputs
            ]
            for offset, tensor in self._tensors:
                if lent and id(tensor) in lent:
                    batch.lend(offset)
                else:
                    batch.watch(offset, tensor._watch())
        self.requests = []
        self._tensors = []
