"""Batches, requests and tensors in the form of the wire, in both directions.

A batch becomes an EXECUTE message, and the entries of a RESULT message become responses. The requests that models make
(`bls`) are read and answered with the same functions.

No message from a stub is trusted. A response that names memory which the stub may not name becomes an error; data that
is no message raises. In both cases the memory of the parts already read is dropped, or the segment around it could
never be given back.
"""

# Compiled by mypyc.
from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain

from stubserve_stub.wire import messages, places
from stubserve_stub.wire.datatypes import BYTES
from stubserve_stub.wire.messages import Entry, WireRequest, WireResponse, WireTensor
from stubserve_stub.wire.options import RequestOptions
from stubserve_stub.wire.places import AsList, InArena, InRegion, Lent, OnDevice, Place, Zeros

from stubserve.errors import Code, ServeError, internal
from stubserve.inference.request import BACKEND_FAILURE, SUCCESS, Request, Response
from stubserve.inference.tensor import Tensor, drop_blocks, hold_blocks
from stubserve.inference.work import Work
from stubserve.memory.blocks import Block
from stubserve.memory.device_pools import DeviceSpan
from stubserve.memory.stub_memory import StubMemory


class InFlightBatch:
    """A batch that a stub has.

    `work` is its origin. `extras` are the inputs that a scheduler has added to each slot and that the stub still has,
    or None; the batch holds their memory. `spilled` is the block of a message that was too large for the ring.
    `answered` are the slots of requests that have had their final response before the batch's result, or None.
    """

    __slots__ = ("answered", "extras", "spilled", "work")

    def __init__(self, work: Work, spilled: Block | None) -> None:
        self.work = work
        self.extras = work.extra_inputs
        self.spilled = spilled
        self.answered: set[int] | None = None
        if self.extras is not None:
            for tensors in self.extras:
                hold_blocks(tensors)

    def unanswered(self) -> Sequence[Request]:
        answered = self.answered
        if not answered:
            return self.work.requests
        return [r for index, r in enumerate(self.work.slots) if r is not None and index not in answered]

    def tensors(self) -> Iterator[Tensor]:
        for request in self.work.requests:
            yield from request.inputs
        for tensors in self.extras or ():
            yield from tensors

    def take_extras(self, index: int) -> Sequence[Tensor]:
        """Returns the extra inputs of a slot, with the batch's hold on their memory."""
        if self.extras is None:
            return ()
        taken = self.extras[index]
        self.extras = [*self.extras[:index], (), *self.extras[index + 1 :]]
        return taken

    def drop(self) -> None:
        if self.spilled is not None:
            self.spilled.drop()
        for tensors in self.extras or ():
            drop_blocks(tensors)


def pack_batch(number: int, frees: Sequence[int], work: Work) -> bytes:
    """The message that makes a stub execute this work, and free the outputs that the parent has read.

    The extra inputs of a slot come behind those of its request; an empty slot has only these.
    """
    extras = work.extra_inputs
    requests: list[WireRequest | None]
    outputs = None
    for index, slot in enumerate(work.slots):
        if slot is not None and slot.regions is not None:
            outputs = outputs or []
            outputs += [
                (index, name, place.region.number, place.offset, place.nbytes)
                for name, place in slot.regions.items()
                if not place.region.on_device
            ]
    if extras is None and work.options is None:
        requests = [None if slot is None else write_request(slot, slot.inputs) for slot in work.slots]
    else:
        requests = _written_with_extras(work)
    return messages.pack_execute(number, frees, requests, work.sequences, outputs)


