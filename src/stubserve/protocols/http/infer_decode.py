"""An inference request's body as a `Request`: JSON, JSON with binary tensors behind it, or raw bytes.

The order of the checks is upstream's, so that of several faults a client is told the same one: JSON, id, parameters,
inputs one by one, what is left over, outputs. What needs the model's signature alone is `admission.admit`'s.

Clients send the same JSON header over and over, with other bytes behind it. So what a header means is remembered as a
`HeaderPlan`, for headers that describe binary inputs only; an id at the front is not part of what is remembered. A
known header costs one dictionary lookup and the tensors, about 3 µs in place of 20, and its request leaves already
admitted. Everything that depends on the bytes behind the header is checked every time: their number and the elements
of BYTES tensors. Plans live and die with their signature; at most PLANS of them, from headers of at most PLAN_BYTES.

Ownership: every tensor of a decoded request that lies in a block holds it once. When decoding fails nothing is held.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from math import prod

from stubserve_stub.wire.datatypes import BYTES

from stubserve.errors import ServeError, invalid
from stubserve.inference.admission import admit, check_strings
from stubserve.inference.memory import Block
from stubserve.inference.request import Request, Response, unanswered
from stubserve.inference.signature import Signature
from stubserve.inference.tensor import Tensor
from stubserve.protocols.http.infer_json import decode_json
from stubserve.protocols.http.infer_raw import decode_raw
from stubserve.protocols.http.limits import DEFAULT_MAX_INPUT_SIZE, LIMIT_HINT
from stubserve.protocols.http.placement import Placer, Store
from stubserve.protocols.http.reply_format import ReplyFormat

PLANS = 256
PLAN_BYTES = 4096

_LEADING_INTEGER = re.compile(rb"[ \t\r\n\v\f]*([+-]?[0-9]+)").match
_PLAIN_ID = re.compile(rb'\{"id":"([ !#-\[\]-~]+)"(?=,)').match


class DecodedInfer:
    """What a body asks for: a request, and how its reply is to look."""

    __slots__ = ("_request", "reply_format")

    def __init__(self, request: Request, reply_format: ReplyFormat) -> None:
        self._request = request
        self.reply_format = reply_format

    def request(self, on_response: Callable[[Request, Response], None]) -> Request:
        """The request, always the same one, which will answer to `on_response`."""
        self._request.on_response = on_response
        return self._request


class HeaderPlan:
    """What a JSON header without `data` asks for, already found admissible."""

    __slots__ = ("_inputs", "_reply_format", "_template", "tail_bytes")

    def __init__(self, request: Request, reply_format: ReplyFormat) -> None:
        self._reply_format = reply_format
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
        self._inputs = [
            (tensor.name, tensor.datatype, tensor.shape, tensor.nbytes, _string_count(tensor))
            for tensor in request.inputs
        ]
        self.tail_bytes = sum(tensor.nbytes for tensor in request.inputs)

    def apply(self, id: str, at: int, placer: Placer, model: str) -> DecodedInfer:
        """The request that this header makes of the body's bytes from `at` on."""
        template = self._template
        inputs: list[Tensor] = []
        parameters = template.parameters
        request = Request(
            inputs,
            unanswered,
            id or template.id,
            template.correlation_id,
            template.flags,
            template.priority,
            template.timeout_us,
            parameters and parameters.copy(),
            template.requested_outputs,
            template.batch_size,
        )
        for name, datatype, shape, nbytes, strings in self._inputs:
            tensor = placer.slice(name, datatype, shape, at, nbytes)
            at += nbytes
            inputs.append(tensor)
            if strings is not None:
                # A fault elsewhere in the request cannot come first: everything else about it is known to be right.
                check_strings(request, tensor, strings, model)
        request.admitted = True
        return DecodedInfer(request, self._reply_format)


def decode(
    body: bytes | memoryview,
    json_length: int | None,
    signature: Signature,
    block: Block | None,
    body_offset: int,
    store: Store,
    max_input_size: int = DEFAULT_MAX_INPUT_SIZE,
) -> DecodedInfer:
    """Reads one inference request. Raises ServeError.

    `body` is the whole, decompressed body, its first `json_length` bytes JSON (None: all of it; 0: raw mode). Where
    `block` is given, the body lies in it at arena offset `body_offset`, and binary tensors stay there; otherwise those
    that are too large to travel inside a message are put into the arena by `store`, whose block then belongs to the
    tensor. `max_input_size` (bytes) bounds JSON and what is made of it, and raw bodies, not binary tensors.
    """
    size = len(body)
    end = size if json_length is None else json_length
    placer = Placer(body, block, body_offset, store)
    try:
        if not end:
            return DecodedInfer(*decode_raw(body, signature, placer, max_input_size))
        if end > size:
            raise invalid(f"unexpected size for request JSON, expecting {end - size} more bytes")
        if end > max_input_size:
            raise invalid(
                f"request JSON size of {end} bytes exceeds the maximum allowed input size of {max_input_size} bytes. "
                f"{LIMIT_HINT}"
            )
        if end > PLAN_BYTES:
            return DecodedInfer(*decode_json(bytes(body[:end]), signature, placer, max_input_size)[:2])
        header = bytes(body[:end])
        id, rest = _split_id(header)
        plans: dict[bytes, HeaderPlan] = signature.memo.setdefault("http-plans", {})
        plan = plans.get(rest)
        if plan is not None and plan.tail_bytes == size - end:
            return plan.apply(id, end, placer, signature.model)
        request, reply_format, plannable = decode_json(header, signature, placer, max_input_size)
        if plannable and plan is None:
            _remember(plans, rest, request, reply_format, signature)
        return DecodedInfer(request, reply_format)
    except BaseException:
        placer.undo()
        raise


@lru_cache(maxsize=1024)
def parse_header_length(value: bytes | None, content_length: int) -> int | None:
    """The length of the JSON part by its Inference-Header-Content-Length header: None without one, 0 for raw mode.

    Read as C's stoi reads: spaces and a sign before the digits, anything after them. Raises ServeError (INVALID_ARG).
    """
    if value is None:
        return None
    found = _LEADING_INTEGER(value)
    text = value.decode("latin-1")
    if found is None:
        raise invalid(f"Unable to parse Inference-Header-Content-Length, got: {text}")
    # Twenty digits are out of range already; reading all of a long line of them would take its time.
    length = int(found[1][:20])
    if not -(1 << 31) <= length < 1 << 31:
        raise invalid(
            "Unable to parse Inference-Header-Content-Length, value is out of range "
            f"[ -2147483648, 2147483647 ], got: {text}"
        )
    if not 0 <= length <= content_length:
        raise invalid(f"inference header size should be in range (0, {content_length}), got: {length}")
    return length


def _string_count(tensor: Tensor) -> int | None:
    return prod(tensor.shape) if tensor.datatype == BYTES else None


def _split_id(header: bytes) -> tuple[str, bytes]:
    """A header's id and what follows, where the id is the first member and plain; otherwise no id and the whole."""
    found = _PLAIN_ID(header)
    return ("", header) if found is None else (found[1].decode(), header[found.end() :])


def _remember(
    plans: dict[bytes, HeaderPlan], key: bytes, request: Request, reply_format: ReplyFormat, signature: Signature
) -> None:
    try:
        admit(request, signature)
    except ServeError:
        # Whoever asked for the request admits it too, and answers with this same error.
        return
    if len(plans) >= PLANS:
        del plans[next(iter(plans))]
    plans[key] = HeaderPlan(request, reply_format)
