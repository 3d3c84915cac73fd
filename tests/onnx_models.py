"""Small ONNX models for tests, made with the package onnx."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

onnx = pytest.importorskip("onnx")
helper = onnx.helper
TYPES = onnx.TensorProto

# By the names of the protocol
ELEMENT_TYPES = {
    "BOOL": TYPES.BOOL,
    "UINT8": TYPES.UINT8,
    "UINT16": TYPES.UINT16,
    "UINT32": TYPES.UINT32,
    "UINT64": TYPES.UINT64,
    "INT8": TYPES.INT8,
    "INT16": TYPES.INT16,
    "INT32": TYPES.INT32,
    "INT64": TYPES.INT64,
    "FP16": TYPES.FLOAT16,
    "FP32": TYPES.FLOAT,
    "FP64": TYPES.DOUBLE,
    "BYTES": TYPES.STRING,
    "BF16": TYPES.BFLOAT16,
}

OPSET = 17
IR_VERSION = 8

# Name, data type (of the protocol), dimensions
Tensor = tuple[str, str, Sequence[Any]]


def model(
    nodes: Sequence[Any],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    initializers: Sequence[Any] = (),
    *,
    opset: int = OPSET,
    ir_version: int = IR_VERSION,
    domains: Sequence[str] = (),
) -> Any:
    graph = helper.make_graph(
        list(nodes), "graph", [info(*tensor) for tensor in inputs], [info(*tensor) for tensor in outputs],
        list(initializers),
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


def info(name: str, datatype: str, dims: Sequence[Any]) -> Any:
    return helper.make_tensor_value_info(name, ELEMENT_TYPES[datatype], dims)


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    """Names of inputs and outputs with spaces between."""
    return helper.make_node(operator, inputs.split(), outputs.split(), **attributes)


def identity(datatype: str = "FP32", dims: Sequence[Any] = ("batch", "n")) -> Any:
    """Y = X"""
    return model([node("Identity", "X", "Y")], [("X", datatype, dims)], [("Y", datatype, dims)])


def arithmetic(dims: Sequence[Any] = ("batch", "n")) -> Any:
    """SUM = A + B, DIFFERENCE = A - B"""
    return model(
        [node("Add", "A B", "SUM"), node("Sub", "A B", "DIFFERENCE")],
        [("A", "FP32", dims), ("B", "FP32", dims)],
        [("SUM", "FP32", dims), ("DIFFERENCE", "FP32", dims)],
    )


def segment_sums() -> Any:
    """Y has a row with the sum of each segment of X; BORDERS is where they begin, and the end."""
    return model(
        [
            # The sums up to each border; their differences are those of the segments.
            node("Concat", "ZERO SUMS", "FROM_ZERO", axis=0),
            node("CumSum", "X AXIS", "SUMS"),
            node("Gather", "FROM_ZERO BORDERS", "AT_BORDERS", axis=0),
            node("Slice", "AT_BORDERS ONE_LIST END AXIS_LIST", "LATER"),
            node("Slice", "AT_BORDERS ZERO_LIST MINUS_ONE AXIS_LIST", "EARLIER"),
            node("Sub", "LATER EARLIER", "DIFFERENCES"),
            node("Unsqueeze", "DIFFERENCES ONE_LIST", "Y"),
        ],
        [("X", "FP32", ["elements"]), ("BORDERS", "INT32", ["borders"])],
        [("Y", "FP32", ["n", 1])],
        [
            helper.make_tensor("ZERO", 1, [1], [0.0]),
            helper.make_tensor("AXIS", 6, [], [0]),
            helper.make_tensor("AXIS_LIST", 7, [1], [0]),
            helper.make_tensor("ZERO_LIST", 7, [1], [0]),
            helper.make_tensor("ONE_LIST", 7, [1], [1]),
            helper.make_tensor("MINUS_ONE", 7, [1], [-1]),
            helper.make_tensor("END", 7, [1], [1 << 40]),
        ],
    )


def save(made: Any, version_dir: Path, filename: str = "model.onnx") -> Path:
    version_dir.mkdir(parents=True, exist_ok=True)
    path = version_dir / filename
    path.write_bytes(made.SerializeToString())
    return path


def with_external_data(location: str) -> Any:
    """Y = X + W, where the 2000 floats of W lie in another file."""
    weights = helper.make_tensor("W", TYPES.FLOAT, [2000], bytes(8000), raw=True)
    weights.ClearField("raw_data")
    weights.data_location = TYPES.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", "8000")):
        weights.external_data.add(key=key, value=value)
    return model([node("Add", "X W", "Y")], [("X", "FP32", [2000])], [("Y", "FP32", [2000])], [weights])
