"""Models that nobody asks sleep: their instances end, and a request starts them again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.real_server import IDENTITY, PATIENCE_S, Serving, binary_output, eventually, io_config, write_model

# Waits in initialize, and in finalize, for a file that has the name of what it waits in, if there is a file "waits".
SLOW = """
import os
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]
        self.wait("initialize")
        if os.path.exists(os.path.join(self.folder, "broken")):
            raise RuntimeError("broken today")

    def wait(self, name):
        if os.path.exists(os.path.join(self.folder, "waits")):
            print("waits in", name, flush=True)
            while not os.path.exists(os.path.join(self.folder, name)):
                time.sleep(0.005)

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
            for request in requests
        ]

    def finalize(self):
        self.wait("finalize")
        print("finalized", flush=True)
"""
CALLER = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        inputs = [request.inputs()[0]]
        asked = pb_utils.InferenceRequest(model_name="model", inputs=inputs, requested_output_names=["OUTPUT0"])
        response = asked.exec()
        return pb_utils.InferenceResponse(error=response.error()) if response.has_error() else response
"""


class Sleeping:
    """A server whose model sleeps when nobody asks it."""

    def __init__(self, repository: Path, *flags: str, seconds: float = 0.5) -> None:
        self.folder = repository / "model"
        self.server = Serving(repository, f"--sleep-after-secs={seconds}", *flags)

    def ask(self, model: str = "model", value: float = 1) -> float:
        answer = self.server.infer_array(model, np.full(1, value, np.float32))
        assert answer.status == 200, answer
        return float(binary_output(answer)[0])

    def wait_until_asleep(self, times: int = 1) -> None:
        self.server.wait_for(f"(?s)('model' version 1 has had no request for.*?){{{times}}}")
        eventually(lambda: not self.server.stub_pids())

    def ready(self) -> bool:
        return self.server.get("/v2/models/model/ready").status == 200


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write_model(tmp_path, "model", SLOW, io_config())
    return tmp_path


@pytest.fixture
def asleep(repository: Path) -> Iterator[Sleeping]:
    sleeping = Sleeping(repository)
    with sleeping.server:
        assert sleeping.ask(value=1) == 1
        sleeping.wait_until_asleep()
        yield sleeping


def test_a_request_wakes_a_model_that_sleeps(asleep: Sleeping) -> None:
    server = asleep.server
    assert asleep.ready()
    index = server.request("POST", "/v2/repository/index").json()
    assert [(row["name"], row["state"]) for row in index] == [("model", "READY")]
    for times in (2, 3):
        assert asleep.ask(value=times) == times
        asleep.wait_until_asleep(times)
    assert server.statistics("model")["inference_count"] == 3


def test_all_who_come_while_it_wakes_are_answered(asleep: Sleeping) -> None:
    (asleep.folder / "waits").touch()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(asleep.ask, "model", float(value)) for value in range(8)]
        asleep.server.wait_for("waits in initialize")
        assert asleep.ready()
        (asleep.folder / "initialize").touch()
        assert [one.result(PATIENCE_S) for one in asked] == list(range(8))
    (asleep.folder / "finalize").touch()


def test_a_request_that_comes_while_it_finalizes_wakes_it_again(repository: Path) -> None:
    sleeping = Sleeping(repository)
    with sleeping.server as server, ThreadPoolExecutor(1) as pool:
        assert sleeping.ask() == 1
        (sleeping.folder / "initialize").touch()
        (sleeping.folder / "waits").touch()
        server.wait_for("waits in finalize")
        asked = pool.submit(sleeping.ask, "model", 7)
        server.get("/v2/health/live")
        (sleeping.folder / "finalize").touch()
        assert asked.result(PATIENCE_S) == 7


