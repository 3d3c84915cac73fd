"""Requests as one batch along the first dimension, and its outputs as theirs again: the same for all native backends.

Guarantees. A batch of one request is not copied: its inputs are the views that came (but one that does not lie where
its data type may lie is). Of several requests each input is copied once, straight into one buffer, which is used again
for the next batch. Outputs are not copied at all: each
request gets a slice, and where that lies in room that the backend has asked for, it is answered from there. Only
outputs that some request asks for are asked of the model, and each request gets its own.

Which requests run as one. Those that give the same inputs in the same shapes, but for the first dimension; others run
after one another, as do all requests of a model without batching. The scheduler sees to it that this is rare.

BYTES. Backends compute on elements, not on the bytes in which they travel: an input's `memory` is a flat array of
`bytes` objects, and so is an output's.

Cost. For a batch of one request 3 µs; for each further one a copy of its inputs, a slice for each output, 1.5 µs.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from stubserve_stub.api import bytes_tensor
from stubserve_stub.backends.native import InputView, NativeRequest, NativeResponse, Output
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import codes, strings
from stubserve_stub.wire.datatypes import BY_NUMBER, BYTES
from stubserve_stub.wire.layout import INLINE_BYTES


class Gathered(NamedTuple):
    """What a model is to compute in one run: `inputs` with all rows, and the names of the outputs that are asked for.

    `requests` is how many share the run, `rows` how many rows they have together.
    """

    inputs: Dict[str, InputView]
    outputs: Sequence[str]
    requests: int
    rows: int


Compute = Callable[[Gathered], Dict[str, Output]]


class Gatherer:
    """Runs the requests of one model's batches. With `batches` the first dimension of every tensor is the batch's."""

    def __init__(self, model: str, batches: bool) -> None:
        self._model = model
        self._batches = batches
        # By the name of an input: what batches are gathered into
        self._buffers: Dict[str, Any] = {}

    def run(self, requests: Sequence[NativeRequest], compute: Compute) -> List[NativeResponse]:
        """The response to each request. `compute` returns at least the outputs that it is asked for.

        What is refused, by `compute` or here, is the answer to those requests that share a run. Whatever else is raised
        is for all.
        """
        together = self._together(requests)
        if len(together) == 1:
            return self._run(requests, compute)
        responses: Dict[int, NativeResponse] = {}
        for members in together:
            answers = self._run([requests[index] for index in members], compute)
            responses.update(zip(members, answers))
        return [responses[index] for index in range(len(requests))]

    def _together(self, requests: Sequence[NativeRequest]) -> List[List[int]]:
        """The indices of requests that run as one."""
        if len(requests) == 1:
            return [[0]]
        if not self._batches:
            return [[index] for index in range(len(requests))]
        first = _form(requests[0])
        if all(_form(request) == first for request in requests):
            return [list(range(len(requests)))]
        alike: Dict[Any, List[int]] = {}
        for index, request in enumerate(requests):
            # The order in which a client has listed its inputs does not matter.
            key = frozenset((name, tuple(tail)) for name, tail in _form(request))
            alike.setdefault(key, []).append(index)
        return list(alike.values())

    def _run(self, requests: Sequence[NativeRequest], compute: Compute) -> List[NativeResponse]:
        try:
            gathered = self.gather(requests)
            return self.scatter(requests, compute(gathered))
        except Refusal as refusal:
            return [NativeResponse(error=str(refusal), code=refusal.code)] * len(requests)

    def gather(self, requests: Sequence[NativeRequest]) -> Gathered:
        """One run for requests of which all inputs fit. Raises Refusal for BYTES that are none."""
        first = requests[0]
        if len(requests) == 1:
            inputs = {name: self._single(view) for name, view in first.inputs.items()}
            return Gathered(inputs, first.outputs, 1, first.rows)
        inputs = {}
        for name in first.inputs:
            views = [request.inputs[name] for request in requests]
            inputs[name] = self._elements(views) if views[0].datatype == BYTES else self._joined(views)
        outputs = first.outputs
        if any(request.outputs is not outputs for request in requests):
            outputs = list(dict.fromkeys(name for request in requests for name in request.outputs))
        return Gathered(inputs, outputs, len(requests), sum(request.rows for request in requests))

    def scatter(self, requests: Sequence[NativeRequest], outputs: Dict[str, Output]) -> List[NativeResponse]:
        """The outputs of one run for the requests that have shared it, by their rows. Raises Refusal if rows miss."""
        if len(requests) == 1 and not self._batches:
            return [NativeResponse([_wired(outputs[name]) for name in requests[0].outputs])]
        rows = sum(request.rows for request in requests)
        for output in outputs.values():
            if not output.shape or output.shape[0] != rows:
                raise Refusal(self._misfit(requests, output, rows))
        if len(requests) == 1:
            return [NativeResponse([_wired(outputs[name]) for name in requests[0].outputs])]
        # Of each output: its memory, the shape behind the rows, and how much of the memory one row takes
        parts = {
            name: (
                output.datatype,
                _sliceable(output, len(requests)),
                output.shape[1:],
                len(output.memory) // max(rows, 1),
            )
            for name, output in outputs.items()
        }
        responses = []
        start = 0
        for request in requests:
            end = start + request.rows
            slices = []
            for name in request.outputs:
                datatype, memory, shape, size = parts[name]
                part = Output(name, datatype, (request.rows, *shape), memory[start * size : end * size])
                slices.append(part if datatype != BYTES else _wired(part))
            responses.append(NativeResponse(slices))
            start = end
        return responses

    def _single(self, view: InputView) -> InputView:
        if view.datatype == BYTES:
            return self._elements([view])
        if isinstance(view.memory, bytes):
            view = view._replace(memory=np.frombuffer(view.memory, np.uint8))
        if address_of(view.memory) % BY_NUMBER[view.datatype].itemsize:
            return self._joined([view])
        return view

    def _joined(self, views: Sequence[InputView]) -> InputView:
        """One input of several requests, copied once."""
        name, datatype, shape, _ = views[0]
        memories = [view.memory for view in views]
        if all(isinstance(memory, bytes) for memory in memories):
            joined = np.frombuffer(b"".join(memories), np.uint8)
        else:
            nbytes = sum(map(len, memories))
            buffer = self._buffers.get(name)
            if buffer is None or buffer.nbytes < nbytes:
                buffer = self._buffers[name] = np.empty(nbytes, np.uint8)
            joined = buffer[:nbytes]
            np.concatenate([np.frombuffer(memory, np.uint8) for memory in memories], out=joined)
        if len(views) > 1:
            shape = (sum(view.shape[0] for view in views), *shape[1:])
        return InputView(name, datatype, shape, joined)

    def _elements(self, views: Sequence[InputView]) -> InputView:
        """One BYTES input of one or several requests, as a flat array of its elements."""
        name, datatype, shape, _ = views[0]
        elements: List[bytes] = []
        for view in views:
            try:
                elements += bytes_tensor.decode(view.memory)
            except Exception as error:
                raise Refusal("input '{}': {}".format(name, error), codes.INVALID_ARG) from None
        if len(views) > 1:
            shape = (sum(view.shape[0] for view in views), *shape[1:])
        return InputView(name, datatype, shape, bytes_tensor.object_array(elements))

    def _misfit(self, requests: Sequence[NativeRequest], output: Output, rows: int) -> str:
        return (
            "output '{}' of model '{}' has shape {}, but its first dimension must be {}, the rows of the batch ({}); "
            "where that dimension is none of the batch, 'max_batch_size: 0' says so".format(
                output.name,
                self._model,
                list(output.shape),
                rows,
                ", ".join("{} {}".format(name, list(view.shape)) for name, view in _inputs(requests)),
            )
        )


def _form(request: NativeRequest) -> List[Tuple[str, Sequence[int]]]:
    """What requests of one run have in common: the names of their inputs, and the shapes of one row."""
    return [(name, view.shape[1:]) for name, view in request.inputs.items()]


def _inputs(requests: Sequence[NativeRequest]) -> List[Tuple[str, InputView]]:
    return [pair for request in requests for pair in request.inputs.items()]


def _sliceable(output: Output, requests: int) -> Any:
    """Memory of an output from which cheap parts can be cut: bytes where each part goes into a message anyway."""
    memory = output.memory
    small = output.datatype != BYTES and output.shape[0] == requests and len(memory) <= requests * INLINE_BYTES
    return bytes(memory) if small else memory


def _wired(output: Output) -> Output:
    """An output as it travels: BYTES with their lengths."""
    if output.datatype != BYTES:
        return output
    return output._replace(memory=strings.join(output.memory.tolist()))


def address_of(memory: Any) -> int:
    """Where an array lies in this process."""
    address: int = memory.__array_interface__["data"][0]
    return address


def nbytes_of(datatype: int, shape: Sequence[int]) -> int:
    """The size of a tensor that is not of BYTES."""
    nbytes = BY_NUMBER[datatype].itemsize
    for dim in shape:
        nbytes *= dim
    return nbytes
