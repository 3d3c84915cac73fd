"""What ensembles and their members see of each other on a real server: what is handed on, counted, and given back."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.real_server import Serving, binary_output, binary_request, eventually, io_config, write_model
from tests.server.ensembles import (
    WRITER,
    load,
    one,
    run,
    unload,
    values,
    write_chain,
    write_ensemble,
)
from tests.server.grpc_calls import connected
from tests.server.grpc_calls import request as grpc_request

EXPLICIT = "--model-control-mode=explicit"

# Says what it is asked, and answers with its input.
TELLING = """
    import json
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.name = args["model_name"]

        def execute(self, requests):
            responses = []
            for request in requests:
                told = [request.request_id(), request.correlation_id(), request.flags(), request.timeout()]
                print("told", self.name, json.dumps([*told, json.loads(request.parameters())]), flush=True)
                array = request.inputs()[0].as_numpy()
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]))
            return responses
"""

# Executes one request at a time, none before the file GATE is there, and says which; ends with a cancelled one.
GATED = """
    import os
    import time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.name = args["model_name"]

        def execute(self, requests):
            for request in requests:
                print("executing", request.request_id(), "as", self.name, os.getpid(), flush=True)
                while not os.path.exists(GATE) and not request.is_cancelled():
                    time.sleep(0.005)
                if request.is_cancelled():
                    print("heard of the end of", request.request_id(), flush=True)
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
                for request in requests
            ]
"""

# Answers each number with twenty times as many.
GROWING = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse([
                    pb_utils.Tensor("OUTPUT0", np.repeat(request.inputs()[0].as_numpy(), 20))
                ])
                for request in requests
            ]
"""

FAILS_BELOW_0 = WRITER.replace(
    "array += 1", "array += 1\n                if array[0, 0] <= 0:\n                    raise ValueError('no')"
)


def gated(gate: Path) -> str:
    return GATED.replace("GATE", repr(str(gate)))


def give_batches(config: Path, size: int) -> None:
    """Has an ensemble take batches of items of one float."""
    config.write_text(f"max_batch_size: {size}\n" + config.read_text().replace("dims: -1", "dims: 1"))


def told(server: Serving, model: str) -> list[Any]:
    """What the model has said of its only request."""
    found: list[Any] = json.loads(server.wait_for(rf"told {model} (.*)").group(1))
    return found


def samples(server: Serving) -> dict[tuple[str, str, str], float]:
    """What the metrics port counts, by metric, model and reason; zeros left out."""
    found = {}
    for line in server.metrics().body.decode().splitlines():
        name, _, rest = line.partition("{")
        if name.startswith("nv_inference_") and not name.endswith("_us"):
            labels, _, number = rest.rpartition("} ")
            by_name = dict(label.replace('"', "").split("=") for label in labels.split(","))
            if float(number):
                found[name.removeprefix("nv_inference_"), by_name["model"], by_name.get("reason", "")] = float(number)
    return found


def test_metrics_of_ensembles_and_members(repository: Path) -> None:
    """The counts that Triton 2.51 has after the same requests, but that a failed one counts once."""
    batching = io_config("FP32", "1", 8)
    write_model(repository, "a", config=batching)
    write_model(repository, "bad", FAILS_BELOW_0, batching)
    write_chain(repository, "chain", "a", "bad", "a")
    write_chain(repository, "outer", "chain", "a")
    for name in ("chain", "outer"):
        give_batches(repository / name / "config.pbtxt", 8)
    with Serving(repository) as server:
        for model, numbers, status in (
            ("chain", [1], 200),
            ("chain", [1, 2, 3], 200),
            ("chain", [-1], 500),
            ("outer", [5, 6], 200),
        ):
            assert server.infer_array(model, np.array(numbers, np.float32)[:, None]).status == status
        assert samples(server) == {
            ("request_success", "outer", ""): 1,
            ("request_success", "chain", ""): 3,
            ("request_success", "bad", ""): 3,
            ("request_success", "a", ""): 8,
            ("request_failure", "chain", "OTHER"): 1,
            ("request_failure", "bad", "BACKEND"): 1,
            ("count", "outer", ""): 2,
            ("count", "chain", ""): 6,
            ("count", "bad", ""): 6,
            ("count", "a", ""): 15,
            ("exec_count", "outer", ""): 1,
            ("exec_count", "chain", ""): 3,
            ("exec_count", "bad", ""): 4,
            ("exec_count", "a", ""): 8,
        }


