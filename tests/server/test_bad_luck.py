"""What happens when a model's code misbehaves: who is told what, and who goes on."""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.real_server import PATIENCE_S, Answer, Serving, binary_output, io_config, write_model

# Does what its input says, so that one server can be put through everything.
OBEDIENT = """
    import ctypes
    import os
    import sys
    import time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            answers = []
            for request in requests:
                words = request.inputs()[0].as_numpy()
                order = words.flatten()[0].decode()
                if order == "raise":
                    raise ValueError("no good")
                if order == "exit":
                    os._exit(3)
                if order == "sys.exit":
                    sys.exit("leaving")
                if order == "segfault":
                    ctypes.string_at(0)
                if order == "rubbish":
                    return "rubbish"
                if order == "too few":
                    return []
                if order == "none":
                    return [None]
                if order == "wrong type":
                    return [17]
                if order == "hang":
                    print("hanging", os.getpid(), flush=True)
                    time.sleep(1000)
                if order == "triton error":
                    answers.append(pb_utils.InferenceResponse(
                        error=pb_utils.TritonError("not today", pb_utils.TritonError.UNAVAILABLE)))
                    continue
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", words)]))
            return answers
"""

CONFIG = io_config("STRING", "1")


def order(server: Serving, word: str, model: str = "obedient") -> Answer:
    return server.infer_json(model, [{"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": [word]}])


def wait_ready(server: Serving, model: str = "obedient") -> None:
    server.wait_for(rf"instance '{model}_0' is back")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Serving:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "obedient", OBEDIENT, CONFIG)
    with Serving(repository) as running:
        yield running


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("raise", "Failed to process the request(s) for model 'obedient_0', message: ValueError: no good\n\nAt:\n  "),
        ("sys.exit", "SystemExit: leaving"),
        ("rubbish", "Expected a list in the execute return, found type '<class 'str'>'."),
        ("too few", "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0\n"),
        (
            "wrong type",
            "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'int'>'.",
        ),
        ("none", "'obedient_0': `execute` returned None"),
    ],
)
def test_a_model_that_breaks_its_contract_is_quoted_and_goes_on(server: Serving, word: str, text: str) -> None:
    pids = server.stub_pids()
    answer = order(server, word)
    assert answer.status == 500
    assert text in answer.error
    assert order(server, "fine").status == 200
    assert server.stub_pids() == pids


def test_an_error_of_the_models_own_keeps_its_code(server: Serving) -> None:
    answer = order(server, "triton error")
    assert (answer.status, answer.error) == (503, "not today")


@pytest.mark.parametrize(
    ("word", "cause"),
    [("exit", "it exited with code 3"), ("segfault", "it was killed by signal 11 (SIGSEGV)")],
)
def test_a_stub_that_dies_is_named_and_comes_back(tmp_path: Path, word: str, cause: str) -> None:
    write_model(tmp_path, "obedient", OBEDIENT, CONFIG)
    with Serving(tmp_path) as server:
        answer = order(server, word)
        assert answer.status == 500
        assert answer.error.startswith("Stub process 'obedient_0' is not healthy: ")
        assert cause in answer.error
        wait_ready(server)
        assert order(server, "fine").status == 200
        assert server.get("/v2/models/obedient/ready").status == 200


def test_a_killed_stub_fails_its_requests_at_once_and_others_go_on(tmp_path: Path) -> None:
    write_model(tmp_path, "obedient", OBEDIENT, CONFIG)
    write_model(tmp_path, "other")
    with Serving(tmp_path, "--stub-restart-limit=0") as server:
        answers: list[Answer] = []
        waiting = threading.Thread(target=lambda: answers.append(order(server, "hang")))
        waiting.start()
        server.wait_for(r"hanging \d+")
        assert server.get("/v2/models/obedient/ready").status == 200
        (victim,) = [int(match) for match in re.findall(r"hanging (\d+)", server.output)]
        os.kill(victim, signal.SIGKILL)
        waiting.join(PATIENCE_S)
        assert "it was killed by signal 9 (SIGKILL)" in answers[0].error
        answer = server.get("/v2/models/obedient/ready")
        assert answer.status == 400
        assert "SIGKILL" in answer.error
        assert server.get("/v2/health/ready").status == 400
        refused = order(server, "fine")
        assert refused.status == 503
        assert "SIGKILL" in refused.error
        rows = {row["name"]: row for row in server.request("POST", "/v2/repository/index").json()}
        assert rows["obedient"]["state"] == "UNAVAILABLE"
        assert "SIGKILL" in rows["obedient"]["reason"]
        assert rows["other"]["state"] == "READY"
        array = np.arange(3, dtype=np.float32)
        np.testing.assert_array_equal(binary_output(server.infer_array("other", array)), array)


