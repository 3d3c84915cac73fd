"""`backend: "identity"`: a backend that is built in, beside those in Python. It answers with what it was given."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import np_to_triton_dtype

from stubserve import testing
from stubserve.checking.inspection import inspect
from stubserve.checking.repository import check_repositories
from stubserve.errors import ServeError
from stubserve.model_config.complete import normalise
from stubserve.model_config.parse import parse_text
from stubserve.model_config.render import to_json_dict
from tests.real_server import PATIENCE_S, Answer, Serving, binary_output, write_model
from tests.server.grpc_calls import connected, request
from tests.server.native_models import ask_eight_rows, measure_copies
from tests.server.test_bls import eventually
from tests.server.test_copies import COPIED_BYTES, TENSOR_BYTES

TYPES = [
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "STRING"
]  # fmt: skip
NUMPY: dict[str, Any] = {"FP16": np.float16, "FP32": np.float32, "FP64": np.float64, "BOOL": np.bool_}
EXAMPLES = {"param0": "an example string parameter", "param1": 42, "param2": False}

# Calls the identity model with an array of its own and with its input, and answers with what came back.
CALLER = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                answers = []
                for tensor in (request.inputs()[0], pb_utils.Tensor("INPUT0", np.arange(70_000, dtype=np.float32))):
                    call = pb_utils.InferenceRequest(
                        inputs=[tensor], requested_output_names=["OUTPUT0"], model_name="plain"
                    )
                    answers.append(call.exec())
                assert not any(answer.has_error() for answer in answers), answers[0].error().message()
                own = answers[1].output_tensors()[0].as_numpy()
                assert own.tolist() == list(range(70_000))
                own += 1
                responses.append(pb_utils.InferenceResponse(answers[0].output_tensors()))
            return responses
"""


def write_identity(repository: Path, name: str, tensors: dict[str, str] | None = None, extra: str = "") -> None:
    """A model of the identity backend; `tensors` are "TYPE dims more" by index. It has no file, only its folder."""
    lines = ['backend: "identity"', extra]
    for index, what in ({"0": "TYPE_FP32 -1"} if tensors is None else tensors).items():
        kind, dims, *more = what.split(maxsplit=2)
        for field, prefix, rest in (("input", "INPUT", more), ("output", "OUTPUT", [])):
            lines.append(
                f'{field} [ {{ name: "{prefix}{index}" data_type: {kind} dims: [ {dims} ] {" ".join(rest)} }} ]'
            )
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text("\n".join(lines))


def parameter(name: str, value: str) -> str:
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n'


def pending(server: Serving, model: str) -> float:
    """How many requests wait for their turn."""
    text = server.metrics().body.decode()
    found = re.search(rf'^nv_inference_pending_request_count{{model="{model}",.*}} (.*)$', text, re.MULTILINE)
    return float(found[1]) if found else 0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    write_identity(repository, "plain")
    write_identity(repository, "all", {str(at): f"TYPE_{kind} -1,2" for at, kind in enumerate(TYPES)})
    write_identity(
        repository,
        "batched",
        extra="max_batch_size: 8\ndynamic_batching { max_queue_delay_microseconds: 60000000 preferred_batch_size: 8 }",
    )
    optional = {
        "0": "TYPE_FP32 2,-1 optional: true",
        "1": "TYPE_STRING 3 optional: true",
        "2": "TYPE_INT8 -1",
    }
    write_identity(repository, "optional", optional, "max_batch_size: 4")
    write_identity(repository, "slow", extra=parameter("execute_delay_ms", "1"))
    write_identity(repository, "decoupled", extra="model_transaction_policy { decoupled: true }")
    write_model(repository, "caller", CALLER)
    with Serving(repository) as serving:
        yield serving


