"""The request that a connection's client sends again and again, when only the tensors change.

A client in a loop sends the same head and the same JSON on its connection every time, with other bytes behind the JSON,
or other numbers in it. Once a request was of a known form (`infer_decode.KnownForm`), the connection remembers all that
surrounds its tensors. A request that is as long and has the same surroundings needs no further look: its tensors are at
the same places, its answer has the same head. What is left is the model's lookup, the tensors, and their way through
the scheduler. Measured in the parent: 7.5 µs of interpreter for reading, decoding and answering become 3.5.

It is kept small on purpose. Only tensors that travel inside messages and need no check of their bytes take this way
(no BYTES), and no request with an id that changes. Everything else goes the general way, which gives the same answers;
so does any response that is not plain (errors, parameters, several outputs, or one of a look not seen before).
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns

from stubserve_stub.wire.datatypes import BYTES

from stubserve.inference.call import Call
from stubserve.inference.request import Request, Response
from stubserve.inference.served_model import ServedModel
from stubserve.inference.tensor import Tensor
from stubserve.protocols.http.head import RequestHead
from stubserve.protocols.http.infer import reply_to
from stubserve.protocols.http.infer_decode import KnownForm
from stubserve.protocols.http.infer_encode import json_array
from stubserve.protocols.http.json_numbers import pack
from stubserve.protocols.http.reply import JSON, Reply, reply_head

# Replies differ by the outputs' shapes; a model that gives many of them is better served the general way.
_REPLIES = 16
# What follows the numbers of the last output
_TAIL = b"}]}"


class Repeat(Call):
    """One request's surroundings, and what they mean to `model`: a call that is made again and again, one at a time.

    `length` is that of the whole request. `on_repeated` is called with each request and its response.
    """

    __slots__ = (
        "_in_json",
        "_on_repeated",
        "_plan",
        "_prefix",
        "_replies",
        "_start",
        "_stop",
        "_suffix",
        "head",
        "length",
    )

    def __init__(
        self,
        head: RequestHead,
        model: ServedModel,
        form: KnownForm,
        data: bytes,
        body_start: int,
        on_repeated: Callable[[Request, Response], None],
    ) -> None:
        """`data` is the request, its body, of that form, from `body_start` on."""
        super().__init__(model)
        self.head = head
        self._on_repeated = on_repeated
        self.length = len(data)
        self._plan = form.plan
        self._in_json = form.in_json
        self._start = body_start + form.start
        self._stop = body_start + form.stop
        self._prefix = data[: self._start]
        self._suffix = data[self._stop :]
        # What is in front of an output, by what it looks like: all from the status line on, or, where the output is
        # numbers in JSON, of the JSON only
        self._replies: dict[tuple[object, ...], tuple[bytes, bool]] = {}

    def fits(self, data: bytearray) -> bool:
        """Whether data of the right length has the same surroundings."""
        return data.startswith(self._prefix) and data.startswith(self._suffix, self._stop)

    def read(self, data: memoryview) -> Request | None:
        """The admitted request in data that fits; None where its numbers are not what they should be."""
        start_ns = monotonic_ns()
        if self._in_json:
            numbers = pack((bytes(data[self._start : self._stop]),), self._plan.kinds)
            if numbers is None:
                return None
            request = self._plan.inline_request(numbers, 0, self.on_response)
        else:
            request = self._plan.inline_request(data, self._start, self.on_response)
        request.request_start_ns = start_ns
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
                known = self._replies.get(look)
                if known is None:
                    return self._first(request, response, look, tensor)
                front, in_json = known
                if not in_json:
                    return front + data
                array = json_array(tensor)
                head = reply_head(200, JSON, len(front) + len(array) + len(_TAIL))
                return b"%b%b%b%b" % (head, front, array, _TAIL)
        return reply_to(request, response, self.model, self.head, self._plan.reply_format)

    def _first(self, request: Request, response: Response, look: tuple[object, ...], tensor: Tensor) -> bytes | Reply:
        """An answer with an output of a look not seen before; remembers what is in front of the output."""
        reply = reply_to(request, response, self.model, self.head, self._plan.reply_format)
        if reply.status == 200 and not reply.headers and len(self._replies) < _REPLIES:
            json = reply.parts[0]
            if len(reply.parts) == 2 and reply.parts[1] is tensor.data:
                head = reply_head(200, reply.content_type, len(json) + tensor.nbytes, reply.json_length)
                self._replies[look] = (head + json, False)
            elif len(reply.parts) == 1 and tensor.datatype != BYTES:
                array = json_array(tensor)
                if bytes(json).endswith(array + _TAIL):
                    self._replies[look] = (bytes(json)[: -len(array + _TAIL)], True)
        return reply