def _written_with_extras(work: Work) -> list[WireRequest | None]:
    """The requests of work with more inputs, or other options, than its requests have."""
    written: list[WireRequest | None] = []
    # Most empty places of a batch have the same tensors, as the same object.
    given: Sequence[Tensor] | None = None
    empty: WireRequest | None = None
    nothing = [None] * len(work.slots)
    extras: Sequence[Sequence[Tensor]] = [()] * len(work.slots) if work.extra_inputs is None else work.extra_inputs
    for slot, more, options in zip(work.slots, extras, work.options or nothing, strict=True):
        if slot is not None:
            written.append(write_request(slot, [*slot.inputs, *more], options))
            continue
        if more is not given:
            given = more
            # Outputs of an empty slot would be dropped.
            empty = write_request(Request([], requested_outputs=[]), more) if more else None
        written.append(empty)
    return written


def write_request(request: Request, inputs: Sequence[Tensor], options: RequestOptions | None = None) -> WireRequest:
    """A request in the form of the wire, with these inputs, and with `options` in place of its own if given."""
    trace = request.trace
    return (
        request.id,
        request.options if options is None else options,
        None if trace is None else trace.wire,
        request.requested_outputs,
        [write_tensor(tensor) for tensor in inputs],
    )


def write_tensor(tensor: Tensor, holder: StubMemory | None = None) -> WireTensor:
    """A tensor in the form of the wire.

    `holder` is the stub's memory, given if the stub keeps the tensor until it reports the release.
    """
    span = tensor.span
    place: Place
    if span is not None:
        if holder is not None:
            holder.hold(tensor.offset, span)
            if isinstance(span, DeviceSpan):
                holder.send_chunks(span)
        place = span.as_place(tensor.offset, tensor.nbytes)
    elif tensor.elements is not None:
        place = AsList(tensor.elements)
    else:
        data = tensor.data
        place = Zeros(tensor.nbytes) if data is None else data
    return (tensor.name, tensor.datatype, tensor.shape, place)


def read_tensor(
    wire: WireTensor,
    memory: StubMemory,
    stub: str,
    given: Callable[[], Iterable[Tensor]],
    answered: Request | None = None,
    kept: bool = False,
    wanted: Collection[str] | None = None,
) -> Tensor:
    """A tensor that a stub has named: an output or, with `kept`, an input of a request that its model makes.

    The stub may name bytes; its own segment and its own pools of GPU memory, with the accounts `memory`; and tensors
    that it got: those `given`, and those that it holds. An output may also name the inputs and the client's regions of
    the request that it has `answered`; it lies in memory of a GPU only where `wanted`, the outputs that are asked for,
    allows that. The stub keeps an input that it names (`kept`), while an output is sent on. Raises ServeError that
    begins with the fault, ValueError for data that is no place.
    """
    name, datatype, shape, data = wire
    if isinstance(data, bytes):
        return Tensor(name, datatype, shape, data)
    place = places.unpack(data)
    if isinstance(place, AsList) and datatype == BYTES:
        return Tensor.of_strings(name, shape, place.elements, place.nbytes)
    if isinstance(place, InArena):
        return Tensor(name, datatype, shape, None, memory.output(place.offset, place.nbytes).whole())
    own: Sequence[Tensor] = ()
    if isinstance(place, OnDevice) and (kept or _may_stay(wanted, name)):
        return Tensor(name, datatype, shape, None, memory.device_output(place.offset, place.nbytes))
    if answered is not None:
        own = answered.inputs
        if isinstance(place, InRegion) and answered.regions is not None and name in answered.regions:
            # The stub has written it to the place that the client named.
            return Tensor(name, datatype, shape, b"")
    what = f"input '{name}' from stub '{stub}'" if kept else f"output '{name}' of stub '{stub}'"
    if not isinstance(place, Lent):
        raise internal(f"{what} {places.refusal(place) or 'is in memory that a stub cannot name'}")
    # The request's own inputs first: a large batch must not be searched for each request that returns an input.
    span = None
    for tensor in chain(own, given()):
        if tensor.offset == place.within and tensor.span is not None:
            span = tensor.span
            break
    span = span or memory.held(place.within)
    if span is None or not span.contains(place.offset, place.nbytes):
        raise internal(f"{what} is in memory that the stub was not given")
    if isinstance(span, DeviceSpan) and not (kept or _may_stay(wanted, name)):
        raise internal(f"{what} is in memory of a GPU, where its reader does not take it")
    if kept:
        # The span has two holders now.
        span.shared = True
    else:
        span.send_on()
    return Tensor(name, datatype, shape, None, span.hold(), place.offset, place.nbytes)


