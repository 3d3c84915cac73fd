"""A ModelInferRequest as a `Request`: checked in upstream's order and refused in upstream's words.

Nearly all requests have raw contents and nothing wrong. Those are read without building a message, in one pass over
their inputs: an input begins with its name and data type, which are known from the request before, and goes on with its
dimensions, a byte each. What is asked for beside the inputs is remembered by its bytes. Whatever the pass does not
expect ends it; then the generated message is parsed from the description, for the values that it then has or the error
that it deserves. Raw contents are copied once, from the message to the arena.

Ownership: every tensor of a decoded request that lies in a block holds it once. When decoding fails nothing is held.
"""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.message import DecodeError
from stubserve_stub.wire.datatypes import BY_NAME, DataType

from stubserve.errors import ServeError, invalid
from stubserve.inference.admission import duplicate_input
from stubserve.inference.memory import Block
from stubserve.inference.request import SEQUENCE_END, SEQUENCE_START, Request, unanswered
from stubserve.inference.signature import Signature
from stubserve.inference.tensor import Tensor
from stubserve.protocols.grpc import contents
from stubserve.protocols.grpc.envelope import Envelope
from stubserve.protocols.grpc.messages import service_pb2
from stubserve.protocols.grpc.wire import Malformed, TooManyParts, read_varint
from stubserve.protocols.offload import LARGE_BYTES
from stubserve.protocols.placement import SMALL_BYTES, BodyPlacer, Regions, Store
from stubserve.protocols.reply_format import IN_REGION, ReplyFormat, Slot

Form = TypeVar("Form")

EMPTY_FINAL = "triton_enable_empty_final_response"

# Of one tensor; numpy's arrays have no more than 64.
MAX_DIMS = 1024

_INVALID = DataType(0, "<invalid>", "", 0, None)
_UINT64 = (1 << 64) - 1
_INT64_MAX = (1 << 63) - 1
# Of an input: its fields' tags
_NAME, _DATATYPE, _SHAPE = 0x0A, 0x12, 0x1A
# What is remembered of a model's requests: so many beginnings of inputs, and what is asked for beside them
FORMS = 256
_FORM_BYTES = 4096
_ALL = ReplyFormat(None, True)
_CHOICES = ("int64_param", "bool_param", "string_param", "double_param")


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
    shared memory, None where that may not be used. Strings of a large
    message are not looked at (`takes_long`): the request is still to be admitted, in steps.
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
            elif item[at] != _SHAPE or item[at + 1] != len(dims):
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
            empty_final = _read_parameters(model, message.parameters)
            if any("shared_memory_region" in item.parameters for item in message.outputs):
                return None  # regions come and go: what is remembered must not know any
            slots = _read_outputs(message.outputs, None)
        except (DecodeError, ServeError):
            return None
        if slots is not None:
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


def takes_long(data: bytes | memoryview, signature: Signature) -> bool:
    """Whether a message is so large that looking at its strings should be done in steps."""
    return len(data) > LARGE_BYTES and signature.has_strings


def _decode(envelope: Envelope, signature: Signature, placer: BodyPlacer) -> tuple[Request, ReplyFormat]:
    try:
        message = service_pb2.ModelInferRequest.FromString(envelope.description)
    except DecodeError:
        raise Malformed from None
    request = Request([], unanswered, envelope.id)
    empty_final = _read_parameters(request, message.parameters)
    names = set()
    for item in message.inputs:
        if item.name in names:
            raise duplicate_input(request, item.name)
        names.add(item.name)
    _read_inputs(request, message.inputs, envelope, signature, placer)
    slots = _read_outputs(message.outputs, placer)
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
        region = _shared_memory(item)
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


