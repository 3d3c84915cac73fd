"""Warm-up: what instances execute before they are ready, with real servers."""

from __future__ import annotations

import base64
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stubserve.checking.repository import check_repositories
from tests.real_server import Serving, eventually, write_model

# Writes what each `execute` was given into a file outside of the repository, and answers with zeros.
RECORDER = """
    import json
    import os

    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.model = args["model_name"]
            self.instance = args["model_instance_name"]

        def execute(self, requests):
            line = [self.instance] + [
                {tensor.name(): [tensor.as_numpy().dtype.str, list(tensor.shape()), self.values(tensor)]
                 for tensor in request.inputs()}
                for request in requests
            ]
            with open(os.path.join(os.environ["SEEN"], self.model), "a") as seen:
                seen.write(json.dumps(line) + "\\n")
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros((1, 1), np.int32))]) for _ in requests]

        def values(self, tensor):
            array = tensor.as_numpy()
            if array.dtype == np.object_:
                return [element.decode() for element in array.reshape(-1)]
            if array.size > 100:
                return int(array.view(np.uint8).max())
            return array.astype(np.float64).reshape(-1).tolist()
"""

IO = """
    backend: "python"
    max_batch_size: 4
    input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] } ]
    output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""


def zeros(name: str = "w", more: str = "", dims: str = "2", kind: str = "zero_data: true") -> str:
    return f"""
    model_warmup {{
      name: "{name}" {more}
      inputs {{ key: "IN" value {{ data_type: TYPE_INT32 dims: [ {dims} ] {kind} }} }}
    }}
    """


def seen(repository: Path, model: str) -> list[list[Any]]:
    """What each `execute` of a recorder was given: the instance's name, and the inputs of each request."""
    file = repository.parent / model
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def failure(server: Serving, model: str) -> str:
    """Why a model is not ready, by the repository index."""
    for row in server.request("POST", "/v2/repository/index", b"{}").json():
        if row["name"] == model:
            reason: str = row["reason"]
            return reason
    raise AssertionError(f"no model '{model}'")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    monkeypatch.setenv("SEEN", str(tmp_path))
    return folder


