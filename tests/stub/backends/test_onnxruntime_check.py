"""What is read out of an ONNX file is what onnxruntime says of it once it has loaded it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stubserve_stub.backends.onnxruntime.check import declared
from stubserve_stub.backends.onnxruntime.contract import contract_of

from tests.onnx_models import ELEMENT_TYPES, helper, identity, model, node

onnxruntime = pytest.importorskip("onnxruntime")
NOTHING: dict[str, Any] = {"input": [], "output": []}


def written(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(content if isinstance(content, bytes) else content.SerializeToString())
    return path


def loaded(path: Path) -> Any:
    return contract_of(onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]))


@pytest.mark.parametrize("datatype", sorted(ELEMENT_TYPES))
def test_every_data_type(tmp_path: Path, datatype: str) -> None:
    path = written(tmp_path, identity(datatype, [2, 0, 3]))
    assert declared(path, NOTHING) == loaded(path)


@pytest.mark.parametrize("dims", [[], ["n"], ["batch", 3], [None, 2, "x"]])
def test_dimensions_of_inputs(tmp_path: Path, dims: list[Any]) -> None:
    path = written(tmp_path, identity("FP32", dims))
    found = declared(path, NOTHING)
    assert found is not None
    assert found.inputs == loaded(path).inputs


@pytest.mark.parametrize("ir_version", [3, 8])
@pytest.mark.parametrize("listed", [True, False])
def test_weights_are_inputs_only_where_a_request_may_replace_them(
    tmp_path: Path, ir_version: int, listed: bool
) -> None:
    weights = helper.make_tensor("W", ELEMENT_TYPES["FP32"], [1], np.ones(1, np.float32))
    inputs = [("X", "FP32", ["n"]), *([("W", "FP32", [1])] if listed or ir_version < 4 else [])]
    made = model([node("Mul", "X W", "Y")], inputs, [("Y", "FP32", ["n"])], [weights], ir_version=ir_version, opset=13)
    path = written(tmp_path, made)
    config = {"input": [], "output": [{"name": "Y", "dims": ["-1"]}]}
    assert declared(path, config) == loaded(path)


def test_what_a_file_leaves_open_of_an_output_is_what_the_configuration_says(tmp_path: Path) -> None:
    path = written(tmp_path, identity("FP32", ["batch", 3, "n"]))
    for config, dims in (
        ({"max_batch_size": 4, "output": [{"name": "Y", "dims": ["7", "8"]}]}, [-1, 3, 8]),
        ({"output": [{"name": "Y", "dims": ["1", "9"], "reshape": {"shape": ["5", "6", "7"]}}]}, [5, 3, 7]),
        ({"output": [{"name": "Y", "dims": ["-1"]}]}, [-1, 3, -1]),
    ):
        found = declared(path, config)
        assert found is not None
        assert found.outputs["Y"].dims == dims


def test_an_output_without_a_shape(tmp_path: Path) -> None:
    made = identity("FP32", ["n"])
    made.graph.output[0].type.tensor_type.ClearField("shape")
    found = declared(written(tmp_path, made), {"output": [{"name": "Y", "dims": ["3"]}]})
    assert found is not None
    assert found.outputs["Y"].dims == [3]


def test_what_cannot_be_told_without_loading(tmp_path: Path) -> None:
    shapeless = identity("FP32", ["n"])
    shapeless.graph.input[0].type.tensor_type.ClearField("shape")
    sequence = model([node("SequenceConstruct", "X", "Y")], [("X", "FP32", ["n"])], [])
    sequence.graph.output.append(helper.make_tensor_sequence_value_info("Y", ELEMENT_TYPES["FP32"], ["n"]))
    strange = identity("FP32", ["n"])
    strange.graph.input[0].type.tensor_type.elem_type = 14
    for content in (shapeless, sequence, strange, b"\x3a\xff", b"ORTM", b""):
        assert declared(written(tmp_path, content), NOTHING) is None
    assert declared(tmp_path / "nosuch", NOTHING) is None
