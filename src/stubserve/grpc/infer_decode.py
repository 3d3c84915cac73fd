"""A ModelInferRequest as a `Request`: checked in upstream's order and refused in upstream's words.

Nearly all requests have raw contents and nothing wrong. Those are read without building a message, in one pass over
their inputs: an input begins with its name and data type, which are known from the request before, and goes on with its
dimensions, a byte each; all lengths in it are one byte. What is asked for beside the inputs is remembered by its bytes.
Whatever the pass does not expect ends it; then the generated message is parsed from the description, for the values
that it then has or the error that it deserves. Raw contents are copied once, from the message to the arena.

Ownership: every tensor of a decoded request that lies in a block holds it once. When decoding fails nothing is held.
"""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.message import DecodeError
from stubserve_stub.wire.datatypes import BY_NAME, DataType

from stubserve.api.placement import SMALL_BYTES, BodyPlacer, Regions, Store
from stubserve.api.reply_format import ReplyFormat
from stubserve.errors import ServeError, invalid
from stubserve.grpc import contents
from stubserve.grpc.envelope import Envelope
from stubserve.grpc.infer_parameters import read_outputs, read_parameters, shared_memory
from stubserve.grpc.messages import service_pb2
from stubserve.grpc.wire import Malformed, TooManyParts, read_varint
from stubserve.inference.admission import duplicate_input, duplicate_output
from stubserve.inference.request import Request, unanswered
from stubserve.inference.signature import Signature
from stubserve.inference.tensor import Tensor
from stubserve.memory.blocks import Block

Form = TypeVar("Form")

# Of one tensor; numpy's arrays have no more than 64.
MAX_DIMS = 1024

_INVALID = DataType(0, "<invalid>", "", 0, None)
_INT64_MAX = (1 << 63) - 1
# Of an input: its fields' tags
_NAME, _DATATYPE, _SHAPE = 0x0A, 0x12, 0x1A
# What is remembered of a model's requests: so many beginnings of inputs, and what is asked for beside them
FORMS = 256
_FORM_BYTES = 4096
_ALL = ReplyFormat(None, True)


def decode(
    data: bytes | memoryview,
    envelope: Envelope,
    signature: Signature,
    store: Store,
    block: Block | None = None,
    offset: int = 0,
    regions: Regions | None = None,
) -> tuple[Request, ReplyFormat]:
    """The request that a message makes. Raises ServeError, and Malformed where the description is none.

    Where `block` is given the message lies in it at arena `offset`, and raw contents stay there. `regions` are clients'
    shared memory, None where that may not be used.
    """
    placer = BodyPlacer(data, block, offset, store, regions)
    try:
        found = _read(data, envelope, signature, placer)
        if found is not None:
            return found
        placer.undo()
        placer = BodyPlacer(data, block, offset, store, regions)
        return _decode(envelope, signature, placer)
    except BaseException:
        placer.undo()
        raise


def _read(
    data: bytes | memoryview, envelope: Envelope, signature: Signature, placer: BodyPlacer
) -> tuple[Request, ReplyFormat] | None:
    """The request of a message without anything unusual; None where `_decode` is to read it."""
    places = envelope.raw
    if len(envelope.inputs) != len(places):
        return None
    fronts: dict[bytes, tuple[str, int]] = signature.memo.setdefault("grpc-inputs", {})
    inputs: list[Tensor] = []
    try:
        for (start, end), (first, last) in zip(envelope.inputs, places):  # noqa: B905 - of one length, see above
            item = bytes(data[start:end])
            at = 2 + item[1]
            at += 2 + item[at + 1]
            front = item[:at]
            known = fronts.get(front)
            if known is None:
                known = _read_front(front)
                if known is None:
                    return None
                _remember(fronts, front, known)
            dims = item[at + 2 :]
            if at == len(item):
                shape: tuple[int, ...] = ()
            elif item[at] != _SHAPE or item[at + 1] != len(dims) or len(dims) >= 0x80:
                return None
            elif dims.isascii():
                shape = tuple(dims)
            else:
                shape = _varints(dims)
            if last - first <= SMALL_BYTES:
                inputs.append(Tensor(known[0], known[1], shape, bytes(data[first:last])))
            else:
                inputs.append(placer.slice(known[0], known[1], shape, first, last - first))
    except (IndexError, Malformed):
        return None
    request = Request(inputs, unanswered, envelope.id)
    if not envelope.others:
        return request, _ALL
    return _read_others(request, envelope.others, signature)


