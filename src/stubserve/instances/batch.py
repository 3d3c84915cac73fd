"""A batch as the wire has it: requests into an EXECUTE message, a RESULT message into responses."""

from __future__ import annotations

import time
from typing import Any

from stubserve_stub.wire import messages

from stubserve.errors import Code, ServeError, internal
from stubserve.inference.request import BACKEND_FAILURE, SUCCESS, Request, Response
from stubserve.inference.tensor import Tensor
from stubserve.instances.stub_memory import StubMemory


def pack_batch(number: int, frees: list[int], requests: list[Request]) -> bytes:
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
                            tensor.data if tensor.data is not None else (tensor.offset, tensor.nbytes),
                        )
                        for tensor in request.inputs
                    ],
                )
                for request in requests
            ],
        )
    )


def read_result(
    message: tuple[Any, ...], requests: list[Request], memory: StubMemory, instance: str
) -> list[tuple[Request, Response]]:
    """The answers in a RESULT message; sets the requests' times and outcomes.

    `memory` is the stub's: inputs that its model still holds are held there, outputs in its segment become blocks.
    """
    _, _, start_ns, end_ns, wire_responses, held, error = message
    if held:
        for request in requests:
            for tensor in request.inputs:
                if tensor.block is not None and tensor.offset in held:
                    memory.hold_input(tensor.offset, tensor.block)
    now = time.monotonic_ns()
    finished = []
    for index, request in enumerate(requests):
        request.compute_input_end_ns = start_ns
        request.compute_infer_end_ns = end_ns
        request.compute_end_ns = now
        if error is not None:
            request.outcome = BACKEND_FAILURE
            response = Response(error=internal(error))
        else:
            request.outcome = SUCCESS
            try:
                response = _response(wire_responses[index], requests, memory, instance)
            except ServeError as wrong:
                response = Response(error=wrong)
        finished.append((request, response))
    return finished


def _response(wire: tuple[Any, ...] | None, requests: list[Request], memory: StubMemory, instance: str) -> Response:
    if wire is None:
        return Response(
            error=internal(
                f"model instance '{instance}' returned None for this request; answering through a response sender "
                "is not offered by this release of stubserve"
            )
        )
    error, outputs, parameters = wire
    if error is not None:
        return Response(error=ServeError(Code(error[1]), error[0]))
    return Response([_output(output, requests, memory, instance) for output in outputs], parameters)


def _output(wire: tuple[Any, ...], requests: list[Request], memory: StubMemory, instance: str) -> Tensor:
    name, datatype, shape, data = wire
    if isinstance(data, bytes):
        return Tensor(name, datatype, shape, data)
    offset, nbytes = data
    if memory.owns(offset):
        return Tensor(name, datatype, shape, None, memory.output(offset, nbytes), offset, nbytes)
    for request in requests:
        for tensor in request.inputs:
            if tensor.block is not None and tensor.block.contains(offset, nbytes):
                return Tensor(name, datatype, shape, None, tensor.block.hold(), offset, nbytes)
    raise internal(f"stub '{instance}' answered with memory that belongs to no request of its batch")