def test_every_kind_of_sample(repository: Path) -> None:
    """Zero, random and file data of every size, in order, as often and as many at once as the configuration says."""
    config = """
    backend: "python"
    max_batch_size: 4
    input [
      { name: "I" data_type: TYPE_INT32 dims: [ 2, -1 ] },
      { name: "B" data_type: TYPE_BOOL dims: [ -1 ] },
      { name: "S" data_type: TYPE_STRING dims: [ 3 ] },
      { name: "F" data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 2, 2 ] } },
      { name: "D" data_type: TYPE_FP64 dims: [ -1 ] optional: true }
    ]
    output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
    model_warmup {
      name: "zeros" batch_size: 2
      inputs { key: "I" value { data_type: TYPE_INT32 dims: [ 2, 3 ] zero_data: true } }
      inputs { key: "B" value { data_type: TYPE_BOOL dims: [ 1 ] zero_data: true } }
      inputs { key: "S" value { data_type: TYPE_STRING dims: [ 3 ] zero_data: true } }
      inputs { key: "F" value { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } }
    }
    model_warmup { name: "skipped" batch_size: 0 }
    model_warmup {
      name: "random" batch_size: 1 count: 2
      inputs { key: "I" value { data_type: TYPE_INT32 dims: [ 2, 500 ] random_data: true } }
      inputs { key: "B" value { data_type: TYPE_BOOL dims: [ 64 ] random_data: true } }
      inputs { key: "S" value { data_type: TYPE_STRING dims: [ 3 ] random_data: true } }
      inputs { key: "F" value { data_type: TYPE_FP32 dims: [ 4 ] random_data: true } }
    }
    model_warmup {
      name: "files" batch_size: 1
      inputs { key: "I" value { data_type: TYPE_INT32 dims: [ 2, 2 ] input_data_file: "ints" } }
      inputs { key: "B" value { data_type: TYPE_BOOL dims: [ 2 ] input_data_file: "sub/bools" } }
      inputs { key: "S" value { data_type: TYPE_STRING dims: [ 3 ] input_data_file: "texts" } }
      inputs { key: "F" value { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } }
      inputs { key: "D" value { data_type: TYPE_FP64 dims: [ 1 ] input_data_file: "double" } }
    }
    model_warmup {
      name: "controls" batch_size: 3
      inputs { key: "I" value { data_type: TYPE_INT32 dims: [ 2, 1 ] zero_data: true } }
      inputs { key: "B" value { data_type: TYPE_BOOL dims: [ 0 ] zero_data: true } }
      inputs { key: "S" value { data_type: TYPE_STRING dims: [ 3 ] zero_data: true } }
      inputs { key: "F" value { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } }
      inputs { key: "START" value { data_type: TYPE_INT32 dims: [ 1 ] input_data_file: "one" } }
    }
    """
    folder = write_model(repository, "m", RECORDER, config)
    (folder / "warmup" / "sub").mkdir(parents=True)
    (folder / "warmup" / "ints").write_bytes(np.array([1, 2, 3, 4, 5], np.int32).tobytes())
    (folder / "warmup" / "sub" / "bools").write_bytes(b"\x01\x00")
    (folder / "warmup" / "texts").write_bytes(b"\x01\0\0\0a\0\0\0\0\x02\0\0\0\xc3\xa9")
    (folder / "warmup" / "double").write_bytes(np.float64(2.5).tobytes())
    (folder / "warmup" / "one").write_bytes(np.int32(1).tobytes())
    with Serving(repository) as server:
        server.wait_until_ready()
        executions = seen(repository, "m")
    no_texts = ["|O", [1, 3], ["", "", ""]]
    no_floats = ["<f4", [1, 2, 2], [0.0] * 4]
    assert {name for name, *_ in executions} == {"m_0"}
    first, *random, files, controls = [requests for _, *requests in executions]
    assert first == 2 * [
        {"I": ["<i4", [1, 2, 3], [0.0] * 6], "B": ["|b1", [1, 1], [0.0]], "S": no_texts, "F": no_floats}
    ]
    assert len(random) == 2
    for (request,) in random:
        assert (request["I"][1], request["B"][1], request["S"]) == ([1, 2, 500], [1, 64], no_texts)
        # A sum that is 0 or 1 for every one of so many bytes is no accident.
        assert request["I"][2] > 1
        assert set(request["B"][2]) == {0.0, 1.0}
    assert random[0][0]["B"] != random[1][0]["B"]
    assert files == [
        {
            "I": ["<i4", [1, 2, 2], [1.0, 2.0, 3.0, 4.0]],
            "B": ["|b1", [1, 2], [1.0, 0.0]],
            "S": ["|O", [1, 3], ["a", "", "é"]],
            "F": no_floats,
            "D": ["<f8", [1, 1], [2.5]],
        }
    ]
    assert [request["START"] for request in controls] == 3 * [["<i4", [1, 1], [1.0]]]


def test_each_instance_is_warm_before_it_is_ready(repository: Path) -> None:
    """Its batches are counted, and logged at verbose 1; a passive instance executes nothing."""
    groups = """
    instance_group [ { count: 2 kind: KIND_CPU }, { name: "p" kind: KIND_CPU passive: true } ]
    """
    samples = zeros("a", "batch_size: 2 count: 3") + zeros("b", "batch_size: 1")
    write_model(repository, "m", RECORDER, IO + groups + samples)
    with Serving(repository, "--log-verbose=1") as server:
        server.wait_until_ready()
        server.wait_for_all("is running warmup sample", 8)
        output = server.output
        statistics = server.statistics("m")
        metrics = server.metrics().body.decode()
    for instance in ("m_0_0", "m_0_1"):
        lines = [line for line in output.splitlines() if f"instance {instance} is running" in line]
        assert [line.partition("] ")[2].strip('"') for line in lines] == [
            *(f"model 'm' instance {instance} is running warmup sample 'a' for iteration {n}" for n in (1, 2, 3)),
            f"model 'm' instance {instance} is running warmup sample 'b' for iteration 1",
        ]
    assert "instance p_0" not in output
    assert sorted((name, len(requests)) for name, *requests in seen(repository, "m")) == [
        ("m_0_0", 1), ("m_0_0", 2), ("m_0_0", 2), ("m_0_0", 2),
        ("m_0_1", 1), ("m_0_1", 2), ("m_0_1", 2), ("m_0_1", 2),
    ]  # fmt: skip
    assert (statistics["inference_count"], statistics["execution_count"]) == (14, 8)
    assert statistics["last_inference"] > 0
    assert statistics["inference_stats"]["success"]["count"] == 14
    assert [row["batch_size"] for row in statistics["batch_stats"]] == [1, 2]
    assert 'nv_inference_exec_count{model="m",version="1"} 8' in metrics


