"""Equal requests that wait for each other, in a real server: some fail, some are cancelled, some are too many."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from ..real_server import PATIENCE_S, Answer, Serving, binary_output, io_config, write_model

# Executes until there is a file `go` beside it, and fails then where the first number is negative.
WAITS = """
    import os
    import time
    import numpy as np
    import triton_python_backend_utils as pb_utils

    GO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "go")

    class TritonPythonModel:
        executed = 0

        def execute(self, requests):
            print("executing", flush=True)
            while not os.path.exists(GO):
                time.sleep(0.01)
            answers = []
            for request in requests:
                given = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
                TritonPythonModel.executed += 1
                if given[0] < 0:
                    answers.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("not this one")))
                else:
                    output = np.full_like(given, self.executed)
                    answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", output)]))
            return answers
"""
ENABLED = "response_cache { enable: true }"
CACHE = "--cache-config=local,size=1M,coalesce=true"
GOOD, BAD = np.ones(4, np.float32), np.full(4, -1, np.float32)
LARGE_AND_BAD = np.full(1 << 20, -1, np.float32)


def ensemble(*outputs: str) -> str:
    """The configuration of an ensemble that asks the same once for each of its outputs."""
    given = 'input { name: "INPUT0" data_type: TYPE_FP32 dims: -1 }'
    made = "".join(f'output {{ name: "{name}" data_type: TYPE_FP32 dims: -1 }}' for name in outputs)
    steps = "".join(
        'step { model_name: "waits" model_version: -1 input_map { key: "INPUT0" value: "INPUT0" }'
        f'output_map {{ key: "OUTPUT0" value: "{name}" }} }}'
        for name in outputs
    )
    return f'platform: "ensemble" {given} {made} ensemble_scheduling {{ {steps} max_inflight_requests: 2 }}'


def write_all(repository: Path) -> Path:
    """The models; what is to be made to let them execute."""
    (repository / "twice" / "1").mkdir(parents=True)
    (repository / "twice" / "config.pbtxt").write_text(ensemble("A", "B"))
    (repository / "once" / "1").mkdir(parents=True)
    (repository / "once" / "config.pbtxt").write_text(ensemble("OUTPUT0") + ENABLED)
    return write_model(repository, "waits", WAITS, io_config(extra=ENABLED)) / "1" / "go"


def test_two_steps_that_ask_the_same_and_fail_harm_nobody(tmp_path: Path) -> None:
    go = write_all(tmp_path)
    with Serving(tmp_path, CACHE, "--shm-limit=64M") as server, ThreadPoolExecutor(8) as pool:
        first = pool.submit(server.infer_array, "twice", BAD)
        server.wait_for("executing")
        bystanders = [pool.submit(server.infer_array, "waits", BAD) for _ in range(3)]
        go.touch()
        for asked in (first, *bystanders):
            answer = asked.result(PATIENCE_S)
            assert (answer.status, "not this one" in answer.error) == (500, True)
        # More than its limit of requests, and more than there is memory for, if any were kept.
        for _ in range(20):
            assert "in ensemble 'twice', not this one" in server.infer_array("twice", LARGE_AND_BAD).error
        assert server.infer_array("twice", GOOD).status == 200
        assert server.stop() == 0
        assert "unexpected" not in server.output
        assert "Exit timeout expired" not in server.output


def _put(answers: Queue[Any], result: Any, error: Any) -> None:
    answers.put((result, error))


def test_a_stream_that_an_error_ends_harms_nobody(tmp_path: Path) -> None:
    go = write_all(tmp_path)
    with Serving(tmp_path, CACHE) as server, ThreadPoolExecutor(8) as pool:
        given = triton_grpc.InferInput("INPUT0", [4], "FP32")
        given.set_data_from_numpy(BAD)
        with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            answers: Queue[Any] = Queue()
            client.start_stream(partial(_put, answers), headers={"triton_grpc_error": "true"})
            for _ in range(2):
                client.async_stream_infer("waits", [given])
            server.wait_for("executing")
            bystanders = [pool.submit(server.infer_array, "waits", BAD) for _ in range(3)]
            go.touch()
            assert "not this one" in str(answers.get(timeout=PATIENCE_S)[1])
            client.stop_stream()
        for asked in bystanders:
            assert asked.result(PATIENCE_S).error == "not this one"
        assert server.stop() == 0
        assert "Traceback" not in server.output
        assert "Exit timeout expired" not in server.output


@pytest.mark.parametrize("model", ["waits", "once"])
def test_those_that_wait_for_another_count_as_queued(tmp_path: Path, model: str) -> None:
    go = write_all(tmp_path)
    with Serving(tmp_path, CACHE, "--max-queue-size=2") as server, ThreadPoolExecutor(8) as pool:
        leader = pool.submit(server.infer_array, model, GOOD)
        server.wait_for("executing")
        followers: Queue[Answer] = Queue()
        for _ in range(5):
            pool.submit(server.infer_array, model, GOOD).add_done_callback(lambda asked: followers.put(asked.result()))
        for _ in range(3):
            refused = followers.get(timeout=PATIENCE_S)
            assert (refused.status, refused.error) == (503, "[request id: <id_unknown>] Exceeds maximum queue size")
        go.touch()
        answered = [leader.result(PATIENCE_S), *(followers.get(timeout=PATIENCE_S) for _ in range(2))]
        assert [binary_output(answer)[0] for answer in answered] == [1, 1, 1]
        assert server.statistics(model)["inference_stats"]["fail"]["count"] == 3


@pytest.mark.parametrize("model", ["waits", "once"])
def test_the_place_of_one_that_waits_goes_to_a_client_that_has_fewer(tmp_path: Path, model: str) -> None:
    go = write_all(tmp_path)
    flags = (CACHE, "--max-queue-size=3", "--fair-queues=connection")
    with Serving(tmp_path, *flags) as server, ThreadPoolExecutor(8) as pool:
        given = triton_grpc.InferInput("INPUT0", [4], "FP32")
        given.set_data_from_numpy(GOOD)
        with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            answers: Queue[Any] = Queue()
            client.async_infer(model, [given], partial(_put, answers))
            server.wait_for("executing")
            for _ in range(4):  # three wait, one is refused
                client.async_infer(model, [given], partial(_put, answers))
            error = answers.get(timeout=PATIENCE_S)[1]
            assert isinstance(error, InferenceServerException)
            assert error.message().endswith("Exceeds maximum queue size")
            other = pool.submit(server.infer_array, model, GOOD)
            error = answers.get(timeout=PATIENCE_S)[1]
            assert "the place went to a client that has fewer requests waiting" in error.message()
            go.touch()
            assert [answers.get(timeout=PATIENCE_S)[0].as_numpy("OUTPUT0")[0] for _ in range(3)] == [1, 1, 1]
            assert binary_output(other.result(PATIENCE_S))[0] == 1
