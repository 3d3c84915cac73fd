"""What a model sees and what its clients get, through a whole server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.real_server import IDENTITY, Serving, binary_output, binary_request, io_config, write_model

EVERYTHING = """
    import asyncio
    import json
    import os
    import sys
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.args = args
            pb_utils.Logger.log_info("a word of information")
            pb_utils.Logger.log_warn("a word of warning")
            pb_utils.Logger.log_verbose("a word for nobody")
            print("to stderr", file=sys.stderr)

        async def execute(self, requests):
            await asyncio.sleep(0)
            answers = []
            for request in requests:
                seen = {
                    "args": sorted(self.args),
                    "instance": self.args["model_instance_name"],
                    "config": json.loads(self.args["model_config"])["max_batch_size"],
                    "id": request.request_id(),
                    "parameters": json.loads(request.parameters()),
                    "flags": request.flags(),
                    "correlation": request.correlation_id(),
                    "outputs": sorted(request.requested_output_names()),
                    "directory": pb_utils.get_model_dir(),
                    "argv": sys.argv,
                    "name": __name__,
                }
                text = np.array([json.dumps(seen).encode()], dtype=np.object_)
                answers.append(
                    pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", text)], parameters={"answered": True})
                )
            return answers

        def is_ready(self):
            return not os.path.exists(os.path.join(self.args["model_repository"], "not_ready"))
"""

# Ready when all instances are being asked at the same time.
TOGETHER = """
    import os, time

    class TritonPythonModel:
        def initialize(self, args):
            self.folder = args["model_repository"]
            self.name = args["model_instance_name"]

        def is_ready(self):
            open(os.path.join(self.folder, "asked_" + self.name), "w").close()
            deadline = time.monotonic() + 4
            while sum(entry.startswith("asked_") for entry in os.listdir(self.folder)) < 3:
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.005)
            return True

        def execute(self, requests):
            raise NotImplementedError
"""

COMPLETING = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    touched = []

    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(config):
            touched.append(1)
            config.add_input({"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]})
            config.add_output({"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]})
            config.set_max_batch_size(4)
            config.set_dynamic_batching()
            return config

        def execute(self, requests):
            # What the completion did to its process is not seen by the one that serves.
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.full((1, 1), len(touched), np.float32))])
                for _ in requests
            ]
"""


@pytest.fixture(scope="module")
def repository_of_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "everything", EVERYTHING, io_config("STRING", "1"))
    folder = write_model(repository, "completing", COMPLETING)
    (folder / "config.pbtxt").unlink()
    for version in (1, 2, 3):
        source = IDENTITY.replace("tensor.as_numpy()", f"tensor.as_numpy() * {version}")
        write_model(
            repository, "versions", source, io_config(extra="version_policy { latest { num_versions: 2 } }"), version
        )
    write_model(repository, "together", TOGETHER, io_config(extra="instance_group [ { count: 3 kind: KIND_CPU } ]"))
    write_model(
        repository,
        "labels",
        IDENTITY,
        """
        backend: "python"
        input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 3 ] } ]
        output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" } ]
        """,
    )
    (repository / "labels" / "labels.txt").write_text("cat\ndog\nfish\n")
    return repository


@pytest.fixture(scope="module")
def server(repository_of_models: Path) -> Iterator[Serving]:
    with Serving(repository_of_models) as running:
        yield running


def test_what_a_request_carries(server: Serving, repository_of_models: Path) -> None:
    answer = server.infer_json(
        "everything",
        [{"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": ["x"]}],
        id="7",
        parameters={"a": 1, "b": "two", "c": True, "sequence_id": 9, "sequence_start": True},
    ).json()
    assert answer["id"] == "7"
    assert answer["parameters"] == {"answered": True}
    seen = json.loads(answer["outputs"][0]["data"][0])
    assert seen == {
        "args": [
            "model_config",
            "model_instance_device_id",
            "model_instance_kind",
            "model_instance_name",
            "model_name",
            "model_repository",
            "model_version",
        ],
        "instance": "everything_0",
        "config": 0,
        "id": "7",
        "parameters": {"a": 1, "b": "two", "c": True},
        "flags": 1,
        "correlation": 9,
        "outputs": ["OUTPUT0"],
        "directory": str(repository_of_models / "everything" / "1"),
        "argv": [""],
        "name": "1.model",
    }


