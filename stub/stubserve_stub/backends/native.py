"""What backends share that compute on tensors, not on the objects of `pb_utils`: views come in, outputs go out.

`compute` gets the whole batch: the requests, each with its `rows` along the first dimension. `backends.gather` makes
one tensor of them, and divides its outputs. Nothing is copied here: an input's memory is the arena's, and an output
that lies there, or in `room` that was asked for, is answered from there.

Each input above INLINE_BYTES is one array. All views of it keep the memoryview at its bottom alive, and inputs that are
alive when `execute` has returned are held (`runtime.batch`). So a backend may simply keep an input.

For a backend that `keeps_states`, implicit states (`runtime.states`) are additional inputs, always read-only, and
additional outputs of a request; `compute` need not know of them.
"""

from __future__ import annotations

import json
import weakref
from typing import TYPE_CHECKING, Any, Collection, Dict, Iterable, List, NamedTuple, Optional, Sequence

import numpy as np

from stubserve_stub.backends.base import Backend, InstanceSetup
from stubserve_stub.runtime.batch import Batch
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.runtime.outputs import failed, response_of
from stubserve_stub.runtime.states import States, StateUpdate, keep_states
from stubserve_stub.wire import strings
from stubserve_stub.wire.arena import ArenaFull, bottom_of
from stubserve_stub.wire.messages import Entry, WireRequest
from stubserve_stub.wire.options import RequestOptions
from stubserve_stub.wire.places import DEVICE, LIST, ZEROS, zeros

if TYPE_CHECKING:
    # Only servers with GPUs need it.
    from stubserve_stub.runtime.devices import DeviceMemory


class InputView(NamedTuple):
    """An input. `memory` is `bytes` for a small one, else an array of uint8, read-only where others see it, too.

    BYTES are as they travel: each element behind its length.
    """

    name: str
    datatype: int
    shape: Sequence[int]
    memory: Any


class NativeRequest(NamedTuple):
    """One request: its inputs by name, the outputs that it wants, and its rows along the first dimension.

    Without batching there is no such dimension, and `rows` is 1.
    """

    inputs: Dict[str, InputView]
    outputs: Collection[str]
    rows: int


class NativeOutput(NamedTuple):
    """An output. `memory` is any contiguous buffer with its bytes."""

    name: str
    datatype: int
    shape: Sequence[int]
    memory: Any


class NativeResponse(NamedTuple):
    """The answer to a request: outputs, or an error with a `code` of `wire.codes`."""

    outputs: Sequence[NativeOutput] = ()
    parameters: Optional[Dict[str, Any]] = None
    error: str = ""
    code: int = 0