def test_what_a_model_has_started_ends_with_its_stub(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "parental",
        """
        import subprocess

        class TritonPythonModel:
            def initialize(self, args):
                child = subprocess.Popen(["sleep", "1000"])
                print("child", child.pid, flush=True)

            def execute(self, requests):
                return []
        """,
    )
    with Serving(tmp_path, "--stub-restart-limit=0") as server:
        child = psutil.Process(int(server.wait_for(r"child (\d+)")[1]))
        (stub,) = server.stub_pids()
        os.kill(stub, signal.SIGKILL)
        _, alive = psutil.wait_procs([child], 10)
        assert not alive


def test_when_memory_runs_out_stubs_go_before_the_server(tmp_path: Path) -> None:
    write_model(tmp_path, "echo")
    with Serving(tmp_path) as server:
        stub, parent = [
            int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in (*server.stub_pids(), server.process.pid)
        ]
        assert stub == min(parent + 300, 1000)


def test_a_request_that_never_ends_does_not_hold_up_the_exit(tmp_path: Path) -> None:
    write_model(tmp_path, "obedient", OBEDIENT, CONFIG)
    with Serving(tmp_path, "--exit-timeout-secs=1") as server:
        answers: list[Answer] = []
        waiting = threading.Thread(target=lambda: answers.append(order(server, "hang")))
        waiting.start()
        server.wait_for(r"hanging \d+")
        assert server.stop(20) == 0
        server.wait_for("Exit timeout expired")
        waiting.join(PATIENCE_S)
        assert answers[0].status == 500
        assert "the server has killed it, because it had not stopped 1 s after it was told to" in answers[0].error


@pytest.mark.parametrize("where", ["flag", "parameter", "model goes first"])
def test_an_execute_that_takes_too_long_is_ended(tmp_path: Path, where: str) -> None:
    parameter = 'parameters { key: "EXECUTE_TIMEOUT_SECS" value { string_value: "0.5" } }'
    config = io_config("STRING", "1", extra="" if where == "flag" else parameter)
    write_model(tmp_path, "obedient", OBEDIENT, config)
    flags = {"flag": ["--execute-timeout-secs=0.5"], "parameter": [], "model goes first": ["--execute-timeout-secs=0"]}
    with Serving(tmp_path, *flags[where]) as server:
        answer = order(server, "hang")
        assert answer.status == 500
        assert answer.error.startswith("Stub process 'obedient_0' is not healthy: the server has killed it, because ")
        assert (
            "it has been executing a batch of 1 requests for longer than the 0.5 s that EXECUTE_TIMEOUT_SECS allows"
        ) in answer.error
        wait_ready(server)
        assert order(server, "fine").status == 200


def test_a_limit_counts_what_is_executed_not_what_is_answered_later(tmp_path: Path) -> None:
    """The limit passes several times while a sender waits, and while requests come one after the other."""
    write_model(
        tmp_path,
        "later",
        """
        import threading
        import time
        import triton_python_backend_utils as pb_utils

        def answer(sender, array):
            time.sleep(1.5)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]), 1)

        class TritonPythonModel:
            def execute(self, requests):
                for request in requests:
                    arguments = (request.get_response_sender(), request.inputs()[0].as_numpy())
                    threading.Thread(target=answer, args=arguments).start()
                return [None] * len(requests)
        """,
        io_config(extra='parameters { key: "EXECUTE_TIMEOUT_SECS" value { string_value: "0.4" } }'),
    )
    with Serving(tmp_path) as server:
        array = np.arange(3, dtype=np.float32)
        np.testing.assert_array_equal(binary_output(server.infer_array("later", array)), array)
        assert server.get("/v2/models/later/ready").status == 200
        assert "is not healthy" not in server.output


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf", ""])
def test_a_limit_that_is_none_fails_the_load(repository: Path, text: str) -> None:
    parameter = f'parameters {{ key: "EXECUTE_TIMEOUT_SECS" value {{ string_value: "{text}" }} }}'
    write_model(repository, "obedient", OBEDIENT, io_config("STRING", "1", extra=parameter))
    with Serving(repository, "--exit-on-error=false") as server:
        (row,) = server.request("POST", "/v2/repository/index").json()
        assert "'EXECUTE_TIMEOUT_SECS' of model 'obedient' must be a number of seconds" in row["reason"]
        assert f"Got '{text}'" in row["reason"]


def test_a_hung_model_can_be_unloaded(tmp_path: Path) -> None:
    write_model(tmp_path, "obedient", OBEDIENT, CONFIG)
    flags = ("--exit-timeout-secs=2", "--model-control-mode=explicit", "--load-model=obedient")
    with Serving(tmp_path, *flags) as server:
        answers: list[Answer] = []
        waiting = threading.Thread(target=lambda: answers.append(order(server, "hang")))
        waiting.start()
        server.wait_for(r"hanging \d+")
        assert server.request("POST", "/v2/repository/models/obedient/unload").status == 200
        server.wait_for("successfully unloaded 'obedient' version 1")
        waiting.join(PATIENCE_S)
        assert "the server has killed it, because it had not stopped 1 s after it was told to" in answers[0].error
        assert not server.stub_pids()
        assert server.request("POST", "/v2/repository/models/obedient/load", b"{}").status == 200
        assert order(server, "fine").status == 200