def test_what_a_model_logs_and_prints_is_in_the_servers_output(server: Serving) -> None:
    server.wait_for(r'I\d{4} [0-9:.]+ \d+ model.py:\d+\] "a word of information"')
    server.wait_for(r'W\d{4} [0-9:.]+ \d+ model.py:\d+\] "a word of warning"')
    server.wait_for("to stderr")
    assert "a word for nobody" not in server.output


def test_all_instances_are_asked_at_once_whether_they_are_ready(server: Serving) -> None:
    assert server.get("/v2/models/together/ready").status == 200


def test_a_model_may_say_that_it_is_not_ready(server: Serving, repository_of_models: Path) -> None:
    path = "/v2/models/everything/ready"
    assert server.get(path).status == 200
    flag = repository_of_models / "everything" / "not_ready"
    flag.touch()
    answer = server.get(path)
    assert answer.status == 400
    assert "Model version not ready" in answer.error
    assert server.get("/v2/health/ready").status == 400
    flag.unlink()
    assert server.get(path).status == 200


def test_a_model_without_a_configuration_completes_it(server: Serving) -> None:
    config = server.get("/v2/models/completing/config").json()
    assert (config["backend"], config["max_batch_size"]) == ("python", 4)
    assert config["dynamic_batching"]["preferred_batch_size"] == [4]
    assert binary_output(server.infer_array("completing", np.zeros((1, 3), np.float32))).item() == 0


def test_versions(server: Serving) -> None:
    assert server.get("/v2/models/versions").json()["versions"] == ["2", "3"]
    array = np.ones(2, np.float32)
    assert binary_output(server.infer_array("versions", array)).tolist() == [3, 3]
    _, body, headers = binary_request("versions", array)
    answer = server.request("POST", "/v2/models/versions/versions/2/infer", body, headers)
    assert binary_output(answer).tolist() == [2, 2]
    assert server.get("/v2/models/versions/versions/1/ready").status == 404


def test_classification(server: Serving) -> None:
    answer = server.infer_json(
        "labels",
        [{"name": "INPUT0", "datatype": "FP32", "shape": [3], "data": [1, 3, 2]}],
        outputs=[{"name": "OUTPUT0", "parameters": {"classification": 2}}],
    ).json()
    assert answer["outputs"][0]["data"] == ["3.000000:1:dog", "2.000000:2:fish"]


def test_a_passive_instance_is_loaded_and_gets_no_requests(repository: Path) -> None:
    source = (
        IDENTITY
        + """
        def initialize(self, args):
            print("here is", args["model_instance_name"])
    """
    )
    groups = 'instance_group [ { name: "active" }, { name: "idle" passive: true } ]'
    write_model(repository, "mixed", source, io_config(extra=groups))
    with Serving(repository) as server:
        server.wait_for("here is idle_0")
        server.wait_for("here is active_0")
        assert len(server.stub_pids()) == 2
        for _ in range(4):
            assert server.infer_array("mixed", np.zeros(2, np.float32)).status == 200


def test_a_line_that_a_model_prints_stays_whole(repository: Path) -> None:
    source = (
        IDENTITY
        + """
        def initialize(self, args):
            import os
            print("one line", end=", ")
            os.write(1, b"of another process\\n")
            print("in one piece")
    """
    )
    write_model(repository, "prints", source)
    with Serving(repository, environment={"PYTHONUNBUFFERED": "1"}) as server:
        server.wait_for(r"\[prints_0\] of another process\n\[prints_0\] one line, in one piece\n")


def test_parts_of_a_configuration_that_have_no_effect_are_said(repository: Path) -> None:
    write_model(repository, "cached", IDENTITY, io_config(extra="response_cache { enable: true }"))
    write_model(repository, "decoupled", IDENTITY, io_config(extra="model_transaction_policy { decoupled: true }"))
    with Serving(repository) as server:
        server.wait_for("model 'cached': 'response_cache' has no effect")
        answer = server.infer_array("decoupled", np.zeros(1, np.float32))
        assert answer.status == 501
        assert answer.error == "HTTP end point doesn't support models with decoupled transaction policy"
