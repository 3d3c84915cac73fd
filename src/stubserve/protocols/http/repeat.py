"""The request that a connection's client sends again and again, when only the bytes of its tensors change.

A client in a loop sends the same head and the same JSON on its connection every time, with other bytes behind them.
When two requests in a row had the same front, that is all up to their tensors, the connection remembers it. A request
that is as long and has the same front needs no further look: its tensors are at the same places, and its answer has the
same head. What is left is the model's lookup, the tensors, and their way through the scheduler. Without it small
requests in a loop came to 0.78 of their rate at 16 connections and to 0.52 at 64 (docs/performance.md).

It is kept small on purpose. Only tensors that travel inside messages and need no check of their bytes take this way
(no BYTES). Everything else goes the general way, which gives the same answers; so does any response that is not plain
(errors, parameters, several outputs, or one of a look not seen before).
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns

from stubserve_stub.wire.datatypes import BYTES

from stubserve.inference.call import Call
from stubserve.inference.request import Request, Response
from stubserve.inference.tensor import Tensor
from stubserve.protocols.http.compression import choose
from stubserve.protocols.http.head import RequestHead
from stubserve.protocols.http.infer import HttpInferCall, reply_to
from stubserve.protocols.http.reply import Reply, reply_head

# Replies differ by the outputs' shapes; a model that gives many of them is better served the general way.
_REPLIES = 16


def front_of(head: RequestHead, data: bytes, body_start: int) -> bytes:
    """What is in front of the tensors of a whole request, `data`; nothing where it has no bytes behind its JSON."""
    json_length = head.header_length
    if json_length is None or not json_length.isdigit():
        return b""
    return data[: body_start + int(json_length)]


def repeat_of(
    call: HttpInferCall,
    request: Request,
    head: RequestHead,
    front: bytes,
    length: int,
    on_repeated: Callable[[Request, Response], None],
) -> Repeat | None:
    """The repeat of a call's request, which had `length` bytes in all; None where its kind is not recognised.

    `on_repeated` is called with each request and its response.
    """
    if not request.inputs or not head.keep_alive or head.content_encoding is not None:
        return None
    if request.regions is not None:
        return None
    if head.accept_encoding is not None and choose(head.accept_encoding) is not None:
        return None
    nbytes = 0
    for tensor in request.inputs:
        if tensor.data is None or tensor.datatype == BYTES:
            return None
        nbytes += len(tensor.data)
    # Inputs with their elements in the JSON have no bytes behind it.
    return Repeat(call, request, head, front, length, on_repeated) if len(front) + nbytes == length else None


class Repeat(Call):
    """A call that is made again and again, one at a time. `length` is that of the whole request."""

    __slots__ = ("_front", "_inputs", "_on_repeated", "_replies", "_reply_format", "_request", "head", "length")

    protocol = "HTTP"

    def __init__(
        self,
        call: HttpInferCall,
        request: Request,
        head: RequestHead,
        front: bytes,
        length: int,
        on_repeated: Callable[[Request, Response], None],
    ) -> None:
        super().__init__(call.model)
        self.client = call.client
        self.head = head
        self.length = length
        self._front = front
        self._on_repeated = on_repeated
        self._reply_format = call.reply_format
        self._inputs = [(one.name, one.datatype, one.shape, one.nbytes) for one in request.inputs]
        # What was asked beside the inputs
        self._request = (
            request.id,
            request.correlation_id,
            request.flags,
            request.priority,
            request.timeout_us,
            request.parameters,
            request.requested_outputs,
            request.batch_size,
        )
        # What is in front of an output, by what it looks like: all from the status line on
        self._replies: dict[tuple[object, ...], bytes] = {}

    def trace_context(self) -> str | None:
        return self.head.trace_context()

    def fits(self, data: bytearray) -> bool:
        """Whether data of the right length has the same front."""
        return data.startswith(self._front)

    def read(self, data: memoryview) -> Request:
        """The admitted request in data that fits."""
        at = len(self._front)
        inputs = []
        for name, datatype, shape, nbytes in self._inputs:
            inputs.append(Tensor(name, datatype, shape, bytes(data[at : at + nbytes])))
            at += nbytes
        request = Request(inputs, self.on_response, *self._request)
        request.admitted = True
        request.request_start_ns = monotonic_ns()
        return request

    def respond(self, request: Request, response: Response) -> None:
        self._on_repeated(request, response)

    def reply(self, request: Request, response: Response, closing: bool) -> bytes | Reply:
        """The answer: all bytes of it, or, where it is not like those before or the last one, in the general form."""
        tensors = response.outputs
        if response.error is None and response.parameters is None and len(tensors) == 1 and not closing:
            tensor = tensors[0]
            data = tensor.data
            if data is not None:
                look = (tensor.name, tensor.datatype, tensor.shape, len(data))
                front = self._replies.get(look)
                return front + data if front is not None else self._first(request, response, look, data)
        return reply_to(request, response, self.model, self.head, self._reply_format)

    def _first(self, request: Request, response: Response, look: tuple[object, ...], data: bytes) -> Reply:
        """An answer with an output of a look not seen before; remembers what is in front of the output."""
        reply = reply_to(request, response, self.model, self.head, self._reply_format)
        parts = reply.parts
        plain = reply.status == 200 and not reply.headers and len(parts) == 2 and parts[1] is data
        if plain and len(self._replies) < _REPLIES:
            head = reply_head(200, reply.content_type, len(parts[0]) + len(data), reply.json_length)
            self._replies[look] = head + parts[0]
        return reply
