"""The requests of one worker's clients, as the owner carries them out.

A request comes with its tensors' places in the worker's segment, and is submitted like any client's: found, admitted
if the worker has not done that by the description that is true now, queued, counted, traced. Its answer goes back
through the worker's answer ring; outputs are held until the worker has sent them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from stubserve_stub.wire import places
from stubserve_stub.wire.datatypes import BYTES
from stubserve_stub.wire.messages import WireTensor
from stubserve_stub.wire.places import InArena, InRegion

from stubserve.errors import ServeError, unsupported
from stubserve.inference.call import Call
from stubserve.inference.regions import RegionPlace, RegionSpan
from stubserve.inference.request import Request, Response, unanswered
from stubserve.inference.served_model import ServedModel
from stubserve.inference.signature import Signature
from stubserve.inference.tensor import Tensor, drop_blocks
from stubserve.ingress.messages import MOST_DESCRIBED, WireError, WireRequest
from stubserve.instances.answer_ring import AnswerRing
from stubserve.instances.stub_memory import StubMemory
from stubserve.protocols.client_regions import RegionTable

# Under this key a signature has its number, and its configuration as bytes.
_MEMO = "ingress"
_numbers = itertools.count(1)


class _Told:
    """What a worker was told last of a model, by the name and version that requests have."""

    __slots__ = ("name", "signature", "version")

    def __init__(self, name: str, version: str) -> None:
        self.name = name
        self.version = version
        self.signature: Signature | None = None


class Models(Protocol):
    """Those that a worker's clients may ask for. Both ways of asking raise ServeError."""

    def find_model(self, name: str, version: str) -> ServedModel:
        """The one that a request is for; none while requests are refused for want of memory."""

    def known_model(self, name: str, version: str) -> ServedModel:
        """The one that is to be described."""


class WorkerCall(Call):
    """One request, which the worker knows by `number`."""

    __slots__ = ("_calls", "_context", "number", "told")

    protocol = "HTTP"

    def __init__(self, calls: WorkerCalls, model: ServedModel, number: int, told: _Told, context: str | None) -> None:
        super().__init__(model)
        self._calls = calls
        self._context = context
        self.number = number
        self.told = told

    def trace_context(self) -> str | None:
        return self._context

    def respond(self, request: Request, response: Response) -> None:
        self._calls.answer(self, response)