def test_who_waits_is_told_why_it_does_not_wake(asleep: Sleeping) -> None:
    (asleep.folder / "broken").touch()
    answer = asleep.server.infer_array("model", np.ones(1, np.float32))
    assert answer.status == 500
    assert "broken today" in answer.error
    assert not asleep.ready()
    (asleep.folder / "broken").unlink()
    asleep.server.wait_for("instance 'model_0' is back")
    assert asleep.ask(value=5) == 5


def test_a_model_that_calls_it_wakes_it(repository: Path) -> None:
    write_model(repository, "caller", CALLER, io_config())
    sleeping = Sleeping(repository)
    with sleeping.server as server:
        server.wait_for("'model' version 1 has had no request for")
        server.wait_for("'caller' version 1 has had no request for")
        eventually(lambda: not server.stub_pids())
        assert sleeping.ask("caller", 3) == 3


def test_a_model_that_starts_asleep_may_stay_awake(repository: Path) -> None:
    write_model(repository, "model", IDENTITY, io_config())
    with Serving(repository, "--start-asleep") as server:
        assert not server.stub_pids()
        assert server.infer_array("model", np.ones(1, np.float32)).status == 200
        (stub,) = server.stub_pids()
        assert server.infer_array("model", np.ones(1, np.float32)).status == 200
        assert server.stub_pids() == [stub]


def test_models_start_asleep_where_their_configuration_says_enough(repository: Path) -> None:
    write_model(repository, "untold", IDENTITY, "")
    write_model(repository, "lost", SLOW, io_config())
    (repository / "lost" / "1" / "model.py").unlink()
    sleeping = Sleeping(repository, "--start-asleep", "--exit-on-error=false", "--strict-readiness=false", seconds=600)
    with sleeping.server as server:
        assert sleeping.ready()
        (of_untold,) = server.stub_pids()
        states = {row["name"]: row["state"] for row in server.request("POST", "/v2/repository/index").json()}
        assert states == {"lost": "UNAVAILABLE", "model": "READY", "untold": "READY"}
        assert sleeping.ask(value=2) == 2
        (stub,) = set(server.stub_pids()) - {of_untold}
        os.kill(stub, signal.SIGKILL)
        server.wait_for("instance 'model_0' is back")
        assert sleeping.ask(value=3) == 3


def test_an_unload_while_it_wakes(repository: Path) -> None:
    sleeping = Sleeping(repository, "--model-control-mode=explicit", "--load-model=*", "--start-asleep", seconds=600)
    with sleeping.server as server, ThreadPoolExecutor(1) as pool:
        (sleeping.folder / "waits").touch()
        asked = pool.submit(server.infer_array, "model", np.ones(1, np.float32))
        server.wait_for("waits in initialize")
        assert server.request("POST", "/v2/repository/models/model/unload", b"{}").status == 200
        (sleeping.folder / "finalize").touch()
        (sleeping.folder / "initialize").touch()
        assert asked.result(PATIENCE_S).status == 200
        server.wait_for("successfully unloaded 'model' version 1")


def test_an_instance_that_is_replaced_while_it_wakes_is_ended(repository: Path) -> None:
    two = "instance_group [ { kind: KIND_CPU count: 2 } ]"
    write_model(repository, "model", SLOW, io_config(extra=two))
    sleeping = Sleeping(repository, "--model-control-mode=explicit", "--load-model=*", "--start-asleep", seconds=600)
    with sleeping.server as server, ThreadPoolExecutor(1) as pool:
        (sleeping.folder / "waits").touch()
        asked = pool.submit(sleeping.ask, "model", 4)
        server.wait_for("(?s)waits in initialize.*waits in initialize")
        (sleeping.folder / "waits").unlink()
        (sleeping.folder / "config.pbtxt").write_text(io_config(extra=two.replace("2", "1")))
        assert server.request("POST", "/v2/repository/models/model/load", b"{}").status == 200
        assert asked.result(PATIENCE_S) == 4
        eventually(lambda: len(server.stub_pids()) == 1)
        assert sleeping.ask(value=5) == 5