def test_statistics_while_many_ask(repository: Path) -> None:
    write_model(repository, "a", config=io_config("FP32", "1", 8, "dynamic_batching { }"))
    write_model(repository, "b", config=io_config("FP32", "1", 8, "dynamic_batching { }"))
    write_chain(repository, "chain", "a", "b")
    give_batches(repository / "chain" / "config.pbtxt", 8)
    array = np.ones((2, 1), np.float32)
    with Serving(repository) as server, ThreadPoolExecutor(16) as pool:
        assert {answer.status for answer in pool.map(lambda _: server.infer_array("chain", array), range(200))} == {200}
        chain, a, b = (server.statistics(name) for name in ("chain", "a", "b"))
        assert [one["inference_count"] for one in (chain, a, b)] == [400, 400, 400]
        assert [one["inference_stats"]["success"]["count"] for one in (chain, a, b)] == [200, 200, 200]
        assert chain["execution_count"] == 200
        assert [row["batch_size"] for row in chain["batch_stats"]] == [2]
        assert a["execution_count"] == sum(row["compute_infer"]["count"] for row in a["batch_stats"])
        # What it computes is the sum of what its members do.
        for name in ("compute_input", "compute_infer", "compute_output"):
            parts = [one["inference_stats"][name]["ns"] for one in (a, b)]
            assert chain["inference_stats"][name]["ns"] == sum(parts)
        for part in (a, b):
            assert part["inference_stats"]["success"]["ns"] <= chain["inference_stats"]["success"]["ns"]


def test_what_a_request_says_is_handed_on(repository: Path) -> None:
    """Correlation id and flags of a sequence, the timeout and the request's own parameters reach every step."""
    for name in ("first", "second"):
        write_model(repository, name, TELLING)
    write_chain(repository, "chain", "first", "second")
    with Serving(repository) as server:
        parameters = {"sequence_id": 7, "sequence_start": True, "sequence_end": True, "timeout": 60_000_000, "own": 5}
        answer = server.infer_array("chain", np.ones(1, np.float32), id="mine", parameters=parameters)
        assert answer.status == 200, answer
        for name in ("first", "second"):
            id, correlation_id, flags, timeout, own = told(server, name)
            assert (id, correlation_id, flags & 3, timeout) == ("mine", 7, 3, 60_000_000)
            assert own["own"] == 5
        header, _ = json.JSONDecoder().raw_decode(answer.body.decode("latin-1"))
        assert header["parameters"] == {"sequence_id": 7, "sequence_start": True, "sequence_end": True}


