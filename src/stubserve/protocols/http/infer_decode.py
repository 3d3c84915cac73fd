"""An inference request's body as a `Request`: JSON, JSON with binary tensors behind it, or raw bytes.

The order of the checks is upstream's, so that of several faults a client is told the same one: JSON, id, parameters,
inputs one by one, what is left over, outputs. What needs the model's signature alone is `admission.admit`'s.

What a JSON header means is remembered as a `RequestPlan`, for headers that describe binary inputs only; an id at the
front is not part of what is remembered. A known header costs one dictionary lookup and the tensors, about 3 µs in
place of 20. Where the JSON holds the inputs, as numbers, the text around them is remembered (see `json_numbers`).

Ownership: every tensor of a decoded request that lies in a block holds it once. When decoding fails nothing is held.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from stubserve.errors import invalid
from stubserve.inference.memory import Block
from stubserve.inference.request import Request, Response
from stubserve.inference.signature import Signature
from stubserve.protocols.http.infer_json import decode_json
from stubserve.protocols.http.infer_raw import decode_raw
from stubserve.protocols.http.json_numbers import is_frame, pack, split
from stubserve.protocols.http.limits import DEFAULT_MAX_INPUT_SIZE, LIMIT_HINT
from stubserve.protocols.offload import LARGE_BYTES
from stubserve.protocols.placement import BodyPlacer, Store
from stubserve.protocols.plan import PLAN_BYTES, RequestPlan, remember
from stubserve.protocols.reply_format import ReplyFormat

_LEADING_INTEGER = re.compile(rb"[ \t\r\n\v\f]*([+-]?[0-9]+)").match
_PLAIN_ID = re.compile(rb'\{"id": ?"([ !#-\[\]-~]+)"(?=,)').match


class KnownForm(NamedTuple):
    """How a known body is made: its tensors from `start` to `stop`, as JSON numbers or as their bytes."""

    plan: RequestPlan
    start: int
    stop: int
    in_json: bool


class DecodedInfer:
    """What a body asks for: a request, and how its reply is to look."""

    __slots__ = ("_request", "form", "reply_format")

    def __init__(self, request: Request, reply_format: ReplyFormat, form: KnownForm | None = None) -> None:
        self._request = request
        self.reply_format = reply_format
        # Set where all but the tensors was known
        self.form = form

    def request(self, on_response: Callable[[Request, Response], None]) -> Request:
        """The request, always the same one, which will answer to `on_response`."""
        self._request.on_response = on_response
        return self._request


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
    placer = BodyPlacer(body, block, body_offset, store)
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
        header = bytes(body[:end])
        if end == size:
            frame, arrays = split(header)
            if arrays:
                return _decode_arrays(header, frame, arrays, signature, placer, store, max_input_size)
        if end > PLAN_BYTES:
            return DecodedInfer(*decode_json(header, signature, placer, max_input_size)[:2])
        id, rest = _split_id(header)
        plans: dict[bytes, RequestPlan] = signature.memo.setdefault("http-plans", {})
        plan = plans.get(rest)
        # Many strings are walked through in steps, by whoever admits the request; a plan would walk at once.
        many_strings = size > LARGE_BYTES and signature.has_strings
        if plan is not None and plan.tail_bytes == size - end and not many_strings:
            request = plan.apply(id, end, placer, signature.model)
            return DecodedInfer(request, plan.reply_format, None if id else KnownForm(plan, end, size, False))
        request, reply_format, plannable = decode_json(header, signature, placer, max_input_size)
        if plannable and plan is None and not many_strings:
            _remember(plans, rest, id, request, reply_format, signature)
        return DecodedInfer(request, reply_format)
    except BaseException:
        placer.undo()
        raise


def _decode_arrays(
    text: bytes,
    frame: bytes,
    arrays: list[bytes],
    signature: Signature,
    placer: BodyPlacer,
    store: Store,
    max_input_size: int,
) -> DecodedInfer:
    """Reads a request that is JSON alone. `text`, all of it, is `frame` with `arrays` put in."""
    id, rest = _split_id(frame)
    plans: dict[bytes, RequestPlan] = signature.memo.setdefault("http-frames", {})
    plan = plans.get(rest)
    if plan is not None:
        numbers = pack(arrays, plan.kinds)
        if numbers is not None:
            decoded = _decode_numbers(numbers, plan, id, store, signature.model)
            if len(arrays) == 1 and not id:
                start = text.index(arrays[0])
                decoded.form = KnownForm(plan, start, start + len(arrays[0]), True)
            return decoded
    request, reply_format, _ = decode_json(text, signature, placer, max_input_size)
    if plan is None and len(rest) <= PLAN_BYTES and is_frame(frame, request.inputs, arrays):
        _remember(plans, rest, id, request, reply_format, signature)
    return DecodedInfer(request, reply_format)


def _remember(
    plans: dict[bytes, RequestPlan],
    rest: bytes,
    id: str,
    request: Request,
    reply_format: ReplyFormat,
    signature: Signature,
) -> None:
    """Makes a plan of a request; its id is no part of what is remembered where it was found in front of the rest."""
    own = request.id
    if id:
        request.id = ""
    remember(plans, rest, request, reply_format, signature)
    request.id = own


def _decode_numbers(numbers: bytes, plan: RequestPlan, id: str, store: Store, model: str) -> DecodedInfer:
    placer = BodyPlacer(numbers, None, 0, store)
    try:
        return DecodedInfer(plan.apply(id, 0, placer, model), plan.reply_format)
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


def _split_id(header: bytes) -> tuple[str, bytes]:
    """A header's id and what follows, where the id is the first member and plain; otherwise no id and the whole."""
    found = _PLAIN_ID(header)
    return ("", header) if found is None else (found[1].decode(), header[found.end() :])
