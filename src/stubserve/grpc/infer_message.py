"""Reads a ModelInferRequest through the generated message, with upstream's order of checks and upstream's errors.

Parameters for sequences, priority, timeout, shared memory and classification are the protocol's; others go to the
model.
"""

# Compiled by mypyc.
from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError
from stubserve_stub.wire.datatypes import BY_NAME
from stubserve_stub.wire.options import RequestOptions

from stubserve.api.placement import IN_REGION, INVALID_DATATYPE, BodyPlacer, ReplyFormat, Slot, regions_of
from stubserve.api.request_options import PREFIX, RESERVED
from stubserve.errors import ServeError, invalid
from stubserve.grpc import contents
from stubserve.grpc.messages import service_pb2
from stubserve.grpc.wire import Malformed, TooManyParts
from stubserve.inference.admission import duplicate_input, duplicate_output
from stubserve.inference.request import Request
from stubserve.inference.signature import Signature
from stubserve.inference.tensor import Tensor

# The most dimensions of one tensor; numpy's arrays have at most 64.
MAX_DIMS = 1024

_EMPTY_FINAL = "triton_enable_empty_final_response"

_UINT64 = (1 << 64) - 1
_CHOICES = ("int64_param", "bool_param", "string_param", "double_param")


def decode_message(
    description: bytes, id: str, raw: list[tuple[int, int]], signature: Signature, placer: BodyPlacer
) -> tuple[Request, ReplyFormat]:
    """The request of a description (parameters, inputs and outputs) with the raw contents of its message.

    Raises ServeError, and Malformed for a malformed description.
    """
    try:
        message = service_pb2.ModelInferRequest.FromString(description)
    except DecodeError:
        raise Malformed from None
    options, empty_final = read_parameters(message.parameters)
    for items, refusal in ((message.inputs, duplicate_input), (message.outputs, duplicate_output)):
        names = set()
        for item in items:
            if item.name in names:
                raise refusal(id, item.name)
            names.add(item.name)
    inputs = _read_inputs(message.inputs, raw, signature, placer)
    slots = read_outputs(message.outputs, placer)
    outputs = None if slots is None else list(slots)
    return Request(inputs, id, options, outputs, regions_of(placer.regions, slots)), ReplyFormat(
        slots, True, empty_final, placer.regions
    )


def _read_inputs(inputs: Any, raw: list[tuple[int, int]], signature: Signature, placer: BodyPlacer) -> list[Tensor]:
    tensors: list[Tensor] = []
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
            tensors.append(placer.in_region(item.name, datatype, shape, *region))
            continue
        if given:
            if raw:
                raise invalid(
                    "contents field must not be specified when using raw_input_contents for "
                    f"'{item.name}' for model '{signature.model}'"
                )
            data = contents.read(item.contents, item.name, datatype, signature.model)
            tensors.append(placer.put(item.name, datatype, shape, data))
            continue
        start, end = next(left, (-1, -1))
        if start < 0:
            raise invalid(
                f"unable to find data for input tensor '{item.name}' for model '{signature.model}' in request."
            )
        tensors.append(placer.slice(item.name, datatype, shape, start, end - start))
    return tensors


def read_parameters(parameters: Any) -> tuple[RequestOptions, bool]:
    """The options that the parameters set, and whether a stream wants an empty final response. Raises ServeError."""
    empty_final = False
    options: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for key, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if key in RESERVED:
            RESERVED[key].put(options, _value(key, parameter, RESERVED[key].types))
        elif key == _EMPTY_FINAL:
            empty_final = _value(key, parameter, ("bool_param",))
        elif key.startswith(PREFIX):
            raise invalid(
                "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
                f"starting with 'triton_' are allowed: {_EMPTY_FINAL}"
            )
        elif choice in _CHOICES:
            others[key] = getattr(parameter, choice)
        else:
            raise _wrong_type(key, "int64_param, bool_param, or string_param.")
    return RequestOptions(**options, parameters=others or None), empty_final


def _value(key: str, parameter: Any, types: tuple[str, ...]) -> Any:
    """The value of a parameter that has one of these types. Raises ServeError."""
    choice = parameter.WhichOneof("parameter_choice")
    if choice not in types:
        raise _wrong_type(key, f"{' or '.join(types)}.")
    value = getattr(parameter, choice)
    if choice != "int64_param":
        return value
    if value < 0 and "uint64_param" in types:
        raise invalid(f"invalid value for '{key}', expected value >= 0.")
    return value & _UINT64


def _wrong_type(key: str, expected: str) -> ServeError:
    return invalid(f"invalid value type for '{key}' parameter, expected {expected}")


def read_outputs(outputs: Any, placer: BodyPlacer | None) -> dict[str, Slot] | None:
    """The requested outputs, None for all. Raises ServeError. Without a placer none may go into shared memory."""
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
    """Region, offset and size of a tensor in shared memory; None for any other tensor. Raises ServeError."""
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