def test_a_warm_up_that_fails_fails_the_load(repository: Path) -> None:
    """With upstream's texts, and nothing of the model is left."""
    raising = """
    import os
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            {}
    """
    one = zeros("w", "batch_size: 2")
    response = (
        'return [pb_utils.InferenceResponse(error=pb_utils.TritonError(f"no {i}")) for i in range(len(requests))]'
    )
    write_model(repository, "raises", raising.format('raise ValueError("not yet")'), IO + one)
    write_model(repository, "answers", raising.format(response), IO + one)
    write_model(repository, "dies", raising.format("os._exit(7)"), IO + one)
    write_model(repository, "none_given", RECORDER, IO + zeros("w", "batch_size: 1", kind=""))
    write_model(repository, "variable", RECORDER, IO + zeros("w", "batch_size: 1", dims="-1"))
    single = zeros("w", "batch_size: 1")
    write_model(repository, "unknown", RECORDER, IO + single.replace('"IN"', '"X"'))
    write_model(repository, "wrong_type", RECORDER, IO + single.replace("TYPE_INT32", "TYPE_FP32"))
    write_model(repository, "wrong_shape", RECORDER, IO + zeros("w", "batch_size: 1", dims="2, 2"))
    write_model(repository, "no_file", RECORDER, IO + zeros("w", "batch_size: 1", kind='input_data_file: "x"'))
    short = write_model(repository, "short", RECORDER, IO + zeros("w", "batch_size: 1", kind='input_data_file: "x"'))
    (short / "warmup").mkdir()
    (short / "warmup" / "x").write_bytes(b"1234567")
    with Serving(repository, "--exit-on-error=false", "--log-verbose=1") as server:
        server.wait_for("model 'raises' instance raises_0 failed to run warmup sample 'w'")
        reason = failure(server, "raises")
        assert reason.startswith("Invalid argument: failed to run warmup sample 'w': Failed to process the request(s)")
        assert reason.count("not yet") == 2
        assert reason.endswith("; ")
        assert failure(server, "answers") == "Invalid argument: failed to run warmup sample 'w': no 0; no 1; "
        dies = failure(server, "dies")
        assert dies.startswith(
            "Invalid argument: failed to run warmup sample 'w': Stub process 'dies_0' is not healthy: "
        )
        assert "exited with code 7" in dies
        unknown = "Invalid argument: [request id: <id_unknown>] "
        assert failure(server, "none_given") == (
            f"{unknown}warmup setting expects input 'IN' to have input_data_type set"
        )
        assert failure(server, "variable") == (
            "Invalid argument: warmup setting expects all variable-size dimensions are specified for input 'IN'"
        )
        assert failure(server, "unknown").startswith(f"{unknown}expected 1 inputs but got 0 inputs")
        assert failure(server, "wrong_type") == (
            f"{unknown}inference input 'IN' data-type is 'FP32', but model 'wrong_type' expects 'INT32'"
        )
        assert failure(server, "wrong_shape").startswith(f"{unknown}unexpected shape for input 'IN'")
        assert failure(server, "no_file") == (
            f"Internal: failed to open text file for read {repository}/no_file/warmup/x: No such file or directory"
        )
        assert failure(server, "short") == (
            f"{unknown}warmup setting expects 8 bytes, but the data provided from xonly has 7 bytes"
        )
        assert eventually(lambda: not server.stub_pids())


