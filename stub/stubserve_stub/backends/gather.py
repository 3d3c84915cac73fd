"""Joins requests to one batch along the first dimension, and divides its outputs again, for all native backends.

A batch of one request is not copied: its inputs are the views that came (but an input that is not aligned for its data
type is copied). Each input of several requests is copied once, into a buffer that is used again for the next batch,
unless a model has kept it. Outputs are not copied: each request gets a slice. A slice that lies in room that the
backend has asked for is answered from there. The model is asked only for outputs that some request wants.

Requests run together if they have the same inputs in the same shapes, apart from the first dimension. Others run one
after the other, which the scheduler keeps rare; so do all requests of a model without batching. Shapes that may differ,
inputs made for each run, and outputs that are divided by shapes are the business of `backends.ragged`.

BYTES. Backends compute on elements: the `memory` of an input is a flat array of `str` objects, because runtimes take no
others, and that of an output is one of `bytes` objects. A request with strings that are no text is refused, and the
others of its run go on without it.

Cost. For a batch of one request 3 µs; for each further one a copy of its inputs, a slice for each output, 2 µs.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from stubserve_stub.api import bytes_tensor
from stubserve_stub.backends.native import InputView, NativeOutput, NativeRequest, NativeResponse
from stubserve_stub.backends.ragged import RaggedBatches
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import codes, strings
from stubserve_stub.wire.arena import address_of
from stubserve_stub.wire.datatypes import BY_NUMBER, BYTES
from stubserve_stub.wire.layout import INLINE_BYTES
from stubserve_stub.wire.places import ZeroPages, zeros


class Gathered(NamedTuple):
    """One run of a model: `inputs` with all rows, and the names of the outputs that are wanted.

    `requests` is how many share the run, `rows` is the sum of their rows.
    """

    inputs: Dict[str, InputView]
    outputs: Collection[str]
    requests: int
    rows: int


Compute = Callable[[Gathered], Dict[str, NativeOutput]]


class Mistakes(Exception):
    """Why some requests of a run cannot be read, by their indices in it."""

    def __init__(self, refusals: Mapping[int, Refusal]) -> None:
        super().__init__()
        self.refusals = refusals


class Gatherer:
    """Runs the requests of one model's batches. With `batches` the first dimension of every tensor is the batch's.

    `ragged` is what the configuration says about ragged batches, or None. `reader` names what takes only text, for
    errors.
    """

    def __init__(
        self, model: str, batches: bool, ragged: Optional[RaggedBatches] = None, reader: str = "the backend"
    ) -> None:
        self._model = model
        self._batches = batches
        self._ragged = ragged
        self._reader = reader
        # By the name of an input: what batches are gathered into
        self._buffers: Dict[str, np.ndarray] = {}
        # The joined input of each for the last batch, alive while anything refers to it
        self._gathered: "Dict[str, weakref.ref[Any]]" = {}

    def run(self, requests: Sequence[NativeRequest], compute: Compute) -> List[NativeResponse]:
        """The response to each request. `compute` returns at least the outputs that it is asked for.

        A request with strings that are no text gets an error of its own. Any other Refusal, of `compute` or from here,
        answers the requests that share a run. Any other exception is for the whole batch.
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
        """The indices of requests that run as one: they have the same inputs, with rows of the same shape."""
        if len(requests) == 1 or not self._batches:
            return [[index] for index in range(len(requests))]
        ragged = () if self._ragged is None else self._ragged.inputs
        alike: Dict[Any, List[int]] = {}
        for index, request in enumerate(requests):
            rows = ((name, None if name in ragged else tuple(view.shape[1:])) for name, view in request.inputs.items())
            alike.setdefault(frozenset(rows), []).append(index)
        return list(alike.values())

    def _run(self, requests: Sequence[NativeRequest], compute: Compute) -> List[NativeResponse]:
        try:
            gathered = self.gather(requests)
            return self.scatter(requests, compute(gathered))
        except Refusal as refusal:
            return [_refused(refusal)] * len(requests)
        except Mistakes as mistakes:
            refusals = mistakes.refusals
        others = [request for index, request in enumerate(requests) if index not in refusals]
        answers = iter(self._run(others, compute) if others else ())
        return [_refused(refusals[index]) if index in refusals else next(answers) for index in range(len(requests))]

    def gather(self, requests: Sequence[NativeRequest]) -> Gathered:
        """One run for requests with inputs that fit. Raises Mistakes for strings that are no text, else Refusal."""
        ragged = self._ragged
        mistakes: Dict[int, Refusal] = {}
        inputs = {}
        for name in requests[0].inputs:
            views = [request.inputs[name] for request in requests]
            joined = self._texts(views, mistakes) if views[0].datatype == BYTES else self._joined(views)
            inputs[name] = joined if ragged is None else ragged.flattened(joined, views)
        if mistakes:
            raise Mistakes(mistakes)
        if ragged is not None:
            inputs.update(ragged.made(requests))
        outputs = requests[0].outputs
        if any(request.outputs != outputs for request in requests):
            outputs = list(dict.fromkeys(name for request in requests for name in request.outputs))
        return Gathered(inputs, outputs, len(requests), sum([request.rows for request in requests]))

    def scatter(self, requests: Sequence[NativeRequest], outputs: Dict[str, NativeOutput]) -> List[NativeResponse]:
        """The outputs of one run, divided among its requests. Raises Refusal if rows or elements are missing."""
        ragged = self._ragged
        rows = sum([request.rows for request in requests])
        # For each output: the part of each request
        parts: Dict[str, Sequence[NativeOutput]] = {}
        for name, output in outputs.items():
            if ragged is not None and name in ragged.scattered:
                parts[name] = _wired(ragged.parts(output, requests))
            elif self._batches:
                parts[name] = _wired(self._rows(output, requests, rows))
            else:
                parts[name] = _wired([output])
        return [
            NativeResponse([parts[name][index] for name in request.outputs]) for index, request in enumerate(requests)
        ]

    def _rows(self, output: NativeOutput, requests: Sequence[NativeRequest], rows: int) -> Sequence[NativeOutput]:
        """An output's part for each request, by their rows. Raises Refusal if it has not the rows of the batch."""
        name, datatype, shape, memory = output
        if not shape or shape[0] != rows:
            raise Refusal(self._misfit(requests, output, rows))
        if len(requests) == 1:
            return [output]
        behind = shape[1:]
        size = len(memory) // max(rows, 1)
        if datatype != BYTES and 0 < size <= INLINE_BYTES and rows == len(requests):
            # Each part goes into a message anyway, and parts of bytes are cheap.
            memory = bytes(memory)
        parts = []
        start = 0
        for request in requests:
            end = start + request.rows
            parts.append(NativeOutput(name, datatype, (request.rows, *behind), memory[start * size : end * size]))
            start = end
        return parts

    def _joined(self, views: Sequence[InputView]) -> InputView:
        """One input of several requests, copied once; that of one request as it is, if it is aligned."""
        name, datatype = views[0].name, views[0].datatype
        shape = joined_shape(views)
        memories = [view.memory for view in views]
        if len(views) == 1:
            (view,) = views
            if isinstance(view.memory, bytes):
                view = view._replace(memory=np.frombuffer(view.memory, np.uint8))
            if not address_of(view.memory) % BY_NUMBER[datatype].itemsize:
                return view
        nbytes = sum(map(len, memories))
        kinds = {type(memory) for memory in memories}
        if ZeroPages in kinds:
            return InputView(name, datatype, shape, _among_zeros(memories, nbytes))
        buffer = self._buffers.get(name)
        if buffer is None or buffer.nbytes < nbytes or self._gathered[name]() is not None:
            buffer = self._buffers[name] = np.empty(nbytes, np.uint8)
        joined: Any = np.frombuffer(memoryview(buffer), np.uint8, nbytes)  # type: ignore[arg-type]
        # All views of this array keep the memoryview below it alive, as in `backends.native`.
        self._gathered[name] = weakref.ref(joined.base)
        if kinds == {bytes}:
            joined.base[:nbytes] = b"".join(memories)
        else:
            np.concatenate([np.frombuffer(memory, np.uint8) for memory in memories], out=joined)
        return InputView(name, datatype, shape, joined)

    def _texts(self, views: Sequence[InputView], mistakes: Dict[int, Refusal]) -> InputView:
        """A BYTES input of some requests as a flat array of texts; `mistakes` gets strings that are no text."""
        name, datatype = views[0].name, views[0].datatype
        texts: List[str] = []
        for index, view in enumerate(views):
            try:
                texts += [element.decode() for element in bytes_tensor.decode(view.memory)]
            except UnicodeDecodeError as error:
                text = f"input '{name}' has a string that is no UTF-8, which {self._reader} cannot take: {error}"
                mistakes[index] = Refusal(text, codes.INVALID_ARG)
            except Exception as error:
                mistakes[index] = Refusal(f"input '{name}': {error}", codes.INVALID_ARG)
        return InputView(name, datatype, joined_shape(views), bytes_tensor.object_array(texts))

    def _misfit(self, requests: Sequence[NativeRequest], output: NativeOutput, rows: int) -> str:
        given = ", ".join(f"{view.name} {list(view.shape)}" for one in requests for view in one.inputs.values())
        return (
            f"output '{output.name}' of model '{self._model}' has shape {list(output.shape)}, but its first dimension "
            f"must be {rows}, the rows of the batch ({given}); where that dimension is none of the batch, "
            "'max_batch_size: 0' says so"
        )