def test_a_priority_counts_with_the_members(repository: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    queue = "dynamic_batching { priority_levels: 2 default_priority_level: 2 }"
    write_model(repository, "gated", gated(gate), io_config("FP32", "1", 1, queue))
    write_chain(repository, "chain", "gated")
    give_batches(repository / "chain" / "config.pbtxt", 1)
    array = np.ones((1, 1), np.float32)
    with Serving(repository) as server, ThreadPoolExecutor(3) as pool:

        def ask(id: str, **parameters: int) -> Any:
            return pool.submit(server.infer_array, "chain", array, id=id, parameters=parameters)

        answers = [ask("running")]
        server.wait_for("executing running")
        for queued, (id, priority) in enumerate([("low", 2), ("high", 1)], 1):
            answers.append(ask(id, priority=priority))
            eventually(lambda queued=queued: samples(server).get(("pending_request_count", "gated", "")) == queued)
        gate.touch()
        assert [answer.result().status for answer in answers] == [200] * 3
        server.wait_for("executing high(?s:.)*executing low")


def test_a_timeout_counts_in_the_queues_of_members(repository: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    policy = (
        "default_queue_policy { timeout_action: REJECT "
        "default_timeout_microseconds: 600000000 allow_timeout_override: true }"
    )
    write_model(repository, "gated", gated(gate), io_config("FP32", "1", 1, f"dynamic_batching {{ {policy} }}"))
    write_chain(repository, "chain", "gated")
    give_batches(repository / "chain" / "config.pbtxt", 1)
    with Serving(repository) as server, ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.infer_array, "chain", np.ones((1, 1), np.float32), id="running")
        server.wait_for("executing running")
        answer = server.infer_array("chain", np.ones((1, 1), np.float32), id="late", parameters={"timeout": 1000})
        gate.touch()
        assert running.result().status == 200
        assert answer.status == 503
        assert answer.error == "in ensemble 'chain', Request timeout expired (step 0, model 'gated')"
        assert samples(server)["request_failure", "gated", "REJECTED"] == 1


def test_readiness_asks_the_members_models(repository: Path, tmp_path: Path) -> None:
    mood = tmp_path / "not-ready"
    write_model(repository, "first")
    write_model(
        repository,
        "moody",
        f"""
        import os
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def is_ready(self):
                return not os.path.exists({str(mood)!r})

            def execute(self, requests):
                return [pb_utils.InferenceResponse([]) for _ in requests]
        """,
    )
    write_chain(repository, "chain", "first", "moody")
    write_chain(repository, "outer", "chain")
    with Serving(repository) as server, connected(server):
        ready = [f"/v2/models/{name}/ready" for name in ("first", "moody", "chain", "outer")]
        assert [server.get(path).status for path in ready] == [200] * 4
        mood.touch()
        assert [server.get(path).status for path in ready] == [200, 400, 400, 400]
        mood.unlink()
        assert [server.get(path).status for path in ready] == [200] * 4


@pytest.mark.parametrize("door", ["http", "grpc"])
@pytest.mark.parametrize("last", ["gated", "first"])
def test_a_client_that_leaves_in_the_middle(repository: Path, tmp_path: Path, door: str, last: str) -> None:
    """The step under way is told and the next one never begins; both ends count a cancellation, all memory is free."""
    write_model(repository, "first")
    write_model(repository, "gated", gated(tmp_path / "gate"))
    write_chain(repository, "chain", "first", "gated", last)
    array = np.ones(1 << 20, np.float32)
    with Serving(repository, "--shm-limit=24M") as server, connected(server) as grpc:
        for number in range(8):
            id = f"request-{number}"
            if door == "http":
                path, body, headers = binary_request("chain", array, id=id)
                connection = server.connect()
                connection.request("POST", path, body, headers)
                server.wait_for(f"executing {id}")
                connection.close()
            else:
                call = grpc.stub.ModelInfer.future(grpc_request("chain", shape=[1 << 20], raw=[array.tobytes()], id=id))
                server.wait_for(f"executing {id}")
                call.cancel()
            server.wait_for(f"heard of the end of {id}")
        eventually(lambda: samples(server).get(("request_failure", "chain", "CANCELED")) == 8)
        (tmp_path / "gate").touch()
        # 8 times 4 MiB and what comes of them would not fit.
        np.testing.assert_array_equal(binary_output(server.infer_array("chain", array)), array)
        found = samples(server)
        assert found["request_success", "chain", ""] == 1
        assert found["request_success", "first", ""] == (10 if last == "first" else 9)


def test_memory_that_is_full_in_the_middle_is_all_given_back(repository: Path) -> None:
    write_model(repository, "first")
    write_model(repository, "growing", GROWING)
    write_ensemble(
        repository,
        "fork",
        one("first", "INPUT0", "a"),
        one("first", "INPUT0", "b"),
        one("growing", "a", "OUTPUT0"),
        one("first", "b", "OTHER"),
        outputs="OUTPUT0 OTHER",
    )
    with Serving(repository, "--shm-limit=24M") as server:
        for _ in range(12):
            answer = server.infer_array("fork", np.ones(1 << 19, np.float32))
            assert answer.status == 503
            assert answer.error.startswith("in ensemble 'fork', ")
            assert "--shm-limit" in answer.error
        # Most of the limit can be had at once: nothing of the others is left.
        array = np.ones(5 << 19, np.float32)
        np.testing.assert_array_equal(binary_output(server.infer_array("first", array)), array)
        assert server.infer_array("fork", np.ones(100, np.float32)).status == 200


def test_a_member_that_hangs(repository: Path, tmp_path: Path) -> None:
    limit = 'parameters { key: "EXECUTE_TIMEOUT_SECS" value { string_value: "0.5" } }'
    write_model(repository, "first")
    write_model(repository, "gated", gated(tmp_path / "gate"), io_config(extra=limit))
    write_chain(repository, "chain", "first", "gated", "first")
    with Serving(repository) as server:
        answer = run(server, "chain", 1)
        assert answer.status == 500
        assert answer.error.startswith("in ensemble 'chain', Stub process 'gated_0' is not healthy: ")
        assert "EXECUTE_TIMEOUT_SECS" in answer.error
        (tmp_path / "gate").touch()
        eventually(lambda: server.get("/v2/models/chain/ready").status == 200)
        assert values(run(server, "chain", 1)) == [1]


def test_a_member_that_is_unloaded_while_it_executes(repository: Path, tmp_path: Path) -> None:
    write_model(repository, "gated", gated(tmp_path / "gate"))
    write_model(repository, "last")
    write_chain(repository, "chain", "gated", "last")
    with Serving(repository, EXPLICIT) as server, ThreadPoolExecutor(1) as pool:
        load(server, "chain")
        answer = pool.submit(server.infer_array, "chain", np.ones(3, np.float32), id="mine")
        server.wait_for("executing mine")
        for name in ("gated", "last"):
            assert unload(server, name).status == 200
        assert run(server, "chain", 1).status == 404
        (tmp_path / "gate").touch()
        assert values(answer.result()) == [1, 1, 1]
        for name in ("gated", "last", "chain"):
            server.wait_for(f"successfully unloaded '{name}' version 1")
        assert not server.stub_pids()


def test_a_stub_that_is_killed_under_a_step(repository: Path, tmp_path: Path) -> None:
    """Its siblings of the same request are cancelled, and what the client is told names ensemble and cause."""
    write_model(repository, "victim", gated(tmp_path / "gate"))
    write_model(repository, "other", gated(tmp_path / "gate"))
    write_ensemble(
        repository, "fork", one("victim", "INPUT0", "OUTPUT0"), one("other", "INPUT0", "OTHER"), outputs="OUTPUT0 OTHER"
    )
    with Serving(repository) as server, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.infer_array, "fork", np.ones(1, np.float32), id="mine")
        server.wait_for("executing mine as other")
        os.kill(int(server.wait_for(r"executing mine as victim (\d+)").group(1)), signal.SIGKILL)
        server.wait_for("heard of the end of mine")
        assert answer.result().status == 500
        assert answer.result().error.startswith("in ensemble 'fork', Stub process 'victim_0' is not healthy: ")