class WorkerCalls:
    """Those of one worker (`messages.WorkerListener`). `memory` is the worker's.

    `models` are the owner's; `state` tells the number of the registry's state; `regions` are None where clients
    may not use shared memory.
    """

    def __init__(
        self,
        models: Models,
        memory: StubMemory,
        answers: AnswerRing,
        state: Callable[[], int],
        regions: RegionTable | None = None,
    ) -> None:
        self._regions = regions
        self._models = models
        self._memory = memory
        self._answers = answers
        self._state = state
        self._open: dict[int, WorkerCall] = {}
        self._told: dict[tuple[str, str], _Told] = {}
        # Models with new requests in their queues
        self._due: list[ServedModel] = []

    @property
    def under_way(self) -> int:
        """Requests that are not answered."""
        return len(self._open)

    def on_call(self, call: int, model: str, version: str, request: WireRequest, released: Sequence[int]) -> None:
        if call in self._open or type(call) is not int:
            raise ValueError(f"call {call!r} is one that is under way, or no number")
        if released:
            self._memory.release(released)
        try:
            self._start(call, model, version, request)
        except ServeError as error:
            self._answers.send(call, True, (_wire_error(error, refused=True), (), None))

    def on_cancel(self, call: int) -> None:
        found = self._open.get(call)
        if found is not None:
            found.cancel()

    def on_released(self, offsets: Sequence[int]) -> None:
        self._memory.release(offsets)

    def on_describe(self, model: str, version: str) -> None:
        try:
            found = self._models.known_model(model, version)
        except ServeError:
            return  # its clients are told by the owner itself
        self._tell(self._told_of(model, version), found)

    def schedule(self) -> None:
        """Runs what the last messages have brought; once for all of them, so that they can share a batch."""
        due, self._due = self._due, []
        for model in due:
            model.poll()

    def free_now(self) -> None:
        """Tells the worker of inputs that have been read, where no answer is going to."""
        self._answers.send(0, True, None)

    def close(self) -> None:
        """The worker is gone: nobody waits for its requests any more."""
        calls = list(self._open.values())
        self._open.clear()
        self._answers.close()
        for call in calls:
            call.cancel()

    # There

    def _start(self, number: int, name: str, version: str, wire: WireRequest) -> None:
        (
            id_, correlation_id, flags, priority, timeout_us, parameters, requested, wire_inputs, start_ns, context,
            description, batch_size, client, regions,
        ) = wire  # fmt: skip
        inputs: list[Tensor] = []
        request = Request(
            inputs, unanswered, id_, correlation_id, flags, priority, timeout_us, parameters,
            None if requested is None else list(requested),
        )  # fmt: skip
        request.request_start_ns = start_ns
        try:
            self._take_inputs(wire_inputs, inputs)
            if regions is not None:
                request.regions = {output: self._piece(*place) for output, *place in regions}
            model = self._models.find_model(name, version)
            signature = model.signature
            if signature.decoupled:
                raise unsupported("HTTP end point doesn't support models with decoupled transaction policy")
        except BaseException:
            drop_blocks(inputs)
            raise
        if description and description == number_of(signature):
            request.batch_size = batch_size
            request.admitted = True
        call = WorkerCall(self, model, number, self._told_of(name, version), context)
        call.client = client
        request.on_response = call.on_response
        self._open[number] = call
        try:
            call.submit(request, together=True)
        except BaseException:
            self._open.pop(number, None)
            raise
        if model not in self._due:
            self._due.append(model)

    def _take_inputs(self, wire_inputs: Sequence[WireTensor], inputs: list[Tensor]) -> None:
        """Raises ServeError, and whatever nonsense makes of itself."""
        refused: ServeError | None = None
        for wire in wire_inputs:
            try:
                inputs.append(self._input(wire))
            except ServeError as error:
                refused = error  # the others are taken all the same: the worker hears that they are free by that alone
        if refused is not None:
            raise refused

    def _input(self, wire: WireTensor) -> Tensor:
        name, datatype, shape, data = wire
        if isinstance(data, bytes):
            return Tensor(name, datatype, shape, data)
        place = places.unpack(data)
        if isinstance(place, InRegion) and datatype != BYTES:
            return Tensor(name, datatype, shape, None, RegionSpan(self._piece(*place[1:])))
        if not isinstance(place, InArena):
            raise ValueError(f"input '{name}' of a worker's request cannot lie in {place!r}")
        return Tensor(name, datatype, shape, None, self._memory.output(place.offset, place.nbytes).whole())

    def _piece(self, number: int, offset: int, nbytes: int) -> RegionPlace:
        """What a worker has found in a client's shared memory. Raises ServeError; ValueError where it cannot be."""
        if self._regions is None:
            raise ValueError("clients' shared memory is not allowed")
        return self._regions.piece(number, offset, nbytes)

    # Back

    def answer(self, call: WorkerCall, response: Response) -> None:
        """Passes a response on to the worker; what nobody waits for any more is dropped by whoever made it."""
        if self._open.pop(call.number, None) is None:
            return
        if response.error is not None:
            self._answers.send(call.number, True, (_wire_error(response.error), (), None))
            return
        told = call.told
        if told.signature is not call.model.signature:
            self._tell(told, call.model)
        outputs = [self._output(tensor) for tensor in response.outputs]
        self._answers.send(call.number, True, (None, outputs, response.parameters))

    def _output(self, tensor: Tensor) -> WireTensor:
        if tensor.data is not None:
            return (tensor.name, tensor.datatype, tuple(tensor.shape), tensor.data)
        assert tensor.span is not None
        region = tensor.span.in_region(tensor.offset, tensor.nbytes)
        if region is not None:
            return (tensor.name, tensor.datatype, tuple(tensor.shape), region)
        self._memory.hold(tensor.offset, tensor.span)
        return (tensor.name, tensor.datatype, tuple(tensor.shape), InArena(tensor.offset, tensor.nbytes))

    def _told_of(self, name: str, version: str) -> _Told:
        told = self._told.get((name, version))
        if told is None:
            if len(self._told) >= MOST_DESCRIBED:
                self._told.clear()  # it costs no more than to describe some of them again
            told = self._told[name, version] = _Told(name, version)
        return told

    def _tell(self, told: _Told, model: ServedModel) -> None:
        """Describes a model."""
        told.signature = signature = model.signature
        config: bytes = signature.memo.setdefault(_MEMO + "-config", b"") or model.config.SerializeToString()
        signature.memo[_MEMO + "-config"] = config
        description = (
            told.name, told.version, self._state(), number_of(signature), config, signature.version, signature.labels
        )  # fmt: skip
        self._answers.send(0, True, description)


def number_of(signature: Signature) -> int:
    """The number of a signature among all that workers have been told of."""
    number: Any = signature.memo.get(_MEMO)
    if number is None:
        number = signature.memo[_MEMO] = next(_numbers)
    return int(number)


def _wire_error(error: ServeError, refused: bool = False) -> WireError:
    return (error.message, int(error.code), error.retry_after_s, refused)
