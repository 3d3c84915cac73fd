"""A batch as the wire has it: requests into an EXECUTE message, a RESULT message into responses."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from stubserve_stub.wire import messages
from stubserve_stub.wire.messages import FINAL

from stubserve.errors import Code, ServeError, internal
from stubserve.inference.memory import Block
from stubserve.inference.request import BACKEND_FAILURE, SUCCESS, Request, Response
from stubserve.inference.tensor import Tensor, drop_blocks
from stubserve.inference.work import Work
from stubserve.instances.stub_memory import StubMemory


class Batch:
    """A batch that a stub has: the work, as it was `sent`, and the block of a message that was too large for the ring.

    `answered` are the indices of those that have had their final response before the batch's result, or None.
    """

    __slots__ = ("answered", "sent", "spilled", "work")

    def __init__(self, work: Work, sent: Sequence[Request], spilled: Block | None) -> None:
        self.work = work
        self.sent = sent
        self.spilled = spilled
        self.answered: set[int] | None = None

    def unanswered(self) -> Sequence[Request]:
        answered = self.answered
        if not answered:
            return self.work.requests
        return [r for index, r in enumerate(self.work.slots) if r is not None and index not in answered]


def pack_batch(number: int, frees: list[int], requests: Sequence[Request]) -> bytes:
    """The message that has a stub execute these requests, and free what the parent has read."""
    return messages.pack(
        (
            messages.EXECUTE,
            number,
            frees,
            [
                (
                    request.id,
                    request.correlation_id,
                    request.flags,
                    request.timeout_us,
                    request.parameters,
                    request.requested_outputs,
                    [
                        (
                            tensor.name,
                            tensor.datatype,
                            tensor.shape,
                            tensor.data if tensor.data is not None else place_of(tensor),
                        )
                        for tensor in request.inputs
                    ],
                )
                for request in requests
            ],
        )
    )


def place_of(tensor: Tensor) -> tuple[Any, ...]:
    """Where a stub finds a tensor that lies in the arena, and whether others read it too."""
    if tensor.block is not None and tensor.block.shared:
        return (tensor.offset, tensor.nbytes, True)
    return (tensor.offset, tensor.nbytes)


def read_result(
    message: tuple[Any, ...], batch: Batch, memory: StubMemory, instance: str
) -> tuple[list[tuple[Request, Response]], list[tuple[int, Any]]]:
    """The answers in a RESULT message, and (index, entry) of requests that it does not answer; sets times and outcomes.

    `memory` is the stub's: inputs that its model still holds are held there, outputs in its segment become blocks.
    """
    _, _, start_ns, end_ns, entries, held, error = message
    sent = batch.sent
    hold_inputs(sent, held, memory)
    now = time.monotonic_ns()
    finished = []
    left = []
    for index, request in enumerate(batch.work.slots):
        if request is None:
            # What the model answered in an empty place is for nobody.
            if error is None and type(entries[index]) is tuple:
                drop_blocks(_response(entries[index], sent, memory, instance).outputs)
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
            try:
                response = _response(entry, sent, memory, instance)
            except ServeError as wrong:
                response = Response(error=wrong)
        finished.append((request, response))
    return finished, left


def read_response(message: tuple[Any, ...], memory: StubMemory, instance: str) -> Response:
    """The response in a RESPONSE message; it refers to no input."""
    wire = message[4]
    final = bool(message[5] & FINAL)
    if wire is None:
        return Response(final=final, empty=True)
    try:
        response = _response(wire, (), memory, instance)
    except ServeError as wrong:
        response = Response(error=wrong)
    response.final = final
    return response


def hold_inputs(requests: Sequence[Request], held: Sequence[int], memory: StubMemory) -> None:
    """Keeps the inputs at these offsets, which the model still holds."""
    for offset in held:
        block = input_block(requests, offset)
        if block is not None:
            memory.hold(offset, block)


def _response(wire: tuple[Any, ...], requests: Sequence[Request], memory: StubMemory, instance: str) -> Response:
    error, outputs, parameters = wire
    return Response(
        [_output(output, requests, memory, instance) for output in outputs],
        parameters,
        None if error is None else ServeError(Code(error[1]), error[0]),
    )


def _output(wire: tuple[Any, ...], requests: Sequence[Request], memory: StubMemory, instance: str) -> Tensor:
    name, datatype, shape, data = wire
    if isinstance(data, bytes):
        return Tensor(name, datatype, shape, data)
    offset, nbytes = data[:2]
    if len(data) == 2:
        return Tensor(name, datatype, shape, None, memory.output(offset, nbytes), offset, nbytes)
    block = given_block(data, requests, memory, instance)
    if block.returned:
        block.shared = True
    block.returned = True
    return Tensor(name, datatype, shape, None, block.hold(), offset, nbytes)


def given_block(data: tuple[int, ...], requests: Iterable[Request], memory: StubMemory, instance: str) -> Block:
    """The block behind a descriptor of memory that a stub was given: with one of these requests, or held since.

    Raises ServeError if there is none: no stub reaches what it was not given.
    """
    offset, nbytes, within = data
    block = input_block(requests, within) or memory.held(within)
    if block is None or not block.contains(offset, nbytes):
        raise internal(f"stub '{instance}' named memory that it was not given")
    return block


def input_block(requests: Iterable[Request], offset: int) -> Block | None:
    """The block of the input that begins at `offset`."""
    for request in requests:
        for tensor in request.inputs:
            if tensor.offset == offset and tensor.block is not None:
                return tensor.block
    return None