def test_a_step_that_answers_twice_or_never(repository: Path) -> None:
    """Of a model that is not decoupled, which may use senders all the same."""
    sending = """
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                for request in requests:
                    sender = request.get_response_sender()
                    for _ in range(int(request.inputs()[0].as_numpy()[0])):
                        output = pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())
                        sender.send(pb_utils.InferenceResponse([output]))
                    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    write_model(repository, "sending", sending)
    write_model(repository, "last")
    write_chain(repository, "chain", "sending", "last")
    with Serving(repository, "--shm-limit=24M") as server:
        assert values(run(server, "chain", 1)) == [1]
        for number in range(12):
            array = np.full(1 << 20, number % 2 * 2, np.float32)
            answer = server.infer_array("chain", array)
            assert answer.status in (400, 500), answer
            assert answer.error.startswith("in ensemble 'chain', ")
        assert values(run(server, "chain", 1)) == [1]
        assert server.statistics("chain")["inference_stats"]["fail"]["count"] == 12


def test_a_model_that_writes_to_its_input_while_others_read_it(repository: Path) -> None:
    """Four models share one tensor; the writer goes on to write while the readers have it."""
    reader = """
        import numpy as np
        import time
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                responses = []
                for request in requests:
                    array = request.inputs()[0].as_numpy()
                    least = array.min()
                    for _ in range(20):
                        time.sleep(0.001)
                        least = min(least, array.min())
                    worst = np.array([least, array.max()], np.float32)
                    responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", worst)]))
                return responses
    """
    writer = """
        import time
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                responses = []
                for request in requests:
                    array = request.inputs()[0].as_numpy()
                    for number in range(20):
                        array[:] = -number
                        time.sleep(0.001)
                    responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array[:2])]))
                return responses
    """
    for name, text in (("reader0", reader), ("reader1", reader), ("writer0", writer), ("writer1", writer)):
        write_model(repository, name, text)
    names = ["reader0", "writer0", "reader1", "writer1"]
    write_ensemble(
        repository, "fan", *(one(name, "INPUT0", f"OUT_{name}") for name in names),
        outputs=" ".join(f"OUT_{name}" for name in names),
    )  # fmt: skip
    with Serving(repository) as server, connected(server) as grpc:
        for size in (8, 20_000, 1 << 20):
            array = np.full(size, 5, np.float32)
            answer = grpc.infer(grpc_request("fan", shape=[size], raw=[array.tobytes()]))
            found = {
                output.name: np.frombuffer(raw, np.float32).tolist()
                for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
            }
            assert found == {
                "OUT_reader0": [5, 5],
                "OUT_reader1": [5, 5],
                "OUT_writer0": [-19, -19],
                "OUT_writer1": [-19, -19],
            }
