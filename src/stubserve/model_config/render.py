"""`ModelConfig` to the JSON for clients and models, and back from the result of `auto_complete_config`.

The form is exactly upstream's, because clients and models index into it: fields by their .proto names in declaration
order (a oneof's scalars last), every scalar, list and map even when empty, messages and oneof members only when set,
enums by name, 64-bit integers as numbers. Fields that upstream's own conversion forgets are forgotten here, too
(`_INT64_AS_TEXT`). There is one difference: upstream prints map entries in hash order, which changes from call to call;
here they are sorted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor

from stubserve.errors import ServeError, internal, not_found
from stubserve.model_config.complete import copy_of, normalise_again
from stubserve.model_config.parse import parse_json
from stubserve.model_config.proto import ModelConfig, is_repeated, model_config_pb2

_INT64 = frozenset(
    {
        FieldDescriptor.TYPE_INT64,
        FieldDescriptor.TYPE_UINT64,
        FieldDescriptor.TYPE_SINT64,
        FieldDescriptor.TYPE_FIXED64,
        FieldDescriptor.TYPE_SFIXED64,
    }
)

# Protobuf's JSON writes 64-bit integers as strings. Upstream turns them into numbers field by field and forgets these.
_INT64_AS_TEXT = frozenset(
    {
        "inference.ModelInstanceGroup.SecondaryDevice.device_id",
        "inference.ModelOptimizationPolicy.Cuda.GraphSpec.Shape.dim",
        "inference.ModelSequenceBatching.InitialState.dims",
    }
)


def to_json_dict(message: ModelConfig) -> dict[str, Any]:
    """The document of GET /v2/models/M/config, or a part of it; a model gets it as text in `args["model_config"]`."""
    document: dict[str, Any] = {}
    # A oneof's scalars last
    for field in sorted(message.DESCRIPTOR.fields, key=lambda one: bool(one.containing_oneof and not one.message_type)):
        name = field.name
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            entry = field.message_type.fields_by_name["value"]
            items = sorted(getattr(message, name).items())
            document[name] = {str(key): _value(value, entry) for key, value in items}
        elif is_repeated(field):
            document[name] = [_value(value, field) for value in getattr(message, name)]
        elif not field.has_presence or message.HasField(name):
            document[name] = _value(getattr(message, name), field)
    return document


def render_json(config: ModelConfig) -> str:
    """`to_json_dict` as compact text, non-ASCII characters unescaped, as upstream hands it to `initialize`."""
    return json.dumps(to_json_dict(config), separators=(",", ":"), ensure_ascii=False)


def _value(value: Any, field: FieldDescriptor) -> Any:
    if field.message_type is not None:
        return to_json_dict(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    if field.type in _INT64:
        return str(value) if field.full_name in _INT64_AS_TEXT else value
    if field.type == FieldDescriptor.TYPE_FLOAT:
        # The shortest text that gives this float32 back: 0.1, not 0.10000000149011612.
        value = float(str(np.float32(value)))
    return _number(value) if isinstance(value, float) else value


def _number(value: float) -> float | int | str:
    """Upstream writes a float without a fraction as an integer, and protobuf's JSON has no literal for infinity."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def adopt_completed(config: ModelConfig, returned_json: str) -> ModelConfig:
    """The configuration with the parts that the server adopts from the result of `auto_complete_config`.

    Only max_batch_size, input, output, the scheduling choice if `config` has none, and decoupled are taken; then
    defaults are filled in again (`normalise_again`). `config` itself is not changed.

    Raises ServeError INVALID_ARG (the JSON is no ModelConfig, e.g. has an unknown key), INTERNAL (another scheduling
    choice than configured). `conclude_auto_complete` handles these as upstream does.
    """
    completed = parse_json(returned_json)
    adopted = copy_of(config)
    adopted.max_batch_size = completed.max_batch_size
    for field in ("input", "output"):
        adopted.ClearField(field)
        getattr(adopted, field).extend(getattr(completed, field))
    configured = config.WhichOneof("scheduling_choice")
    returned = completed.WhichOneof("scheduling_choice")
    if configured is None:
        if returned is not None:
            getattr(adopted, returned).CopyFrom(getattr(completed, returned))
    elif configured != returned:
        # Upstream prints the configured field's number twice; the text is kept as clients know it.
        number = ModelConfig.DESCRIPTOR.fields_by_name[configured].number
        raise internal(f"Cannot update scheduling choice from {number} to {number} when auto-completing.")
    if completed.HasField("model_transaction_policy"):
        adopted.model_transaction_policy.decoupled = completed.model_transaction_policy.decoupled
    return normalise_again(adopted)


def conclude_auto_complete(
    config: ModelConfig, returned_json: str, *, has_config_file: bool
) -> tuple[ModelConfig, str, ServeError | None]:
    """Upstream's whole treatment of a returned configuration: (served configuration, args["model_config"], error).

    Measured on Triton 2.51: a configuration that can not be adopted does not fail the load. The model is served with
    its config.pbtxt, while `initialize` gets the returned JSON verbatim. Upstream logs nothing; the caller may log the
    error. Only a model without config.pbtxt fails: raises ServeError NOT_FOUND.
    """
    try:
        adopted = adopt_completed(config, returned_json)
    except ServeError as error:
        if not has_config_file:
            raise not_found(f"model configuration is not provided for model '{config.name}'") from error
        return config, returned_json, error
    return adopted, render_json(adopted), None


_DATA_TYPE = model_config_pb2.DataType


def datatype_name(data_type: int) -> str:
    """The protocol's name of a configured data type: TYPE_FP32 is "FP32", TYPE_STRING is "BYTES"."""
    name: str = _DATA_TYPE.Name(data_type)
    return "BYTES" if name == "TYPE_STRING" else name[len("TYPE_") :]


def model_metadata(config: ModelConfig, versions: list[str]) -> dict[str, Any]:
    """The metadata document, keys in upstream's order.

    `versions` are the requested version, or all ready ones in ascending order. Shapes are the configured dims, not the
    reshaped ones, with -1 in front for the batch when max_batch_size >= 1; optional inputs are not marked.
    """
    batch = [-1] if config.max_batch_size >= 1 else []
    return {
        "name": config.name,
        "versions": list(versions),
        "platform": config.platform or config.backend,
        "inputs": _tensors(config.input, batch),
        "outputs": _tensors(config.output, batch),
    }


def _tensors(tensors: Iterable[Any], batch: list[int]) -> list[dict[str, Any]]:
    return [{"name": t.name, "datatype": datatype_name(t.data_type), "shape": [*batch, *t.dims]} for t in tensors]
