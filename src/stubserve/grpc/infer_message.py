"""A ModelInferRequest read by way of the generated message: checked in upstream's order, refused in upstream's words.

Some parameters are the protocol's (sequences, priority, timeout, shared memory, classification); the others are the
model's.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError
from stubserve_stub.wire.datatypes import BY_NAME

from stubserve.api.placement import IN_REGION, INVALID_DATATYPE, BodyPlacer, ReplyFormat, Slot, note_outputs
from stubserve.errors import ServeError, invalid
from stubserve.grpc import contents
from stubserve.grpc.messages import service_pb2
from stubserve.grpc.wire import Malformed, TooManyParts
from stubserve.inference.admission import duplicate_input, duplicate_output
from stubserve.inference.request import SEQUENCE_END, SEQUENCE_START, Request, unanswered
from stubserve.inference.signature import Signature

# Of one tensor; numpy's arrays have no more than 64.
MAX_DIMS = 1024

_EMPTY_FINAL = "triton_enable_empty_final_response"

_UINT64 = (1 << 64) - 1
_CHOICES = ("int64_param", "bool_param", "string_param", "double_param")


def decode_message(
    description: bytes, id: str, raw: list[tuple[int, int]], signature: Signature, placer: BodyPlacer
) -> tuple[Request, ReplyFormat]:
    """The request that a description (parameters, inputs and outputs) makes with these raw contents of its message.

    Raises ServeError, and Malformed where the description is none.
    """
    try:
        message = service_pb2.ModelInferRequest.FromString(description)
    except DecodeError:
        raise Malformed from None
    request = Request([], unanswered, id)
    empty_final = read_parameters(request, message.parameters)
    for items, refusal in ((message.inputs, duplicate_input), (message.outputs, duplicate_output)):
        names = set()
        for item in items:
            if item.name in names:
                raise refusal(request, item.name)
            names.add(item.name)
    _read_inputs(request, message.inputs, raw, signature, placer)
    slots = read_outputs(message.outputs, placer)
    if slots is not None:
        note_outputs(request, slots)
    return request, ReplyFormat(slots, True, empty_final)


def _read_inputs(
    request: Request, inputs: Any, raw: list[tuple[int, int]], signature: Signature, placer: BodyPlacer
) -> None:
    """Puts the inputs into the request."""
    left = iter(raw)
    for item in inputs:
        if len(item.shape) > MAX_DIMS:
            raise TooManyParts(f"dimensions of input '{item.name}'", MAX_DIMS)
        shape = tuple(item.shape)
        datatype = BY_NAME.get(item.datatype, INVALID_DATATYPE).number
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
            if raw:
                raise invalid(
                    "contents field must not be specified when using raw_input_contents for "
                    f"'{item.name}' for model '{signature.model}'"
                )
            data = contents.read(item.contents, item.name, datatype, signature.model)
            request.inputs.append(placer.put(item.name, datatype, shape, data))
            continue
        start, end = next(left, (-1, -1))
        if start < 0:
            raise invalid(
                f"unable to find data for input tensor '{item.name}' for model '{signature.model}' in request."
            )
        request.inputs.append(placer.slice(item.name, datatype, shape, start, end - start))


def read_parameters(request: Request, parameters: Any) -> bool:
    """Puts a request's parameters where they belong; whether a stream wants an empty final response.

    Raises ServeError.
    """
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
        elif key == _EMPTY_FINAL:
            empty_final = _bool(key, parameter, choice)
        elif key.startswith("triton_"):
            raise invalid(
                "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
                f"starting with 'triton_' are allowed: {_EMPTY_FINAL}"
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


def read_outputs(outputs: Any, placer: BodyPlacer | None) -> dict[str, Slot] | None:
    """The requested outputs, None for all. Of two of one name one is left.

    Raises ServeError. Without a placer none of them may be wanted in shared memory.
    """
    slots: dict[str, Slot] = {}
    for item in outputs:
        region = shared_memory(item)
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
            slots[item.name] = Slot(True, IN_REGION, placer.output_in_region(*region))
        else:
            slots[item.name] = Slot(True, classes)
    return slots or None


def shared_memory(item: Any) -> tuple[str, int, int] | None:
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
