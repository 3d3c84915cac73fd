"""ONNX models for the benchmark, made with the package onnx: dense layers on few values, convolutions on an image.

How long one takes is decided by its number of layers. The counts are those that take about 1 ms and 10 ms on one thread
of a 2025 server: for a batch of 32 where the input is small, for one image where the input is 600 KiB, because a batch
of 32 such images is 19 MB, which alone take longer than a millisecond to read. What they took is a figure of the row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 32
VALUES = 64
WIDTH = 512
SIDE, CHANNELS = 224, 16
IMAGE = 3 * SIDE * SIDE
CLASSES = 10

CONFIG = """\
backend: "onnxruntime"
max_batch_size: {batch}
input [ {{ name: "X" data_type: TYPE_FP32 dims: [ {values} ] }} ]
output [ {{ name: "Y" data_type: TYPE_FP32 dims: [ {classes} ] }} ]
dynamic_batching {{ }}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
parameters {{ key: "intra_op_thread_count" value {{ string_value: "1" }} }}
parameters {{ key: "inter_op_thread_count" value {{ string_value: "1" }} }}
"""


@dataclass(frozen=True)
class OnnxModel:
    """`values` floats go in and CLASSES come out; `make` gives the model of so many `layers`."""

    name: str
    values: int
    layers: int
    make: Callable[[int], Any]


def write(repository: Path) -> None:
    """All models, each with a session of one thread and batches of up to BATCH."""
    import onnx

    for model in MODELS:
        folder = repository / model.name
        (folder / "1").mkdir(parents=True)
        (folder / "config.pbtxt").write_text(CONFIG.format(batch=BATCH, values=model.values, classes=CLASSES))
        onnx.save(model.make(model.layers), str(folder / "1" / "model.onnx"))


def inputs(model: OnnxModel, count: int) -> list[np.ndarray[Any, Any]]:
    """So many inputs of one row; the same in every process."""
    random = np.random.default_rng(0)
    return [random.standard_normal((1, model.values), np.float32) for _ in range(count)]


def open_session(file: Path | bytes) -> Any:
    """As the servers open it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    given = str(file) if isinstance(file, Path) else file
    return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])


def session_of(model: OnnxModel) -> Any:
    return open_session(model.make(model.layers).SerializeToString())


def dense(layers: int) -> Any:
    """VALUES floats through so many layers of WIDTH."""
    weights, nodes = [], []
    sizes = [VALUES, *[WIDTH] * layers, CLASSES]
    for number, (before, after) in enumerate(pairwise(sizes)):
        last = number == layers
        weights.append(_weights(f"w{number}", (before, after), before))
        nodes.append(_node("MatMul", [f"x{number}" if number else "X", f"w{number}"], "Y" if last else f"m{number}"))
        if not last:
            nodes.append(_node("Relu", [f"m{number}"], f"x{number + 1}"))
    return _model(nodes, VALUES, weights)


def convolutions(layers: int) -> Any:
    """An image through so many convolutions of 3 by 3 on a quarter of its side."""
    from onnx import numpy_helper

    weights = [
        numpy_helper.from_array(np.array([0, 3, SIDE, SIDE], np.int64), "image"),
        _weights("first", (CHANNELS, 3, 4, 4), 48),
        _weights("last", (CHANNELS, CLASSES), CHANNELS),
    ]
    nodes = [
        _node("Reshape", ["X", "image"], "pixels"),
        _node("Conv", ["pixels", "first"], "c0", kernel_shape=[4, 4], strides=[4, 4]),
    ]
    for number in range(layers):
        weights.append(_weights(f"w{number}", (CHANNELS, CHANNELS, 3, 3), 9 * CHANNELS))
        nodes += [
            _node("Relu", [f"c{number}"], f"r{number}"),
            _node("Conv", [f"r{number}", f"w{number}"], f"c{number + 1}", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        ]
    nodes += [
        _node("GlobalAveragePool", [f"c{layers}"], "pooled"),
        _node("Flatten", ["pooled"], "flat"),
        _node("MatMul", ["flat", "last"], "Y"),
    ]
    return _model(nodes, IMAGE, weights)


def _node(operator: str, given: Sequence[str], made: str, **attributes: Any) -> Any:
    from onnx import helper

    return helper.make_node(operator, list(given), [made], **attributes)


def _weights(name: str, shape: tuple[int, ...], inputs_of_each: int) -> Any:
    """Such that values neither grow nor vanish from layer to layer."""
    from onnx import numpy_helper

    random = np.random.default_rng(len(name))
    scale = np.float32((2 / inputs_of_each) ** 0.5)
    return numpy_helper.from_array(random.standard_normal(shape, np.float32) * scale, name)


def _model(nodes: Sequence[Any], values: int, weights: Sequence[Any]) -> Any:
    from onnx import TensorProto, helper

    x = helper.make_tensor_value_info("X", TensorProto.FLOAT, ["rows", values])
    y = helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["rows", CLASSES])
    graph = helper.make_graph(list(nodes), "bench", [x], [y], list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


MODELS = [
    OnnxModel("dense_1ms", VALUES, 9, dense),
    OnnxModel("dense_10ms", VALUES, 80, dense),
    OnnxModel("image_1ms", IMAGE, 7, convolutions),
    OnnxModel("image_10ms", IMAGE, 75, convolutions),
]