def _read_front(front: bytes) -> tuple[str, int] | None:
    """The name and the data type that an input begins with; None if it does not begin with these, or not so shortly."""
    length = front[1]
    at = 2 + length
    if front[0] != _NAME or length >= 0x80 or front[at] != _DATATYPE or front[at + 1] >= 0x80:
        return None
    if len(front) != at + 2 + front[at + 1]:
        return None
    try:
        kind = BY_NAME.get(front[at + 2 :].decode())
        return None if kind is None else (front[2:at].decode(), kind.number)
    except UnicodeDecodeError:
        return None


def _varints(data: bytes) -> tuple[int, ...]:
    """Dimensions, of which one has more than seven bits. Raises Malformed, also for negative ones."""
    values = []
    at = 0
    while at < len(data):
        value, at = read_varint(data, at)
        if value > _INT64_MAX:
            raise Malformed
        values.append(value)
    return tuple(values)


def _read_others(request: Request, others: bytes, signature: Signature) -> tuple[Request, ReplyFormat] | None:
    """Puts into a request what parameters and outputs ask for; None where there is something wrong with them."""
    known: dict[bytes, tuple[Request, ReplyFormat]] = signature.memo.setdefault("grpc-others", {})
    found = known.get(others)
    if found is None:
        try:
            message = service_pb2.ModelInferRequest.FromString(others)
            model = Request([], unanswered)
            empty_final = read_parameters(model, message.parameters)
            if any("shared_memory_region" in item.parameters for item in message.outputs):
                return None  # regions come and go: what is remembered must not know any
            slots = read_outputs(message.outputs, None)
        except (DecodeError, ServeError):
            return None
        if slots is not None:
            if len(slots) != len(message.outputs):
                return None
            model.requested_outputs = list(slots)
        found = model, ReplyFormat(slots, True, empty_final)
        if len(others) <= _FORM_BYTES:
            _remember(known, others, found)
    model, reply_format = found
    request.requested_outputs = model.requested_outputs
    if model.parameters is not None:
        request.parameters = model.parameters.copy()
    request.correlation_id = model.correlation_id
    request.flags = model.flags
    request.priority = model.priority
    request.timeout_us = model.timeout_us
    return request, reply_format


def _remember(known: dict[bytes, Form], key: bytes, form: Form) -> None:
    if len(known) >= FORMS:
        known.clear()
    known[key] = form


def _decode(envelope: Envelope, signature: Signature, placer: BodyPlacer) -> tuple[Request, ReplyFormat]:
    try:
        message = service_pb2.ModelInferRequest.FromString(envelope.description)
    except DecodeError:
        raise Malformed from None
    request = Request([], unanswered, envelope.id)
    empty_final = read_parameters(request, message.parameters)
    for items, refusal in ((message.inputs, duplicate_input), (message.outputs, duplicate_output)):
        names = set()
        for item in items:
            if item.name in names:
                raise refusal(request, item.name)
            names.add(item.name)
    _read_inputs(request, message.inputs, envelope, signature, placer)
    slots = read_outputs(message.outputs, placer)
    if slots is not None:
        request.requested_outputs = list(slots)
        regions = {name: slot.region for name, slot in slots.items() if slot.region is not None}
        if regions:
            request.regions = {**(request.regions or {}), **regions}
    return request, ReplyFormat(slots, True, empty_final)


def _read_inputs(request: Request, inputs: Any, envelope: Envelope, signature: Signature, placer: BodyPlacer) -> None:
    """Puts the inputs into the request."""
    raw = iter(envelope.raw)
    for item in inputs:
        if len(item.shape) > MAX_DIMS:
            raise TooManyParts(f"dimensions of input '{item.name}'", MAX_DIMS)
        shape = tuple(item.shape)
        datatype = BY_NAME.get(item.datatype, _INVALID).number
        given = item.HasField("contents")
        region = shared_memory(item)
        if region is not None:
            if given:
                raise invalid(
                    f"unexpected 'content' provided when using shared memory for input tensor '{item.name}' "
                    f"for model '{signature.model}'"
                )
            request.inputs.append(placer.in_region(item.name, datatype, shape, *region))
            if request.regions is None:
                request.regions = {}
            continue
        if given:
            if envelope.raw:
                raise invalid(
                    "contents field must not be specified when using raw_input_contents for "
                    f"'{item.name}' for model '{signature.model}'"
                )
            data = contents.read(item.contents, item.name, datatype, signature.model)
            request.inputs.append(placer.put(item.name, datatype, shape, data))
            continue
        start, end = next(raw, (-1, -1))
        if start < 0:
            raise invalid(
                f"unable to find data for input tensor '{item.name}' for model '{signature.model}' in request."
            )
        request.inputs.append(placer.slice(item.name, datatype, shape, start, end - start))