def _read_parameters(request: Request, parameters: Any) -> bool:
    """Puts the parameters where they belong; whether a stream wants an empty final response."""
    empty_final = False
    others: dict[str, Any] = {}
    for key, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if key == "sequence_id":
            if choice not in ("int64_param", "string_param"):
                raise _wrong_type(key, "int64_param or string_param.")
            value = getattr(parameter, choice)
            request.correlation_id = value if choice == "string_param" else value & _UINT64
        elif key == "sequence_start":
            request.flags |= SEQUENCE_START if _bool(key, parameter, choice) else 0
        elif key == "sequence_end":
            request.flags |= SEQUENCE_END if _bool(key, parameter, choice) else 0
        elif key == "priority":
            if choice not in ("int64_param", "uint64_param"):
                raise _wrong_type(key, "int64_param or uint64_param.")
            request.priority = getattr(parameter, choice)
            if request.priority < 0:
                raise invalid("invalid value for 'priority', expected value >= 0.")
        elif key == "timeout":
            if choice != "int64_param":
                raise _wrong_type(key, "int64_param.")
            request.timeout_us = parameter.int64_param & _UINT64
        elif key == EMPTY_FINAL:
            empty_final = _bool(key, parameter, choice)
        elif key.startswith("triton_"):
            raise invalid(
                "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
                f"starting with 'triton_' are allowed: {EMPTY_FINAL}"
            )
        elif choice in _CHOICES:
            others[key] = getattr(parameter, choice)
        else:
            raise _wrong_type(key, "int64_param, bool_param, or string_param.")
    request.parameters = others or None
    return empty_final


def _bool(key: str, parameter: Any, choice: str | None) -> bool:
    if choice != "bool_param":
        raise _wrong_type(key, "bool_param.")
    return bool(parameter.bool_param)


def _wrong_type(key: str, expected: str) -> ServeError:
    return invalid(f"invalid value type for '{key}' parameter, expected {expected}")


def _read_outputs(outputs: Any, placer: BodyPlacer | None) -> dict[str, Slot] | None:
    """The requested outputs, None for all. Of two requests for the same output the first counts, as over HTTP."""
    slots: dict[str, Slot] = {}
    for item in outputs:
        region = _shared_memory(item)
        classes = 0
        if "classification" in item.parameters:
            parameter = item.parameters["classification"]
            if parameter.WhichOneof("parameter_choice") != "int64_param":
                raise invalid("invalid value type for 'classification' parameter, expected int64_param")
            classes = parameter.int64_param
            if classes <= 0:
                raise invalid("invalid value for 'classification' parameter, expected >= 0")
        if region is not None:
            if classes:
                raise invalid("output can't set both 'shared_memory_region' and 'classification'")
            assert placer is not None
            slots.setdefault(item.name, Slot(True, IN_REGION, placer.output_in_region(*region)))
        else:
            slots.setdefault(item.name, Slot(True, classes))
    return slots or None


def _shared_memory(item: Any) -> tuple[str, int, int] | None:
    """Region, offset and size of a tensor in shared memory, None of another one. Raises ServeError."""
    parameters = item.parameters
    if not parameters:
        return None
    region: str | None = None
    found = {}
    if "shared_memory_region" in parameters:
        region = _shm_value(item, "shared_memory_region", "string_param")
    for key in ("shared_memory_offset", "shared_memory_byte_size"):
        if key in parameters:
            if region is None:
                raise invalid(
                    f"'{key}' can not be specified without 'shared_memory_region' parameter for tensor '{item.name}'"
                )
            found[key] = _shm_value(item, key, "int64_param") & _UINT64
        elif region is not None and key == "shared_memory_byte_size":
            raise invalid(
                "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter "
                f"for tensor '{item.name}'"
            )
    if region is None:
        return None
    return region, found.get("shared_memory_offset", 0), found["shared_memory_byte_size"]


def _shm_value(item: Any, key: str, choice: str) -> Any:
    parameter = item.parameters[key]
    if parameter.WhichOneof("parameter_choice") != choice:
        raise invalid(f"invalid value type for '{key}' parameter for tensor '{item.name}', expected {choice}.")
    return getattr(parameter, choice)