def test_of_several_instances_one_may_die(tmp_path: Path) -> None:
    write_model(tmp_path, "obedient", OBEDIENT, io_config("STRING", "1", extra="instance_group [ { count: 2 } ]"))
    with Serving(tmp_path, "--stub-restart-limit=0") as server:
        assert len(server.stub_pids()) == 2
        assert order(server, "exit").status == 500
        assert len(server.stub_pids()) == 1
        for _ in range(5):
            assert order(server, "fine").status == 200
        assert server.get("/v2/models/obedient/ready").status == 400


def test_a_stub_that_dies_again_and_again_is_given_up(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    write_model(
        tmp_path / "models",
        "doomed",
        f"""
        import os
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def initialize(self, args):
                if os.path.exists({str(flag)!r}):
                    os._exit(9)

            def execute(self, requests):
                open({str(flag)!r}, "w").close()
                os._exit(8)
        """,
    )
    with Serving(tmp_path / "models", "--stub-restart-limit=2") as server:
        assert "it exited with code 8" in server.infer_array("doomed", np.zeros(1, np.float32)).error
        server.wait_for("is not tried again")
        (row,) = server.request("POST", "/v2/repository/index").json()
        assert row["state"] == "UNAVAILABLE"
        assert "exited with code 9" in row["reason"]
        assert server.get("/v2/health/live").status == 200


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("raise RuntimeError('at import')\n", "RuntimeError: at import"),
        ("import os\nprint('last words', file=__import__('sys').stderr)\nos._exit(7)\n", "it exited with code 7"),
        ("x = 1\n", "TritonPythonModel"),
        ("def (:\n", "SyntaxError"),
    ],
)
def test_a_model_that_cannot_be_imported_says_why(repository: Path, source: str, text: str) -> None:
    write_model(repository, "broken", source)
    with Serving(repository, "--exit-on-error=false") as server:
        (row,) = server.request("POST", "/v2/repository/index").json()
        assert row["state"] == "UNAVAILABLE"
        assert text in row["reason"]
        if "exited" in text:
            assert "last words" in row["reason"]


def test_an_auto_complete_that_dies_does_not_hang_the_server(repository: Path) -> None:
    write_model(
        repository,
        "broken",
        """
        import os

        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                os.kill(os.getpid(), 9)

            def execute(self, requests):
                return []
        """,
    )
    with Serving(repository, "--exit-on-error=false") as server:
        (row,) = server.request("POST", "/v2/repository/index").json()
        assert "SIGKILL" in row["reason"]
        assert "in auto_complete_config" in row["reason"]


def test_a_full_arena_is_said_and_passes(repository: Path) -> None:
    write_model(repository, "echo")
    with Serving(repository, "--shm-limit=16M") as server:
        answer = server.infer_array("echo", np.zeros(8 << 20, np.float32))
        assert answer.status == 503
        assert "--shm-limit" in answer.error
        array = np.arange(1 << 20, dtype=np.float32)
        for _ in range(20):
            np.testing.assert_array_equal(binary_output(server.infer_array("echo", array)), array)


def test_a_response_of_which_one_output_finds_no_memory_keeps_none(repository: Path) -> None:
    write_model(
        repository,
        "two",
        """
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                sizes = requests[0].inputs()[0].as_numpy()
                return [pb_utils.InferenceResponse([
                    pb_utils.Tensor("OUTPUT%d" % number, np.ones(int(size), np.float32))
                    for number, size in enumerate(sizes)
                ])]
        """,
        io_config(extra='output [ { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ -1 ] } ]'),
    )
    with Serving(repository, "--shm-limit=16M") as server:
        for _ in range(3):
            assert server.infer_array("two", np.array([2 << 20, 8 << 20], np.float32)).status == 503
        assert server.infer_array("two", np.array([2 << 20, 1], np.float32)).status == 200


def test_outputs_that_find_no_memory_are_said_and_pass(repository: Path) -> None:
    write_model(
        repository,
        "grow",
        """
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                return [
                    pb_utils.InferenceResponse(
                        [pb_utils.Tensor("OUTPUT0", np.ones(int(r.inputs()[0].as_numpy()[0]), np.float32))]
                    )
                    for r in requests
                ]
        """,
    )
    with Serving(repository, "--shm-limit=16M") as server:
        answer = server.infer_array("grow", np.array([8 << 20], np.float32))
        assert answer.status == 503
        assert "--shm-limit" in answer.error
        for _ in range(20):
            assert binary_output(server.infer_array("grow", np.array([1 << 20], np.float32))).shape == (1 << 20,)
