"""Checks of a model's inputs, outputs, batch inputs and batch outputs, in upstream's words."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from stubserve.errors import ServeError, invalid
from stubserve.model_config.proto import ModelConfig, model_config_pb2

_TYPE_INVALID = model_config_pb2.TYPE_INVALID
_BATCH_TYPES = (model_config_pb2.TYPE_INT32, model_config_pb2.TYPE_FP32)
_IMAGE_FORMATS = (model_config_pb2.ModelInput.FORMAT_NHWC, model_config_pb2.ModelInput.FORMAT_NCHW)
_TENSORRT_PLATFORM = "tensorrt_plan"
_WILDCARD = -1


def validate_io(config: ModelConfig) -> None:
    """Raises: ServeError INVALID_ARG, the text ending in " for <model>"."""
    try:
        for tensor in config.input:
            _validate_tensor(tensor, "input", config)
        for tensor in config.output:
            _validate_tensor(tensor, "output", config)
        _validate_batch_inputs(config)
        _validate_batch_outputs(config)
    except ServeError as error:
        raise ServeError(error.code, f"{error.message} for {config.name}") from None


def _validate_tensor(tensor: Any, direction: str, config: ModelConfig) -> None:
    _validate_shape(tensor, f"model {direction} ", config.max_batch_size)
    if direction == "input" and tensor.format in _IMAGE_FORMATS and len(tensor.dims) != 3:
        raise invalid("model input NHWC/NCHW require 3 dims")
    if tensor.is_shape_tensor and config.platform != _TENSORRT_PLATFORM:
        raise invalid("shape tensors are only supported for TensorRT platform")
    if tensor.is_non_linear_format_io:
        if config.platform != _TENSORRT_PLATFORM:
            raise invalid("Non-linear IO format is only supported for the TensorRT platform")
        if len(tensor.dims) != 3:
            raise invalid(f"Non-linear IO format {direction} requires 3 dims")


def _validate_shape(tensor: Any, prefix: str, max_batch_size: int) -> None:
    if not tensor.name:
        raise invalid(f"{prefix}must specify 'name'")
    prefix = f"{prefix}'{tensor.name}' "
    if tensor.data_type == _TYPE_INVALID:
        raise invalid(f"{prefix}must specify 'data_type'")
    if not tensor.dims:
        raise invalid(f"{prefix}must specify 'dims'")
    reshaped = tensor.HasField("reshape")
    if reshaped and not tensor.reshape.shape and max_batch_size == 0:
        raise invalid(f"{prefix}cannot have empty reshape for non-batching model as scalar tensors are not supported")
    if not _are_dims(tensor.dims):
        raise invalid(f"{prefix}dimension must be integer >= 1, or -1 to indicate a variable-size dimension")
    if not reshaped:
        return
    if not _are_dims(tensor.reshape.shape):
        raise invalid(f"{prefix}reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension")
    _validate_reshape(tensor.dims, tensor.reshape.shape, prefix)


def _are_dims(dims: Sequence[int]) -> bool:
    return all(dim >= 1 or dim == _WILDCARD for dim in dims)


def _validate_reshape(dims: Sequence[int], shape: Sequence[int], prefix: str) -> None:
    """Both sides must hold the same number of elements, between any two variable dimensions as well as in all.

    [2, 4, -1, 6] to [8, -1, 1, 6] passes. An empty shape, a scalar, counts as one element.
    """
    before, after = _chunk_sizes(dims), _chunk_sizes(shape)
    if (len(before) == 1) != (len(after) == 1):
        raise invalid(f"{prefix}has different size for dims and reshape")
    if len(before) != len(after):
        raise invalid(f"{prefix}has different number of variable-size dimensions for dims and reshape")
    if before != after:
        raise invalid(f"{prefix}has different size for dims and reshape")


def _chunk_sizes(dims: Sequence[int]) -> list[int]:
    """The products of what lies between variable dimensions; a single one if there is no variable dimension."""
    cuts = [index for index, dim in enumerate(dims) if dim == _WILDCARD]
    starts, ends = [0, *(cut + 1 for cut in cuts)], [*cuts, len(dims)]
    return [prod(dims[start:end]) for start, end in zip(starts, ends, strict=True)]


def _validate_batch_inputs(config: ModelConfig) -> None:
    kinds = model_config_pb2.BatchInput.Kind
    for batch_input in config.batch_input:
        _validate_source_count("input", kinds, batch_input)
        if batch_input.data_type not in _BATCH_TYPES:
            raise invalid("batch input data type must be TYPE_INT32 or TYPE_FP32")
        _validate_sources(batch_input, config)


def _validate_batch_outputs(config: ModelConfig) -> None:
    kinds = model_config_pb2.BatchOutput.Kind
    outputs = {output.name for output in config.output}
    for batch_output in config.batch_output:
        _validate_source_count("output", kinds, batch_output)
        _validate_sources(batch_output, config)
        seen: set[str] = set()
        for target in batch_output.target_name:
            if target not in outputs:
                raise invalid(f"unknown target output name '{target}'")
            if target in seen:
                raise invalid(f"target output name '{target}' can only be specified once")
            seen.add(target)


def _validate_source_count(direction: str, kinds: Any, batch_io: Any) -> None:
    if batch_io.kind not in kinds.values():
        # Protobuf has no name for it, and upstream prints the empty one it gets.
        raise invalid(f"unknown batch {direction} kind ''")
    count = len(batch_io.source_input)
    if count != 1:
        kind = kinds.Name(batch_io.kind)
        raise invalid(f"batch {direction} kind '{kind}' expects 1 source input, got {count}")


def _validate_sources(batch_io: Any, config: ModelConfig) -> None:
    inputs = {tensor.name for tensor in config.input}
    for source in batch_io.source_input:
        if source not in inputs:
            raise invalid(f"unknown source input name '{source}'")