def arrays(rows: int) -> dict[str, np.ndarray[Any, Any]]:
    """An array of every type, by the number of its tensor."""
    found = {}
    for at, kind in enumerate(TYPES):
        if kind == "STRING":
            texts = [b"", "é".encode(), b"\0" * 2000, b"x"] * (rows // 2)
            found[str(at)] = np.array(texts, np.object_).reshape(rows, 2)
        else:
            numbers = np.arange(rows * 2).reshape(rows, 2) % 100
            found[str(at)] = numbers.astype(NUMPY.get(kind) or kind.lower())
    return found


@pytest.mark.parametrize("rows", [2, 6000])
@pytest.mark.parametrize("library", [tritonclient.http, tritonclient.grpc])
def test_every_type(server: Serving, library: Any, rows: int) -> None:
    """Small tensors travel in messages, large ones in the arena."""
    port = server.port if library is tritonclient.http else server.grpc_port
    given = arrays(rows)
    with library.InferenceServerClient(f"127.0.0.1:{port}") as client:
        inputs = []
        for index, array in given.items():
            tensor = library.InferInput(f"INPUT{index}", list(array.shape), np_to_triton_dtype(array.dtype))
            tensor.set_data_from_numpy(array)
            inputs.append(tensor)
        answer = client.infer("all", inputs)
        for index, array in given.items():
            np.testing.assert_array_equal(answer.as_numpy(f"OUTPUT{index}"), array)
        if library is tritonclient.http:
            assert answer.get_response()["parameters"] == EXAMPLES


def test_outputs_that_were_asked_for(server: Serving) -> None:
    inputs = [{"name": "INPUT2", "datatype": "INT8", "shape": [1, 1], "data": [7]}]
    for names in (["OUTPUT2"], ["OUTPUT1", "OUTPUT2"]):
        answer = server.infer_json("optional", inputs, outputs=[{"name": name} for name in names]).json()
        assert [output["name"] for output in answer["outputs"]] == names


def test_inputs_that_are_missing(server: Serving) -> None:
    """Zeros stand for them, one for each -1, and empty texts, as many rows as the request has."""
    inputs = [{"name": "INPUT2", "datatype": "INT8", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}]
    answer = server.infer_json("optional", inputs).json()
    zeros, texts, given = answer["outputs"]
    assert (zeros["shape"], zeros["data"]) == ([2, 2, 1], [0.0] * 4)
    assert (texts["shape"], texts["data"]) == ([2, 3], [""] * 6)
    assert (given["shape"], given["data"]) == ([2, 3], [1, 2, 3, 4, 5, 6])


def test_a_batch_of_many_requests(server: Serving) -> None:
    """Nothing runs before eight rows are there, and each gets its own."""
    for number, answer in ask_eight_rows(server, 1000).items():
        assert (answer == number).all()
    stats = server.statistics("batched")
    assert (stats["inference_count"], stats["execution_count"]) == (8, 1)
    assert [row["batch_size"] for row in stats["batch_stats"]] == [8]


@pytest.mark.parametrize("elements", [4, 70_000])
def test_a_model_in_python_calls_it(server: Serving, elements: int) -> None:
    array = np.arange(elements, dtype=np.float32)
    for _ in range(3):
        np.testing.assert_array_equal(binary_output(server.infer_array("caller", array)), array)


def test_delays(server: Serving) -> None:
    answer = server.infer_array("slow", np.zeros(3, np.float32))
    assert answer.status == 200
    assert server.statistics("slow")["inference_stats"]["compute_infer"]["ns"] >= 1_000_000


def test_a_decoupled_one_gives_one_response(server: Serving) -> None:
    with connected(server) as grpc:
        (answer,) = grpc.stream(request("decoupled", [1.0, 2.0]))
    assert not answer.error_message
    assert answer.infer_response.parameters["triton_final_response"].bool_param


def test_killed_and_back(tmp_path: Path) -> None:
    write_identity(tmp_path, "stuck", extra=parameter("execute_delay_ms", "3600000"))
    array = np.zeros(70_000, np.float32)
    with Serving(tmp_path, "--exit-timeout-secs=0", "--restart-wait-secs=0") as server:
        (stub,) = server.stub_pids()
        answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        threads = [threading.Thread(target=lambda: answers.put(server.infer_array("stuck", array))) for _ in range(4)]
        for thread in threads:
            thread.start()
        # One is executed, another may be on its way to the stub; when others wait for their turn these have arrived.
        eventually(lambda: pending(server, "stuck") > 0)
        os.kill(stub, signal.SIGKILL)
        given = [answers.get(timeout=PATIENCE_S) for _ in threads]
        assert {answer.status for answer in given} == {500, 503}
        assert all("it was killed by signal 9 (SIGKILL)" in answer.error for answer in given)
        eventually(lambda: server.stub_pids() not in ([], [stub]))
        eventually(lambda: server.get("/v2/models/stuck/ready").status == 200)


@pytest.mark.parametrize(
    ("tensors", "extra", "reason"),
    [
        (
            {"0": "TYPE_FP32 -1 reshape { shape: [ 1, -1 ] }"},
            "",
            "and output shape to match, got [1,-1] and [-1]",
        ),
        ({"0": "TYPE_FP32 1"}, parameter("execute_delay_ms", "soon"), "must be an integer from 0 on, got 'soon'"),
        (
            {"0": "TYPE_FP32 1"},
            'input [ { name: "INPUT1" data_type: TYPE_FP32 dims: [ 1 ] } ]',
            "model configuration must have equal input/output pairs",
        ),
        (
            {},
            'input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
            'output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 1 ] } ]',
            "expected input name to follow INPUT<index> pattern, got 'IN'",
        ),
        (
            {},
            'input [ { name: "INPUT1" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
            'output [ { name: "OUTPUT2" data_type: TYPE_FP32 dims: [ 1 ] } ]',
            "expected input and output indices to match",
        ),
        (
            {},
            'input [ { name: "INPUT1" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
            'output [ { name: "OUTPUT1" data_type: TYPE_INT8 dims: [ 1 ] } ]',
            "expected input and output datatype to match, got TYPE_FP32 and TYPE_INT8",
        ),
    ],
)
def test_what_it_does_not_take(
    changing: Serving, tmp_path: Path, tensors: dict[str, str], extra: str, reason: str
) -> None:
    write_identity(tmp_path, "m", tensors, extra)
    config = tmp_path / "m" / "config.pbtxt"
    document = to_json_dict(normalise(parse_text(config.read_text(), str(config)), "m", config.parent))
    answer = changing.request(
        "POST", "/v2/repository/models/m/load", json.dumps({"parameters": {"config": json.dumps(document)}}).encode()
    )
    assert answer.status == 400
    assert reason in answer.error


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("changing")
    write_identity(repository, "m")
    with Serving(repository, "--model-control-mode=explicit") as serving:
        yield serving


def test_the_tools_know_it(tmp_path: Path) -> None:
    write_identity(tmp_path, "m", extra=parameter("EXECUTION_ENV_PATH", str(tmp_path)))
    report = check_repositories([tmp_path], tmp_path / "no backends")
    assert report.problems == ()
    finding = asyncio.run(inspect(tmp_path / "m", tmp_path / "no backends"))
    assert (finding.backend, finding.file, finding.environment) == ("identity", None, "")
    with pytest.raises(ServeError, match="is run by the backend 'identity': it has no code to test"):
        testing.load(tmp_path / "m")


def test_a_large_tensor_is_not_copied(tmp_path: Path) -> None:
    """Over HTTP; in the parent and in shared memory, where the stub would have to put a copy."""
    write_identity(tmp_path, "plain")
    array = np.arange(TENSOR_BYTES // 4, dtype=np.float32)
    answer, in_parent, committed = measure_copies(tmp_path, array)
    np.testing.assert_array_equal(answer, array)
    assert in_parent < COPIED_BYTES
    assert TENSOR_BYTES <= committed <= TENSOR_BYTES + TENSOR_BYTES // 16
