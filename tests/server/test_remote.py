"""Models of another server: two servers, one of which has models that the other one has."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.real_server import Serving, binary_output, eventually, io_config, write_model
from tests.server.ensembles import write_chain

NUMBERS = np.arange(50_000, dtype=np.float32)

DOUBLE = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                array = request.inputs()[0].as_numpy()
                if array.size and array.reshape(-1)[0] < 0:
                    error = pb_utils.TritonError("not below zero", pb_utils.TritonError.INVALID_ARG)
                    responses.append(pb_utils.InferenceResponse(error=error))
                else:
                    responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array * 2)]))
            return responses
"""
# Says what it was told of a request
TELLING = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                said = [
                    request.request_id(), request.correlation_id(), request.flags(), request.timeout(),
                    json.loads(request.parameters()), sorted(request.requested_output_names()),
                ]
                text = np.array([json.dumps(said).encode()], np.object_)
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", text)], parameters={"seen": 1}))
            return responses
"""
CALLS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                given = pb_utils.Tensor("INPUT0", request.inputs()[0].as_numpy())
                call = pb_utils.InferenceRequest(
                    model_name="double", inputs=[given], requested_output_names=["OUTPUT0"]
                )
                answer = call.exec()
                if answer.has_error():
                    responses.append(pb_utils.InferenceResponse(error=answer.error()))
                else:
                    responses.append(pb_utils.InferenceResponse(answer.output_tensors()))
            return responses
"""
SAME = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
                for request in requests
            ]
"""
# Its clients see another shape than its model.
SHAPED = """
    input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 2, 2 ] reshape { shape: [ 4 ] } } ]
    output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 2, 2 ] reshape { shape: [ 4 ] } } ]
