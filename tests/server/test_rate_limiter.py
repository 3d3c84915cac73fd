"""The rate limiter of a real server: models that share a resource."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from ..real_server import Serving, eventually, io_config, write_model

# Says when it executes, so that one sees who ran with whom.
NOTES = """
    import os
    import time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.file = open(os.environ["NOTES"], "a", buffering=1)
            self.name = args["model_name"]

        def execute(self, requests):
            self.file.write(f"{self.name} begins\\n")
            time.sleep(0.002)
            self.file.write(f"{self.name} ends\\n")
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
                for request in requests
            ]
"""
ONE = np.ones(1, np.float32)


def limits(demand: str = 'name: "R" count: 1', priority: int = 1, count: int = 1) -> str:
    limiter = f"rate_limiter {{ resources [ {{ {demand} }} ] priority: {priority} }}"
    return f"instance_group [ {{ kind: KIND_CPU count: {count} {limiter} }} ]"


def test_models_that_share_a_resource_never_run_together_and_take_turns_by_priority(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_model(models, "first", NOTES, io_config(extra=limits(count=2)))
    write_model(models, "third", NOTES, io_config(extra=limits(priority=3)))
    write_model(models, "batches", NOTES, io_config(max_batch_size=4, extra=limits() + "dynamic_batching { }"))
    write_model(models, "free", NOTES, io_config())
    notes = tmp_path / "notes"
    environment = {"NOTES": str(notes)}
    with (
        Serving(models, "--rate-limit=execution_count", environment=environment) as server,
        ThreadPoolExecutor(24) as pool,
    ):
        over = threading.Event()

        def keep_asking(model: str) -> int:
            answered = 0
            while not over.is_set():
                shape = (1, 1) if model == "batches" else (1,)
                assert server.infer_array(model, np.ones(shape, np.float32)).status == 200
                answered += 1
            return answered

        asking = [pool.submit(keep_asking, model) for model in ("first", "third", "batches", "free") for _ in range(4)]
        eventually(lambda: notes.read_text().count("third ends") >= 40)
        over.set()
        assert all(one.result() for one in asking)
    running: list[str] = []
    order = []
    for line in notes.read_text().splitlines():
        name, what = line.split()
        if name == "free":
            continue
        if what == "begins":
            running.append(name)
            order.append(name)
        else:
            running.remove(name)
        assert len(running) <= 1, line
    # Two instances of the first have six executions for one of the third. While all always have something to do.
    share = order.count("first") / order.count("third")
    assert 4 < share < 8
    assert 2 < order.count("batches") / order.count("third") < 4


def test_a_resource_is_free_again_when_a_stub_is_killed_or_its_model_unloaded(tmp_path: Path) -> None:
    models = tmp_path / "models"
    for name in ("one", "two"):
        write_model(
            models, name, NOTES.replace("0.002", "3600 if self.name == 'one' else 0"), io_config(extra=limits())
        )
    flags = ("--rate-limit=execution_count", "--model-control-mode=explicit", "--load-model=one")
    notes = tmp_path / "notes"
    with Serving(models, *flags, environment={"NOTES": str(notes)}) as server, ThreadPoolExecutor(2) as pool:
        (pid,) = server.stub_pids()
        assert server.request("POST", "/v2/repository/models/two/load").status == 200
        stuck = pool.submit(server.infer_array, "one", ONE)
        eventually(lambda: "one begins" in notes.read_text())
        waiting = pool.submit(server.infer_array, "two", ONE)
        eventually(lambda: b'pending_request_count{model="two",version="1"} 1' in server.metrics().body)
        os.kill(pid, signal.SIGKILL)
        assert waiting.result().status == 200
        assert stuck.result().status == 500


def test_what_can_never_run_is_refused_and_instances_can_be_changed(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "fits", config=io_config(extra=limits('name: "R" count: 4')))
    write_model(tmp_path, "great", config=io_config(extra=limits('name: "R" count: 40')))
    write_model(tmp_path, "everywhere", config=io_config(extra=limits('name: "R" count: 1 global: true')))
    flags = (
        *("--rate-limit=execution_count", "--rate-limit-resource=R:10", "--model-control-mode=explicit"),
        *("--load-model=fits", "--exit-on-error=false"),
    )
    with Serving(tmp_path, *flags) as server:
        great = server.request("POST", "/v2/repository/models/great/load")
        assert great.error == (
            "load failed for model 'great': version 1 is at UNAVAILABLE state: Invalid argument: Resource count for "
            '"R" is limited to 10 which will prevent scheduling of one or more model instances, the minimum required '
            "count is 40;\n"
        )
        everywhere = server.request("POST", "/v2/repository/models/everywhere/load")
        assert 'Resource "R" is present as both global and device-specific resource' in everywhere.error
        assert server.infer_array("fits", ONE).status == 200
        (folder / "config.pbtxt").write_text(io_config(extra=limits('name: "R" count: 11', count=2)))
        refused = server.request("POST", "/v2/repository/models/fits/load")
        assert "is limited to 10" in refused.error
        (folder / "config.pbtxt").write_text(io_config(extra=limits('name: "R" count: 10', count=2)))
        assert server.request("POST", "/v2/repository/models/fits/load").status == 200
        assert all(server.infer_array("fits", ONE).status == 200 for _ in range(4))


def test_a_limiter_that_is_off_is_told_of(tmp_path: Path) -> None:
    write_model(tmp_path, "limited", config=io_config(extra=limits()))
    with Serving(tmp_path) as server:
        server.wait_for("model 'limited': 'rate_limiter' has no effect without --rate-limit=execution_count")
        assert server.infer_array("limited", ONE).status == 200


CALLS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            call = pb_utils.InferenceRequest(
                model_name="%s", requested_output_names=["OUTPUT0"], inputs=[requests[0].inputs()[0]]
            )
            answer = call.exec()
            if answer.has_error():
                return [pb_utils.InferenceResponse(error=answer.error())]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", answer.output_tensors()[0].as_numpy())])]
"""


def test_a_call_that_waits_for_what_its_caller_holds_is_refused(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_model(models, "called", NOTES, io_config(extra=limits()))
    write_model(models, "between", CALLS % "called", io_config())
    write_model(models, "caller", CALLS % "between", io_config(extra=limits()))
    write_model(models, "other", CALLS % "called", io_config(extra=limits('name: "S" count: 1')))
    environment = {"NOTES": str(tmp_path / "notes")}
    with Serving(models, "--rate-limit=execution_count", environment=environment) as server:
        server.wait_until_ready()
        assert server.infer_array("other", ONE).status == 200
        refused = server.infer_array("caller", ONE)
        assert (refused.status, server.infer_array("between", ONE).status) == (500, 200)
        assert refused.error.endswith(
            "waits for an instance that waits for it: between_0 -> called_0_0 (which needs the resource 'R') -> "
            "caller_0_0 -> between_0. There has to be more of the resource, or a model must not need one that it "
            "shares with its callers."
        )
