"""What a request's description means, worked out once and applied to every request that has the same one.

Clients describe the same inputs over and over, with other bytes behind the description. A `RequestPlan` is what such a
description asks for, already found admissible; its requests cost about 3 µs and leave admitted. Whatever depends on
the bytes is checked every time: their number (`tail_bytes`, the protocol's to compare) and the elements of BYTES
tensors. How many there are is for `inference.admissions` to say; their descriptions have at most PLAN_BYTES.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from stubserve_stub.wire.datatypes import BYTES
from stubserve_stub.wire.layout import INLINE_BYTES

from stubserve.errors import ServeError
from stubserve.inference import admissions
from stubserve.inference.admission import admit
from stubserve.inference.request import Request, Response, unanswered
from stubserve.inference.signature import Signature
from stubserve.inference.string_elements import check_strings
from stubserve.inference.tensor import Tensor
from stubserve.protocols.placement import BodyPlacer
from stubserve.protocols.reply_format import ReplyFormat

PLAN_BYTES = 4096


class RequestPlan:
    """What one description asks for.

    `gaps[i]` is how many bytes there are between the end of input i - 1 (or of the description) and input i; together
    with the inputs' sizes they make up `tail_bytes`. `kinds` are the inputs' (datatype, nbytes).
    """

    __slots__ = ("_inputs", "_template", "has_strings", "inline", "kinds", "reply_format", "tail_bytes")

    def __init__(self, request: Request, reply_format: ReplyFormat, gaps: list[int] | None = None) -> None:
        self.reply_format = reply_format
        # A request without inputs: those of the one at hand hold memory.
        self._template = Request(
            [],
            unanswered,
            request.id,
            request.correlation_id,
            request.flags,
            request.priority,
            request.timeout_us,
            request.parameters and request.parameters.copy(),
            request.requested_outputs,
            request.batch_size,
        )
        self._inputs = []
        at = 0
        for index, tensor in enumerate(request.inputs):
            at += gaps[index] if gaps is not None else 0
            self._inputs.append((tensor.name, tensor.datatype, tensor.shape, at, tensor.nbytes, _string_count(tensor)))
            at += tensor.nbytes
        self.tail_bytes = at
        self.kinds = [(tensor.datatype, tensor.nbytes) for tensor in request.inputs]
        self.has_strings = any(strings is not None for *_, strings in self._inputs)
        # Whether `inline_request` can make its requests: all bytes travel in the message, and none has to be looked at
        self.inline = all(nbytes <= INLINE_BYTES and strings is None for *_, nbytes, strings in self._inputs)

    def apply(self, id: str, tail: int, placer: BodyPlacer, model: str) -> Request:
        """The request that this description makes of the message's bytes from `tail` on. Raises ServeError."""
        inputs: list[Tensor] = []
        request = self._request(inputs, unanswered, id)
        for name, datatype, shape, at, nbytes, strings in self._inputs:
            tensor = placer.slice(name, datatype, shape, tail + at, nbytes)
            inputs.append(tensor)
            if strings is not None:
                # A fault elsewhere in the request cannot come first: everything else about it is known to be right.
                check_strings(request, tensor, strings, model)
        return request

    def inline_request(
        self, data: bytes | memoryview, tail: int, on_response: Callable[[Request, Response], None]
    ) -> Request:
        """The request that an `inline` description makes of the bytes in `data` from `tail` on."""
        inputs = []
        for name, datatype, shape, at, nbytes, _ in self._inputs:
            start = tail + at
            inputs.append(Tensor(name, datatype, shape, bytes(data[start : start + nbytes])))
        return self._request(inputs, on_response, "")

    def _request(self, inputs: list[Tensor], on_response: Callable[[Request, Response], None], id: str) -> Request:
        template = self._template
        parameters = template.parameters
        request = Request(
            inputs,
            on_response,
            id or template.id,
            template.correlation_id,
            template.flags,
            template.priority,
            template.timeout_us,
            parameters and parameters.copy(),
            template.requested_outputs,
            template.batch_size,
        )
        request.admitted = True
        return request


def remember(
    plans: dict[bytes, RequestPlan],
    key: bytes,
    request: Request,
    reply_format: ReplyFormat,
    signature: Signature,
    gaps: list[int] | None = None,
) -> None:
    """Makes a plan of a request that was read the long way, if the request is admissible.

    An id that is no part of `key` must not be in the request: it is nobody else's, and a plan would keep it.
    """
    try:
        admit(request, signature)
    except ServeError:
        # Whoever asked for the request admits it too, and answers with this same error.
        return
    admissions.remember(plans, key, RequestPlan(request, reply_format, gaps))


def _string_count(tensor: Tensor) -> int | None:
    return prod(tensor.shape) if tensor.datatype == BYTES else None