"""
STEPS = "sequence_batching { max_sequence_idle_microseconds: 60000000 }"


def write_remote(repository: Path, name: str, url: str, more: str = "", **parameters: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    given = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in {"url": url, **parameters}.items()
    )
    (repository / name / "config.pbtxt").write_text(f'backend: "remote"\n{given}{more}')


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("there")
    write_model(repository, "double", DOUBLE, io_config())
    write_model(repository, "strings", SAME, io_config("STRING"))
    write_model(repository, "halves", DOUBLE, io_config("FP16"))
    write_model(repository, "telling", TELLING, io_config("STRING"))
    write_model(repository, "steps", TELLING, io_config("STRING", extra=STEPS))
    write_model(repository, "rows", DOUBLE, io_config(max_batch_size=8))
    write_model(repository, "shaped", DOUBLE, SHAPED)
    with Serving(repository) as server:
        server.wait_until_ready()
        yield server


@pytest.fixture(scope="module")
def here(there: Serving, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("here")
    url = f"http://127.0.0.1:{there.port}"
    for name in ("double", "strings", "halves", "telling", "steps", "rows", "shaped"):
        write_remote(repository, name, url)
    write_remote(repository, "renamed", f"http://127.0.0.1:1, {url}", model_name="double", model_version="1")
    write_model(repository, "calls", CALLS, io_config())
    write_model(repository, "plus", DOUBLE.replace("array * 2", "array + 1"), io_config())
    write_chain(repository, "chain", "plus", "double", "plus")
    with Serving(repository) as server:
        server.wait_until_ready()
        yield server


def told(server: Serving, model: str, **more: Any) -> list[Any]:
    given = [{"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": ["x"]}]
    answer = server.infer_json(model, given, **more)
    assert answer.status == 200, answer.body
    found: list[Any] = json.loads(answer.json()["outputs"][0]["data"][0])
    return found


@pytest.mark.parametrize("model", ["double", "renamed", "calls"])
def test_tensors_of_all_sizes(here: Serving, model: str) -> None:
    for array in (NUMBERS, NUMBERS[:3], NUMBERS + 1):
        assert (binary_output(here.infer_array(model, array)) == array * 2).all()
    empty = here.infer_json(model, [{"name": "INPUT0", "datatype": "FP32", "shape": [0], "data": []}])
    assert empty.json()["outputs"][0]["shape"] == [0]


def test_an_ensemble_of_both_servers(here: Serving) -> None:
    assert (binary_output(here.infer_array("chain", NUMBERS)) == (NUMBERS + 1) * 2 + 1).all()


def test_the_configuration_is_the_other_ones(here: Serving, there: Serving) -> None:
    for name in ("double", "rows", "strings"):
        mine, other = (server.get(f"/v2/models/{name}/config").json() for server in (here, there))
        for part in ("max_batch_size", "input", "output"):
            assert mine[part] == other[part]
    assert here.get("/v2/models/double/config").json()["instance_group"][0]["kind"] == "KIND_CPU"


def test_batches_and_data_types(here: Serving) -> None:
    rows = NUMBERS[:12].reshape(3, 4)
    assert (binary_output(here.infer_array("rows", rows)) == rows * 2).all()
    square = NUMBERS[:4].reshape(2, 2)
    assert (binary_output(here.infer_array("shaped", square)) == square * 2).all()
    halves = NUMBERS[:5].astype(np.float16)
    assert (binary_output(here.infer_array("halves", halves, "FP16"), np.float16) == halves * 2).all()
    texts = [{"name": "INPUT0", "datatype": "BYTES", "shape": [3], "data": ["", "two", "drei ä"]}]
    assert here.infer_json("strings", texts).json()["outputs"][0]["data"] == ["", "two", "drei ä"]


def test_what_a_client_said_goes_along(here: Serving) -> None:
    parameters = {"mine": "yes", "number": 7, "timeout": 5_000_000}
    assert told(here, "telling", id="an id", parameters=parameters) == [
        "an id", 0, 0, 5_000_000, {"mine": "yes", "number": 7, "stubserve_hops": 1}, ["OUTPUT0"],
    ]  # fmt: skip
    given = [{"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": ["x"]}]
    assert here.infer_json("telling", given).json()["parameters"]["seen"] == 1


def test_the_steps_of_a_sequence_go_along(here: Serving) -> None:
    for step, flags in enumerate((1, 0, 2)):
        sequence = {"sequence_id": 9, "sequence_start": step == 0, "sequence_end": step == 2}
        assert told(here, "steps", parameters=sequence)[1:3] == [9, flags]
    given = [{"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": ["x"]}]
    late = here.infer_json("steps", given, parameters={"sequence_id": 9})
    assert late.status == 400
    assert "must specify the START flag" in late.error


def test_the_other_servers_error_is_the_answer(here: Serving) -> None:
    answer = here.infer_array("double", -NUMBERS[1:])
    assert answer.status == 400
    assert answer.error == "remote model 'double': not below zero"
    assert here.infer_array("calls", -NUMBERS[1:]).error == answer.error


def test_it_is_ready_while_the_other_one_is(tmp_path: Path) -> None:
    repositories = [tmp_path / name for name in ("there", "here")]
    for repository in repositories:
        repository.mkdir()
    write_model(repositories[0], "double", DOUBLE, io_config())
    with Serving(repositories[0], "--model-control-mode=explicit", "--load-model=double") as there:
        there.wait_until_ready()
        write_remote(repositories[1], "double", f"http://127.0.0.1:{there.port}")
        with Serving(repositories[1]) as here:
            here.wait_until_ready()
            assert (binary_output(here.infer_array("double", NUMBERS)) == NUMBERS * 2).all()
            there.request("POST", "/v2/repository/models/double/unload")
            eventually(lambda: here.get("/v2/models/double/ready").status != 200)
            gone = here.infer_array("double", NUMBERS)
            assert gone.status == 400 or gone.status == 404 or gone.status == 503
            there.request("POST", "/v2/repository/models/double/load")
            eventually(lambda: here.get("/v2/models/double/ready").status == 200)
            # The connection that is kept was closed by a server that ends: the next one has another.
            there.stop()
            answer = here.infer_array("double", NUMBERS)
            assert answer.status == 503
            assert "cannot be reached" in answer.error


def test_a_server_that_dies_under_a_request(tmp_path: Path) -> None:
    """The request is answered with an error, and is not sent again."""
    asked: list[str] = []

    class Dies(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"]))
            self.connection.close()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Dies) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        (tmp_path / "models").mkdir()
        described = 'input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]\n'
        described += described.replace("input", "output").replace("INPUT0", "OUTPUT0")
        write_remote(tmp_path / "models", "m", f"http://127.0.0.1:{other.server_port}", described)
        with Serving(tmp_path / "models") as here:
            answer = here.infer_array("m", NUMBERS)
            assert answer.status == 503
            assert "does not answer" in answer.error
        other.shutdown()
    assert asked == ["/v2/models/m/infer"]


@pytest.mark.parametrize(
    ("url", "more", "reason"),
    [
        ("", "", "parameter 'url' of model 'm' is missing"),
        ("gpu-host:8000", "", "parameter 'url' must be like http://host:8000"),
        ("http://127.0.0.1:1", "", "the other server cannot be reached: http://127.0.0.1:1: .*refused"),
        (
            "http://127.0.0.1:1",
            "model_transaction_policy { decoupled: true }",
            "a remote model answers each request once",
        ),
    ],
)
def test_what_is_refused_at_the_load(repository: Path, url: str, more: str, reason: str) -> None:
    if more:
        more += io_config().partition("max_batch_size: 0")[2]
    write_remote(repository, "m", url, more)
    with Serving(repository, "--exit-on-error=false") as server:
        server.wait_for(reason.replace("(", r"\("))
