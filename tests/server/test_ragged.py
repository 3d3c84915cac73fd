"""What a configuration says of batches and shapes, with every kind of backend in a real server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.onnx_models import identity, model, node, save, segment_sums
from tests.real_server import Answer, Serving, binary_output, write_model

pytest.importorskip("onnxruntime")

# Held back until four requests are there, however long that takes
TOGETHER = "dynamic_batching { max_queue_delay_microseconds: 60000000 preferred_batch_size: 4 }"
BATCHES = f"max_batch_size: 4 instance_group [ {{ count: 1 kind: KIND_CPU }} ] {TOGETHER}"
RAGGED = "data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true"
BORDERS = """
batch_input {
  kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO target_name: "BORDERS" data_type: TYPE_INT32 source_input: "X"
}
"""
SCATTER = 'batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "Y" source_input: "INPUT0" }'
PYTHON = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            assert len(requests) == 4, len(requests)
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("Y", -request.inputs()[0].as_numpy())])
                for request in requests
            ]
"""


def write_onnx(repository: Path, name: str, made: Any, config: str, **files: str) -> None:
    save(made, repository / name / "1")
    (repository / name / "config.pbtxt").write_text(f'backend: "onnxruntime"\n{config}')
    for file, text in files.items():
        (repository / name / file).write_text(text)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    path = tmp_path_factory.mktemp("models")
    x, y = f'input {{ name: "X" {RAGGED} }}', 'output { name: "Y" data_type: TYPE_FP32 dims: [ %s ] }'
    write_onnx(path, "sums", segment_sums(), BATCHES + x + y % 1 + BORDERS)
    flat = model([node("Neg", "INPUT0", "Y")], [("INPUT0", "FP32", ["n"])], [("Y", "FP32", ["n"])])
    negated = BATCHES + f'input {{ name: "INPUT0" {RAGGED} }}' + y % -1
    write_onnx(path, "scattered", flat, negated + SCATTER)
    write_model(path, "python", PYTHON, 'backend: "python" ' + negated)
    same = BATCHES + f'input {{ name: "INPUT0" {RAGGED} }}' + y.replace('"Y"', '"OUTPUT0"') % -1
    write_model(path, "identity", "", 'backend: "identity" ' + same)
    sample = """
    model_warmup {
      name: "w" batch_size: 3
      inputs { key: "X" value { data_type: TYPE_FP32 dims: [ 2 ] random_data: true } }
    }
    """
    labelled = """
    max_batch_size: 4
    input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 2, 2 ] } }
    output { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 2, 2 ] } label_filename: "labels" }
    """
    matrix = identity(dims=["batch", 2, 2])
    write_onnx(path, "labelled", matrix, labelled, labels="zero\none\ntwo\nthree\n")
    write_onnx(path, "unbatched", identity(dims=[2, 2]), labelled.replace("size: 4", "size: 0"), labels="zero\none\n")
    two = """
    input { name: "X" data_type: TYPE_FP32 dims: [ 2 ] }
    output { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] }
    """
    write_onnx(
        path, "warm", identity(dims=["batch", 2]), "max_batch_size: 4 instance_group [ { count: 2 } ]" + two + sample
    )
    with Serving(path) as serving:
        serving.wait_until_ready()
        yield serving


def ask(server: Serving, name: str, shapes: Sequence[Sequence[int]]) -> list[tuple[Any, Answer]]:
    """Asks with an array of each shape at once: the arrays, and the answers."""
    arrays = [np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 1 for shape in shapes]
    with ThreadPoolExecutor(len(arrays)) as threads:
        answers = list(threads.map(lambda array: server.infer_array(name, array), arrays))
    return list(zip(arrays, answers, strict=True))


@pytest.mark.parametrize("size", [1, 3000])
@pytest.mark.parametrize(("name", "sign"), [("scattered", -1), ("python", -1), ("identity", 1)])
def test_requests_of_different_shapes_share_a_batch(server: Serving, name: str, sign: int, size: int) -> None:
    """And each gets its own answer; what is large lies in shared memory, in parts of one output."""
    before = server.statistics(name)["execution_count"]
    for _ in range(3):
        for array, answer in ask(server, name, [(1, 2 * size), (1, size), (1, 5 * size), (1, size)]):
            np.testing.assert_array_equal(binary_output(answer), array * sign)
    assert server.statistics(name)["execution_count"] == before + 3


def test_a_model_is_told_where_each_request_begins(server: Serving) -> None:
    widths = [3, 1, 4, 2]
    inputs = [[{"name": "X", "datatype": "FP32", "shape": [1, width], "data": [1.5] * width}] for width in widths]
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda tensors: server.infer_json("sums", tensors).json(), inputs))
    assert [answer["outputs"][0]["data"] for answer in answers] == [[1.5 * width] for width in widths]
    assert [answer["outputs"][0]["shape"] for answer in answers] == [[1, 1]] * 4
    refused = server.infer_json(
        "sums", [*inputs[0], {"name": "BORDERS", "datatype": "INT32", "shape": [1, 1], "data": [0]}]
    )
    assert "expected 1 inputs but got 2 inputs" in refused.error


def test_reshape_and_labels(server: Serving) -> None:
    """With batching and without, as clients see them."""
    values = [0.5, 3.0, -1.0, 2.0]
    for name, shape in (("labelled", [1, 4]), ("unbatched", [4])):
        tensor = {"name": "X", "datatype": "FP32", "shape": shape, "data": values}
        plain = server.infer_json(name, [tensor]).json()["outputs"][0]
        assert (plain["shape"], plain["data"]) == (shape, values)
        wanted = [{"name": "Y", "parameters": {"classification": 2}}]
        best = server.infer_json(name, [tensor], outputs=wanted).json()["outputs"][0]
        labels = (":one", ":three") if name == "labelled" else (":one", "")
        assert best["data"] == [f"3.000000:1{labels[0]}", f"2.000000:3{labels[1]}"]
        assert best["shape"] == [*shape[:-1], 2]
    rows = {"name": "X", "datatype": "FP32", "shape": [2, 4], "data": [*values, *reversed(values)]}
    answer = server.infer_json("labelled", [rows], outputs=[{"name": "Y", "parameters": {"classification": 1}}]).json()
    assert answer["outputs"][0]["data"] == ["3.000000:1:one", "3.000000:2:two"]


def test_warm_up_of_files(server: Serving) -> None:
    statistics = server.statistics("warm")
    assert (statistics["inference_count"], statistics["execution_count"]) == (6, 2)
