"""The model metadata document of GET /v2/models/M."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stubserve.model_config.proto import ModelConfig, model_config_pb2

_DATA_TYPE = model_config_pb2.DataType


def datatype_name(data_type: int) -> str:
    """The protocol's name of a configured data type: TYPE_FP32 is "FP32", TYPE_STRING is "BYTES"."""
    name: str = _DATA_TYPE.Name(data_type)
    return "BYTES" if name == "TYPE_STRING" else name[len("TYPE_") :]


def model_metadata(config: ModelConfig, versions: list[str]) -> dict[str, Any]:
    """The metadata document, keys in upstream's order.

    `versions` are the version asked for, or all that are ready in ascending order. Shapes are the configured dims, not
    the reshaped ones, with -1 in front for the batch when max_batch_size >= 1; optional inputs are not marked.
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