def _may_stay(wanted: Collection[str] | None, name: str) -> bool:
    """Whether the output may lie in memory of a GPU; `wanted` are the outputs that its request asks for."""
    return isinstance(wanted, dict) and bool(wanted.get(name))


def read_result(
    batch: InFlightBatch,
    start_ns: int,
    end_ns: int,
    entries: Sequence[Entry],
    error: str | None,
    memory: StubMemory,
    stub: str,
) -> tuple[list[tuple[Request, Response]], list[tuple[int, Entry]]]:
    """The answers in a RESULT message, and (slot, entry) of requests that it does not answer; sets times and outcomes.

    `memory` is that of the stub, which is called `stub`: outputs in its segment become blocks. Data that is no message
    raises any exception.
    """
    now = time.monotonic_ns()
    finished: list[tuple[Request, Response]] = []
    left: list[tuple[int, Entry]] = []
    try:
        for index, request in enumerate(batch.work.slots):
            if request is None:
                # The model's answer in an empty slot is dropped.
                entry = None if error is not None else entries[index]
                if isinstance(entry, tuple):
                    drop_blocks(_read_answer(entry, memory, stub, batch.tensors).outputs)
                continue
            request.compute_input_end_ns = start_ns
            request.compute_infer_end_ns = end_ns
            request.compute_end_ns = now
            if error is not None:
                request.outcome = BACKEND_FAILURE
                if batch.answered is not None and index in batch.answered:
                    continue
                response = Response(error=internal(error))
            else:
                request.outcome = SUCCESS
                entry = entries[index]
                if type(entry) is not tuple:
                    if batch.answered is None or index not in batch.answered:
                        left.append((index, entry))
                    continue
                response = _read_answer(entry, memory, stub, batch.tensors, request)
            finished.append((request, response))
    except BaseException:
        for _, response in finished:
            drop_blocks(response.outputs)
        raise
    return finished, left


def read_response(
    wire: WireResponse | None, final: bool, memory: StubMemory, stub: str, wanted: Collection[str] | None = None
) -> Response:
    """A sender's response to a request for the outputs `wanted`; it refers to no input."""
    if wire is None:
        return Response(final=final, empty=True)
    response = _read_answer(wire, memory, stub, tuple, wanted=wanted)
    response.final = final
    return response


def hold_inputs(tensors: Iterable[Tensor], held: Sequence[int], memory: StubMemory) -> None:
    """Holds those of the inputs that begin at the offsets in `held`: the model still uses them."""
    if held:
        spans = {tensor.offset: tensor.span for tensor in tensors if tensor.span is not None}
        for offset in held:
            span = spans.get(offset)
            if span is not None:
                memory.hold(offset, span)


def _read_answer(
    wire: WireResponse,
    memory: StubMemory,
    stub: str,
    given: Callable[[], Iterable[Tensor]],
    answered: Request | None = None,
    wanted: Collection[str] | None = None,
) -> Response:
    """A response with outputs as of `read_tensor`. It becomes an error if the stub may not name their memory."""
    wire_error, wire_outputs, parameters = wire
    if answered is not None:
        wanted = answered.requested_outputs
    error = None
    if wire_error is not None:
        text, code = wire_error
        error = ServeError(Code(code), text)
    outputs: list[Tensor] = []
    try:
        for output in wire_outputs:
            outputs.append(read_tensor(output, memory, stub, given, answered, False, wanted))  # noqa: PERF401 - those before a bad one count
    except ServeError as wrong:
        drop_blocks(outputs)
        return Response(error=wrong)
    except BaseException:
        drop_blocks(outputs)
        raise
    return Response(outputs, parameters, error)
