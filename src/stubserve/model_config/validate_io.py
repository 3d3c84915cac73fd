"""Checks of a model's inputs, outputs, batch inputs and batch outputs, in upstream's words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from stubserve_stub.backends.cards import card_of

from stubserve.errors import ServeError, invalid, within
from stubserve.model_config.proto import ModelConfig, model_config_pb2

_TYPE_INVALID = model_config_pb2.TYPE_INVALID
_BATCH_TYPES = (model_config_pb2.TYPE_INT32, model_config_pb2.TYPE_FP32)
_IMAGE_FORMATS = (model_config_pb2.ModelInput.FORMAT_NHWC, model_config_pb2.ModelInput.FORMAT_NCHW)
_WILDCARD = -1


def io_problems(config: ModelConfig) -> Iterator[ServeError]:
    """Each error INVALID_ARG, the text ending in " for <model>"."""
    for error in _problems(config):
        yield ServeError(error.code, f"{error.message} for {config.name}", error.path)


def repeated_tensors(config: ModelConfig) -> Iterator[ServeError]:
    """Inputs and outputs that are declared again. Upstream loads such a model, so no load fails with these."""
    for field, tensors, what in (
        ("input", config.input, "declared twice: all requests are refused, because none can have two of it"),
        ("output", config.output, "declared twice; it is answered once"),
    ):
        seen: set[str] = set()
        for index, tensor in enumerate(tensors):
            if tensor.name in seen:
                yield invalid(f"{field} '{tensor.name}' is {what}").at(field, index)
            seen.add(tensor.name)


def _problems(config: ModelConfig) -> Iterator[ServeError]:
    for direction, tensors in (("input", config.input), ("output", config.output)):
        for index, tensor in enumerate(tensors):
            yield from within(_tensor_problems(tensor, direction, config), direction, index)
    yield from _batch_input_problems(config)
    yield from _batch_output_problems(config)


def _tensor_problems(tensor: Any, direction: str, config: ModelConfig) -> Iterator[ServeError]:
    yield from _shape_problems(tensor, f"model {direction} ", config.max_batch_size)
    if direction == "input" and tensor.format in _IMAGE_FORMATS and len(tensor.dims) != 3:
        yield invalid("model input NHWC/NCHW require 3 dims").at("dims")
    has_engines = card_of(config.backend).has_engines
    if tensor.is_shape_tensor and not has_engines:
        yield invalid("shape tensors are only supported for TensorRT platform").at("is_shape_tensor")
    if tensor.is_non_linear_format_io:
        if not has_engines:
            error = invalid("Non-linear IO format is only supported for the TensorRT platform")
            yield error.at("is_non_linear_format_io")
        elif len(tensor.dims) != 3:
            yield invalid(f"Non-linear IO format {direction} requires 3 dims").at("dims")


def _shape_problems(tensor: Any, prefix: str, max_batch_size: int) -> Iterator[ServeError]:
    if tensor.name:
        prefix = f"{prefix}'{tensor.name}' "
    else:
        yield invalid(f"{prefix}must specify 'name'").at("name")
    if tensor.data_type == _TYPE_INVALID:
        yield invalid(f"{prefix}must specify 'data_type'").at("data_type")
    if not tensor.dims:
        yield invalid(f"{prefix}must specify 'dims'").at("dims")
    reshaped = tensor.HasField("reshape")
    if reshaped and not tensor.reshape.shape and max_batch_size == 0:
        text = f"{prefix}cannot have empty reshape for non-batching model as scalar tensors are not supported"
        yield invalid(text).at("reshape")
    if not _are_dims(tensor.dims):
        text = f"{prefix}dimension must be integer >= 1, or -1 to indicate a variable-size dimension"
        yield invalid(text).at("dims")
        return
    if not reshaped or not tensor.dims:
        return
    if not _are_dims(tensor.reshape.shape):
        text = f"{prefix}reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension"
        yield invalid(text).at("reshape")
        return
    yield from _reshape_problems(tensor.dims, tensor.reshape.shape, prefix)


def _are_dims(dims: Sequence[int]) -> bool:
    return all(dim >= 1 or dim == _WILDCARD for dim in dims)


def _reshape_problems(dims: Sequence[int], shape: Sequence[int], prefix: str) -> Iterator[ServeError]:
    """Both sides must have the same number of elements, in all and between any two variable dimensions.

    [2, 4, -1, 6] to [8, -1, 1, 6] passes. An empty shape, a scalar, counts as one element.
    """
    before, after = _chunk_sizes(dims), _chunk_sizes(shape)
    if (len(before) == 1) != (len(after) == 1):
        yield invalid(f"{prefix}has different size for dims and reshape").at("reshape")
    elif len(before) != len(after):
        text = f"{prefix}has different number of variable-size dimensions for dims and reshape"
        yield invalid(text).at("reshape")
    elif before != after:
        yield invalid(f"{prefix}has different size for dims and reshape").at("reshape")


def _chunk_sizes(dims: Sequence[int]) -> list[int]:
    """The products of the dimensions between variable ones; a single product if there is no variable dimension."""
    cuts = [index for index, dim in enumerate(dims) if dim == _WILDCARD]
    starts, ends = [0, *(cut + 1 for cut in cuts)], [*cuts, len(dims)]
    return [prod(dims[start:end]) for start, end in zip(starts, ends, strict=True)]


def _batch_input_problems(config: ModelConfig) -> Iterator[ServeError]:
    kinds = model_config_pb2.BatchInput.Kind
    for index, batch_input in enumerate(config.batch_input):
        here = ("batch_input", index)
        yield from _source_count_problems("input", kinds, batch_input, here)
        if batch_input.data_type not in _BATCH_TYPES:
            yield invalid("batch input data type must be TYPE_INT32 or TYPE_FP32").at(*here, "data_type")
        yield from _source_problems(batch_input, config, here)


def _batch_output_problems(config: ModelConfig) -> Iterator[ServeError]:
    kinds = model_config_pb2.BatchOutput.Kind
    outputs = {output.name for output in config.output}
    for index, batch_output in enumerate(config.batch_output):
        here = ("batch_output", index)
        yield from _source_count_problems("output", kinds, batch_output, here)
        yield from _source_problems(batch_output, config, here)
        seen: set[str] = set()
        for target in batch_output.target_name:
            if target not in outputs:
                yield invalid(f"unknown target output name '{target}'").at(*here, "target_name")
            elif target in seen:
                yield invalid(f"target output name '{target}' can only be specified once").at(*here, "target_name")
            seen.add(target)


def _source_count_problems(
    direction: str, kinds: Any, batch_io: Any, here: tuple[str | int, ...]
) -> Iterator[ServeError]:
    if batch_io.kind not in kinds.values():
        # Protobuf has no name for this kind, and upstream prints the empty one.
        yield invalid(f"unknown batch {direction} kind ''").at(*here, "kind")
        return
    count = len(batch_io.source_input)
    if count != 1:
        kind = kinds.Name(batch_io.kind)
        text = f"batch {direction} kind '{kind}' expects 1 source input, got {count}"
        yield invalid(text).at(*here, "source_input")


def _source_problems(batch_io: Any, config: ModelConfig, here: tuple[str | int, ...]) -> Iterator[ServeError]:
    inputs = {tensor.name for tensor in config.input}
    for source in batch_io.source_input:
        if source not in inputs:
            yield invalid(f"unknown source input name '{source}'").at(*here, "source_input")