def _refused(refusal: Refusal) -> NativeResponse:
    return NativeResponse(error=str(refusal), code=refusal.code)


def _among_zeros(memories: Sequence[Any], nbytes: int) -> Any:
    """The joined memory of slots of which some are empty; it takes no more memory than the others have."""
    joined = np.asarray(zeros(nbytes))
    end = 0
    for memory in memories:
        start, end = end, end + len(memory)
        if type(memory) is not ZeroPages:
            joined[start:end] = np.frombuffer(memory, np.uint8)
    return joined


def staying(outputs: Collection[str]) -> Collection[str]:
    """The outputs of a request that stay on the GPU. A request says of each output whether it stays, if any may."""
    return [name for name, stays in outputs.items() if stays] if isinstance(outputs, dict) else ()


def joined_shape(views: Sequence[InputView]) -> Sequence[int]:
    """The shape of one input of these requests, with the rows of all."""
    shape = views[0].shape
    return shape if len(views) == 1 else (sum([view.shape[0] for view in views]), *shape[1:])


def _wired(parts: Sequence[NativeOutput]) -> Sequence[NativeOutput]:
    """Parts of an output in the form of the wire: BYTES with their lengths."""
    if not parts or parts[0].datatype != BYTES:
        return parts
    return [part._replace(memory=strings.join(part.memory.tolist())) for part in parts]
