"""A stub is killed: requests of its model wait for the next one, for a bounded time, and each refusal is counted."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.real_server import IDENTITY, Answer, Serving, eventually, io_config, write_model

# Starts anew only when a file is there.
PATIENT = """
    import os, time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            here = args["model_repository"]
            open(here + "/pid", "w").write(str(os.getpid()))
            while os.path.exists(here + "/killed") and not os.path.exists(here + "/go"):
                time.sleep(0.01)

        def execute(self, requests):
            arrays = [request.inputs()[0].as_numpy() for request in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]) for array in arrays]
"""
CALLER = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceRequest(
                    model_name="model", requested_output_names=["OUTPUT0"], inputs=request.inputs()
                ).exec()
                for request in requests
            ]
"""
ARRAY = np.ones(1, np.float32)


def kill(server: Serving) -> None:
    (stub,) = server.stub_pids()
    os.kill(stub, signal.SIGKILL)
    server.wait_for(rf"{stub}\D.*is restarted in")


def failures(server: Serving) -> int:
    """Requests of the model that failed, by the metrics."""
    text = server.metrics().body.decode()
    lines = [line for line in text.splitlines() if line.startswith("nv_inference_request_failure{")]
    return sum(int(line.rpartition(" ")[2]) for line in lines)


def pending(server: Serving) -> int:
    """Requests of the model that wait, by the metrics."""
    text = server.metrics().body.decode()
    name = 'nv_inference_pending_request_count{model="model"'
    (line,) = [line for line in text.splitlines() if line.startswith(name)]
    return int(line.rpartition(" ")[2])


def ask(server: Serving, *models: str, array: np.ndarray = ARRAY) -> tuple[list[Answer], list[threading.Thread]]:
    """Asks all of these models at once; the answers, once the threads have ended."""
    answers: list[Answer] = []
    threads = [
        threading.Thread(target=lambda model=model: answers.append(server.infer_array(model, array)))
        for model in models
    ]
    for thread in threads:
        thread.start()
    return answers, threads


@pytest.mark.parametrize("extra", ["", "dynamic_batching { }"])
def test_requests_wait_for_the_next_stub(repository: Path, extra: str) -> None:
    folder = write_model(repository, "model", PATIENT, io_config(max_batch_size=0 if not extra else 8, extra=extra))
    array = ARRAY.reshape((1, 1)) if extra else ARRAY
    with Serving(repository) as server:
        assert server.infer_array("model", array).status == 200
        (folder / "killed").touch()
        kill(server)
        answers, asking = ask(server, *["model"] * 8, array=array)
        eventually(lambda: pending(server) == 8)
        assert server.get("/v2/models/model/ready").status == 400
        assert not answers
        (folder / "go").touch()
        for thread in asking:
            thread.join()
        assert [answer.status for answer in answers] == [200] * 8
        assert failures(server) == 0


def test_a_kill_under_load_is_felt_by_what_ran_alone(repository: Path) -> None:
    write_model(repository, "model")
    with Serving(repository) as server:
        answers: list[Answer] = []
        over = threading.Event()

        def client() -> None:
            while not over.is_set():
                answers.append(server.infer_array("model", ARRAY))

        clients = [threading.Thread(target=client) for _ in range(10)]
        for thread in clients:
            thread.start()
        eventually(lambda: len(answers) > 50)
        for _ in range(3):
            kill(server)
            before = len(answers)
            eventually(lambda before=before: len(answers) > before + 50)
        over.set()
        for thread in clients:
            thread.join()
        statuses = [answer.status for answer in answers]
        assert set(statuses) <= {200, 500}
        assert statuses.count(500) == failures(server)


def test_they_wait_no_longer_than_they_may(repository: Path) -> None:
    folder = write_model(repository, "model", PATIENT, io_config())
    with Serving(repository, "--restart-wait-secs=0.5") as server:
        assert server.infer_array("model", ARRAY).status == 200
        (folder / "killed").touch()
        kill(server)
        for count in (1, 2):  # one that has waited, and one that comes after that
            answer = server.infer_array("model", ARRAY)
            assert answer.status == 503
            assert answer.headers["retry-after"] == "1"
            assert "SIGKILL" in answer.error
            assert failures(server) == count
        (folder / "go").touch()
        server.wait_for("instance 'model_0' is back")
        assert server.infer_array("model", ARRAY).status == 200


@pytest.mark.parametrize("flag", ["--restart-wait-secs=0", "--stub-restart-limit=0"])
def test_nobody_waits_where_none_is_wanted_or_none_will_come(repository: Path, flag: str) -> None:
    folder = write_model(repository, "model", PATIENT, io_config())
    with Serving(repository, flag) as server:
        assert server.infer_array("model", ARRAY).status == 200
        (folder / "killed").touch()
        (stub,) = server.stub_pids()
        os.kill(stub, signal.SIGKILL)
        eventually(lambda: server.get("/v2/models/model/ready").status == 400)
        answer = server.infer_array("model", ARRAY)
        assert answer.status == 503
        assert answer.headers.get("retry-after") == ("1" if "wait" in flag else None)
        assert failures(server) == 1


def test_the_queues_own_policy_goes_first(repository: Path) -> None:
    policy = "default_queue_policy { max_queue_size: 2 default_timeout_microseconds: 300000 }"
    config = io_config(max_batch_size=8, extra=f"dynamic_batching {{ {policy} }}")
    folder = write_model(repository, "model", PATIENT, config)
    array = ARRAY.reshape((1, 1))
    with Serving(repository) as server:
        assert server.infer_array("model", array).status == 200
        (folder / "killed").touch()
        kill(server)
        answers, asking = ask(server, *["model"] * 3, array=array)
        for thread in asking:
            thread.join()
        errors = sorted(answer.error for answer in answers)
        assert [answer.status for answer in answers] == [503] * 3
        assert errors[0].endswith("Request timeout expired")
        assert "Exceeds maximum queue size" in "".join(errors)
        (folder / "go").touch()


def test_an_ensemble_and_a_calling_model_wait_too(repository: Path) -> None:
    folder = write_model(repository, "model", PATIENT, io_config())
    write_model(repository, "caller", CALLER, io_config())
    steps = (
        'step [ { model_name: "model" model_version: -1 '
        'input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" } } ]'
    )
    ensemble = io_config(extra=f"ensemble_scheduling {{ {steps} }}").replace(
        'backend: "python"', 'platform: "ensemble"'
    )
    write_model(repository, "ensemble", IDENTITY, ensemble)
    with Serving(repository) as server:
        assert server.infer_array("ensemble", ARRAY).status == 200
        (folder / "killed").touch()
        os.kill(int((folder / "pid").read_text()), signal.SIGKILL)
        server.wait_for("is restarted in")
        answers, asking = ask(server, "ensemble", "caller")
        eventually(lambda: pending(server) == 2)
        (folder / "go").touch()
        for thread in asking:
            thread.join()
        assert [answer.status for answer in answers] == [200, 200]


CALLER = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                called = pb_utils.InferenceRequest(
                    model_name="model", requested_output_names=["OUTPUT0"], inputs=request.inputs()
                ).exec()
                responses.append(called)
            return responses
"""
