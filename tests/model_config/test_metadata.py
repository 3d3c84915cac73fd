import json

import pytest

from stubserve.model_config.parse import parse_text
from stubserve.model_config.proto import model_config_pb2
from stubserve.model_config.render import datatype_name, model_metadata

TENSORS = """
input { name: "X" data_type: TYPE_STRING dims: [3, -1] reshape { shape: [-1, 3] } optional: true }
output { name: "Y" data_type: TYPE_BF16 dims: [1] }
"""


@pytest.mark.parametrize(("max_batch_size", "batch"), [(0, []), (1, [-1]), (8, [-1])])
def test_batch_dimension(max_batch_size: int, batch: list[int]) -> None:
    config = parse_text(f'name: "m" backend: "python" max_batch_size: {max_batch_size} {TENSORS}', "c")
    assert json.dumps(model_metadata(config, ["1", "3"])) == json.dumps(
        {
            "name": "m",
            "versions": ["1", "3"],
            "platform": "python",
            "inputs": [{"name": "X", "datatype": "BYTES", "shape": [*batch, 3, -1]}],
            "outputs": [{"name": "Y", "datatype": "BF16", "shape": [*batch, 1]}],
        }
    )


def test_platform_goes_before_backend() -> None:
    config = parse_text('name: "m" platform: "onnxruntime_onnx" backend: "onnxruntime"', "c")
    assert model_metadata(config, [])["platform"] == "onnxruntime_onnx"


def test_every_data_type_has_a_name() -> None:
    names = {datatype_name(number) for number in model_config_pb2.DataType.values() if number}
    assert names == {
        *("BOOL", "BYTES", "BF16", "FP16", "FP32", "FP64"),
        *("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    }