class NativeBackend(Backend):
    """The part of a backend that deals with the wire; each backend has its own `compute`."""

    # The methods of the contract that a Python model would have
    methods = ("execute",)
    # Whether `compute` may write to inputs that nobody else reads; if not, all inputs are read-only
    writes_inputs = True
    # Whether the stub keeps states, which are inputs and outputs of `compute`
    keeps_states = False
    # Whether states come and go with each request, because the server keeps them (`Card.server_keeps_states`)
    gets_states = False
    _states: Optional[States] = None
    # The `backends.on_gpu.Blocks` of an instance on a GPU: it is given what lies on GPUs as it is
    blocks: Any = None
    # The batch that is computed
    _batch: Optional[Batch] = None

    def instance_initialize(self, instance: InstanceSetup) -> None:
        self.instance = instance
        self.config: Dict[str, Any] = json.loads(instance.arguments["model_config"])
        self._batches = int(self.config.get("max_batch_size", 0)) > 0
        if self.keeps_states:
            self._states = keep_states(self.config, instance.arguments["model_repository"], self.host)
        elif (self.config.get("sequence_batching") or {}).get("state") and not self.gets_states:
            raise Refusal(
                f"model instance '{instance.name}' is configured with implicit state (sequence_batching.state), which "
                f"the backend '{self.config.get('backend')}' does not keep"
            )

    def compute(self, requests: List[NativeRequest]) -> List[NativeResponse]:
        """The response to each request. An exception is the answer to all of them."""
        raise NotImplementedError

    def room(self, nbytes: int, source: Optional[DeviceMemory] = None) -> Optional[np.ndarray]:
        """Memory (uint8) for outputs of the current batch, which are sent from there; None if there is no room.

        `source` is what they come down from, if that is a GPU.
        """
        assert self._batch is not None, "only `compute` may ask"
        try:
            return self._batch.reserve(nbytes, source)
        except ArenaFull:
            return None  # a copy for each request may still fit, and if not, only that request fails

    def execute(self, batch: Batch) -> Sequence[Entry]:
        requests = [self._request(wire, batch) for wire in batch.requests if wire is not None]
        if batch.sequences and self._states is not None:
            responses = self._compute_with_states(self._states, batch, requests)
        else:
            responses = self._compute(batch, requests)
        assert len(responses) == len(requests), "one response for each request"
        given = zip(requests, responses)
        entries: List[Entry] = []
        try:
            for wire in batch.requests:
                # Not a comprehension: when one entry fails, those before it have to be known.
                entries.append(None if wire is None else self._entry(*next(given), batch, len(entries)))
        except BaseException:
            batch.take_back(entries)
            raise
        return entries

    def _compute(self, batch: Batch, requests: List[NativeRequest]) -> List[NativeResponse]:
        self._batch = batch
        try:
            return self.compute(requests)
        finally:
            self._batch = None
            batch.computed()

    def _compute_with_states(self, states: States, batch: Batch, requests: List[NativeRequest]) -> List[NativeResponse]:
        """As `_compute`, with the states of each request's sequence; the new states are kept."""
        there = [(wire, number) for wire, number in zip(batch.requests, batch.sequences) if wire is not None]
        updates = states.updates([number for _, number in there], [RequestOptions(*wire[1]).flags for wire, _ in there])
        try:
            responses = self._compute(batch, [_with_states(*pair, states) for pair in zip(requests, updates)])
            # In room that several requests share, the state of a silent sequence would keep the room of all.
            placer = batch if len(requests) == 1 else self.host.channel
            kept = zip(requests, updates, responses)
            return [_without_states(*one, placer) for one in kept]
        finally:
            for update in updates:
                update.end()

    def _request(self, wire: WireRequest, batch: Batch) -> NativeRequest:
        requested, wire_inputs = wire[-2:]
        inputs = {}
        for wire_input in wire_inputs:
            name, datatype, shape, place = wire_input
            memory = place if type(place) is bytes else self._input_memory(name, place, batch)
            inputs[name] = InputView(name, datatype, shape, memory)
        rows = wire_inputs[0][2][0] if self._batches and wire_inputs else 1
        return NativeRequest(inputs, self.instance.outputs if requested is None else requested, rows)

    def _input_memory(self, name: str, place: Any, batch: Batch) -> Any:
        """The memory of an input that is not in the message, as `compute` has it. Raises Refusal."""
        if isinstance(place, np.ndarray):
            return place
        if place[0] == DEVICE and self.blocks is not None:
            return batch.device_input(name, place)
        if place[0] == LIST:
            return strings.join(list(place[1]))
        if place[0] == ZEROS:
            return zeros(place[1])
        offset, view = batch.input(name, place, self.writes_inputs)
        array = np.frombuffer(view, np.uint8)
        batch.watch(offset, weakref.ref(bottom_of(array)))
        return array

    def _entry(self, request: NativeRequest, response: NativeResponse, batch: Batch, slot: int) -> Entry:
        """What the batch's RESULT has for a request."""
        if response.error:
            return failed(response.error, response.code)
        in_regions = None if batch.regions is None else batch.regions.writer(slot)
        outputs: Iterable[Any] = response.outputs
        if self.blocks is not None:
            outputs = self.blocks.placed(request, response, batch, in_regions)
        return response_of(outputs, response.parameters, batch, in_regions)


def _with_states(request: NativeRequest, update: StateUpdate, states: States) -> NativeRequest:
    inputs = dict(request.inputs)
    for tensor in update.tensors:
        name, datatype, shape, _ = tensor
        inputs[name] = InputView(name, datatype, shape, states.memory(tensor))
    outputs = request.outputs
    if update.sequence:
        outputs = [*outputs, *(name for name in states.outputs if name not in outputs)]
    return NativeRequest(inputs, outputs, request.rows)


def _without_states(
    request: NativeRequest, update: StateUpdate, response: NativeResponse, placer: Any
) -> NativeResponse:
    """The response with only the outputs that its request wants; keeps the states."""
    if response.error or not update.sequence:
        return response
    try:
        answered = {output.name: (output.datatype, output.shape, output.memory) for output in response.outputs}
        update.keep(answered, placer)
    except (Refusal, ArenaFull) as error:
        return NativeResponse(error=str(error), code=error.code)
    return response._replace(outputs=[output for output in response.outputs if output.name in request.outputs])