def test_memory_is_given_back_batch_by_batch(repository: Path) -> None:
    """Also that of outputs, and of inputs that the model passes on or keeps for a while."""
    source = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            self.kept = requests[0].inputs()[0].as_numpy()
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
    """
    config = IO.replace('"OUT" data_type: TYPE_INT32 dims: [ 1 ]', '"OUT" data_type: TYPE_INT32 dims: [ -1 ]')
    large = zeros("w", "batch_size: 2 count: 12", dims=str(2 << 20), kind="random_data: true")
    write_model(repository, "m", source, config + large)
    # 12 times 2 inputs and as many outputs of 8 MiB are six times as much.
    with Serving(repository, "--shm-limit=64M") as server:
        server.wait_until_ready()
        assert server.statistics("m")["execution_count"] == 12


def test_a_stub_that_is_started_anew_is_warmed_up_too(repository: Path) -> None:
    write_model(repository, "m", RECORDER, IO + zeros("w", "batch_size: 1"))
    with Serving(repository) as server:
        server.wait_until_ready()
        assert len(seen(repository, "m")) == 1
        os.kill(server.stub_pids()[0], signal.SIGKILL)
        server.wait_for("instance 'm_0' is back")
        assert len(seen(repository, "m")) == 2
        # Not ready before it is warm, so no request can have come in between.
        server.wait_until_ready()


def test_reloads_and_other_instances(repository: Path) -> None:
    """What is new is warmed up, what stays is not; a reload that fails at that leaves what serves alone."""
    config = IO + zeros("w", "batch_size: 1") + "instance_group [ { count: 1 kind: KIND_CPU } ]"
    folder = write_model(repository, "m", RECORDER, config)
    with Serving(repository, "--model-control-mode=explicit", "--load-model=m") as server:
        server.wait_until_ready()
        more = config.replace("count: 1 kind", "count: 3 kind")
        (folder / "config.pbtxt").write_text(more)
        assert server.request("POST", "/v2/repository/models/m/load", b"{}").status == 200
        assert len(server.stub_pids()) == 3
        names = [name for name, *_ in seen(repository, "m")]
        assert len(names) == len(set(names)) == 3
        assert server.statistics("m")["execution_count"] == 3
        (folder / "config.pbtxt").write_text(IO + zeros("bad", "batch_size: 1", dims="-1"))
        refused = server.request("POST", "/v2/repository/models/m/load", b"{}")
        assert "warmup setting expects all variable-size dimensions" in refused.error
        ask = [{"name": "IN", "datatype": "INT32", "shape": [1, 1], "data": [1]}]
        assert server.infer_json("m", ask).status == 200


def test_samples_of_a_configuration_that_comes_with_a_load(repository: Path) -> None:
    """Their files come with it too."""
    write_model(repository, "m", RECORDER, IO)
    with Serving(repository, "--model-control-mode=explicit", "--load-model=m") as server:
        server.wait_until_ready()
        config = {
            "backend": "python",
            "max_batch_size": 4,
            "input": [{"name": "IN", "data_type": "TYPE_INT32", "dims": [-1]}],
            "output": [{"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]}],
            "model_warmup": [
                {
                    "name": "w",
                    "batch_size": 1,
                    "inputs": {"IN": {"data_type": "TYPE_INT32", "dims": [1], "input_data_file": "x"}},
                }
            ],
        }
        parameters = {
            "config": json.dumps(config),
            "file:1/model.py": _base64((repository / "m" / "1" / "model.py").read_bytes()),
            "file:warmup/x": _base64(b"\x2a\0\0\0"),
        }
        body = json.dumps({"parameters": parameters}).encode()
        assert server.request("POST", "/v2/repository/models/m/load", body).status == 200
        assert server.statistics("m")["execution_count"] == 1


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


DECOUPLED = """
    import threading
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.threads = []

        def execute(self, requests):
            for request in requests:
                thread = threading.Thread(target=self.answer, args=(request.get_response_sender(), {answers}))
                thread.start()
                self.threads.append(thread)

        def answer(self, sender, answers):
            for number in range(answers):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full((1, 1), number, np.int32))]))
            {last}
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def test_decoupled_models(repository: Path) -> None:
    """Every response is waited for, longer than `execute` takes, and more than a sender may have unread."""
    config = IO + "model_transaction_policy { decoupled: true }" + zeros("w", "batch_size: 2 count: 2")
    write_model(repository, "m", DECOUPLED.format(answers=300, last="pass"), config)
    error = 'sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("no more")))'
    write_model(repository, "fails", DECOUPLED.format(answers=1, last=error), config)
    with Serving(repository, "--exit-on-error=false") as server:
        server.wait_for("failed to load 'fails'")
        assert failure(server, "fails") == "Invalid argument: failed to run warmup sample 'w': no more; no more; "
        statistics = server.statistics("m")
    assert statistics["execution_count"] == 2
    assert statistics["inference_count"] == 4


def test_models_that_call_others(repository: Path) -> None:
    """While a model warms up it calls those that serve; one that calls itself finds nobody."""
    caller = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.other = "{other}"
            assert not self.other or pb_utils.load_model(self.other) is None

        def execute(self, requests):
            call = pb_utils.InferenceRequest(
                inputs=requests[0].inputs(), requested_output_names=["OUT"], model_name=self.other or "alone"
            )
            answer = call.exec()
            if answer.has_error():
                raise ValueError(answer.error().message())
            return [pb_utils.InferenceResponse(answer.output_tensors())]
    """
    write_model(repository, "callee", RECORDER, IO)
    write_model(repository, "caller", caller.format(other="callee"), IO + zeros("w", "batch_size: 1"))
    write_model(repository, "alone", caller.format(other=""), IO + zeros("w", "batch_size: 1"))
    with Serving(repository, "--model-control-mode=explicit") as server:
        assert server.request("POST", "/v2/repository/models/caller/load", b"{}").status == 200
        assert seen(repository, "callee") == [["callee_0", {"IN": ["<i4", [1, 2], [0.0, 0.0]]}]]
        refused = server.request("POST", "/v2/repository/models/alone/load", b"{}")
        assert refused.status == 400
        assert "failed to run warmup sample 'w': " in refused.error
        assert "'alone'" in refused.error


def test_a_model_that_hangs_is_ended_as_in_any_batch(repository: Path) -> None:
    source = """
    import time

    class TritonPythonModel:
        def execute(self, requests):
            time.sleep(600)
    """
    limit = 'parameters { key: "EXECUTE_TIMEOUT_SECS" value { string_value: "0.2" } }'
    write_model(repository, "m", source, IO + limit + zeros("w", "batch_size: 1"))
    with Serving(repository, "--exit-on-error=false") as server:
        server.wait_for("failed to load 'm'")
        assert "than the 0.2 s that EXECUTE_TIMEOUT_SECS allows" in failure(server, "m")


def test_a_load_that_is_given_up_while_it_warms_up(repository: Path) -> None:
    """The server ends at once, with the stub."""
    source = """
    import time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            pb_utils.Logger.log_info("it is being warmed up")
            time.sleep(600)
    """
    write_model(repository, "m", source, IO + zeros("w", "batch_size: 1", dims="100000"))
    server = Serving(repository, "--exit-timeout-secs=5")
    server.start()
    try:
        server.wait_for("it is being warmed up")
        (stub,) = server.stub_pids()
    finally:
        assert server.stop() == 0
    assert not Path(f"/proc/{stub}").exists()


def test_native_backends(repository: Path) -> None:
    """Warmed up like models in Python."""
    config = """
    backend: "identity"
    max_batch_size: 4
    input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
    output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
    model_warmup {
      name: "w" batch_size: 3
      inputs { key: "INPUT0" value { data_type: TYPE_FP32 dims: [ 5000 ] random_data: true } }
    }
    """
    write_model(repository, "m", "", config)
    with Serving(repository) as server:
        server.wait_until_ready()
        statistics = server.statistics("m")
    assert (statistics["inference_count"], statistics["execution_count"]) == (3, 1)


def write_ensemble(repository: Path, name: str, *members: str, more: str = "") -> Path:
    """A chain of models that take IN and give OUT."""
    ends = ["IN", *(f"t{number}" for number in range(1, len(members))), "OUT"]
    steps = "".join(
        f"""step {{ model_name: "{member}" model_version: -1
        input_map {{ key: "IN" value: "{ends[at]}" }} output_map {{ key: "OUT" value: "{ends[at + 1]}" }} }}"""
        for at, member in enumerate(members)
    )
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    io = IO.replace('backend: "python"', 'platform: "ensemble"')
    (folder / "config.pbtxt").write_text(f"{io} ensemble_scheduling {{ {steps} }} {more}")
    return folder


def test_samples_go_through_a_whole_ensemble(repository: Path) -> None:
    """All kinds of them, before it is ready, and again when it is loaded again because of a member."""
    write_model(repository, "first", RECORDER, IO + zeros("own", "batch_size: 1", dims="1"))
    write_model(repository, "second", RECORDER, IO)
    more = zeros("zeros", "batch_size: 3 count: 2") + zeros("skipped", "batch_size: 0")
    more += zeros("random", "batch_size: 1", dims="5000", kind="random_data: true")
    more += zeros("file", "batch_size: 1", dims="3", kind='input_data_file: "ints"')
    folder = write_ensemble(repository, "inner", "first", "second", more=more)
    (folder / "warmup").mkdir()
    (folder / "warmup" / "ints").write_bytes(np.array([1, 2, 3], np.int32).tobytes())
    write_ensemble(repository, "outer", "inner", more=zeros("outer", "batch_size: 1", dims="7"))

    def given(model: str) -> list[Any]:
        return [request["IN"][1:] for _, *requests in seen(repository, model) for request in requests]

    flags = ("--model-control-mode=explicit", "--load-model=outer", "--metrics-config=histogram_latencies=true")
    with Serving(repository, *flags) as server:
        server.wait_until_ready()
        own, *three, random, file, outer = given("first")
        assert own == [[1, 1], [0]]
        assert three == 6 * [[[1, 2], [0, 0]]]
        assert random[0] == [1, 5000]
        assert random[1] > 1
        assert (file, outer) == ([[1, 3], [1, 2, 3]], [[1, 7], [0] * 7])
        # Each answer of the first is one 0
        assert given("second") == 9 * [[[1, 1], [0]]]
        assert server.statistics("outer")["inference_count"] == 1
        assert server.statistics("inner")["inference_count"] == 9
        assert 'first_response_histogram_ms_count{model="outer",version="1"} 0' in server.metrics().body.decode()
        (repository / "second" / "1" / "more").touch()
        assert server.request("POST", "/v2/repository/models/second/load", b"{}").status == 200
        assert given("second") == 18 * [[[1, 1], [0]]]


def test_a_sample_that_fails_in_an_ensemble_fails_its_load(repository: Path) -> None:
    failing = "import triton_python_backend_utils as pb_utils\nclass TritonPythonModel:\n"
    failing += "    def execute(self, requests):\n        raise ValueError('no')\n"
    write_model(repository, "good", RECORDER, IO)
    write_model(repository, "bad", failing, IO)
    write_ensemble(repository, "fails", "good", "bad", more=zeros("w", "batch_size: 2"))
    write_ensemble(repository, "odd", "good", more=zeros("w", "batch_size: 1").replace('"IN"', '"NOSUCH"'))
    write_ensemble(repository, "large", "good", more=zeros("w", "batch_size: 5"))
    with Serving(repository, "--model-control-mode=explicit") as server:
        for name, text in (
            ("fails", "failed to run warmup sample 'w': in ensemble 'fails', "),
            ("odd", "unexpected inference input 'NOSUCH' for model 'odd'"),
            ("large", "batch size 5 for 'large', max allowed is 4"),
        ):
            refused = server.request("POST", f"/v2/repository/models/{name}/load", b"{}")
            assert refused.status == 400
            assert text in refused.error
            assert text in failure(server, name)
            assert server.get(f"/v2/models/{name}/ready").status != 200
        assert "ValueError: no" in failure(server, "fails")
    found = [problem.text for problem in check_repositories([repository], repository / "no_backends").problems]
    assert found == [
        "batch size 5 for 'large', max allowed is 4",
        "unexpected inference input 'NOSUCH' for model 'odd'",
    ]


def test_a_load_that_is_given_up_while_an_ensemble_warms_up(repository: Path) -> None:
    hangs = """
    import time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            pb_utils.Logger.log_info("it is being warmed up")
            time.sleep(600)
    """
    write_model(repository, "hangs", hangs, IO)
    write_ensemble(repository, "whole", "hangs", more=zeros("w", "batch_size: 1", dims="100000"))
    server = Serving(repository, "--exit-timeout-secs=1")
    server.start()
    try:
        server.wait_for("it is being warmed up")
        (stub,) = server.stub_pids()
    finally:
        assert server.stop() == 0
    assert not Path(f"/proc/{stub}").exists()
