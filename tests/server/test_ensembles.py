"""Ensembles on a real server: what flows, what becomes of it when members fail, and members that come and go."""

from __future__ import annotations

import base64
import json
import os
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format, text_format

from stubserve.model_config.proto import ModelConfig
from tests.real_server import IDENTITY, Serving, binary_output, eventually, io_config, write_model
from tests.server.ensembles import (
    COUNTER,
    DECOUPLED,
    MORTAL,
    WRITER,
    load,
    one,
    run,
    step,
    unload,
    values,
    write_chain,
    write_ensemble,
)
from tests.server.grpc_calls import connected
from tests.server.grpc_calls import request as grpc_request

EXPLICIT = "--model-control-mode=explicit"

# Adds all its inputs.
JOIN = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse([
                    pb_utils.Tensor("OUTPUT0", sum(tensor.as_numpy() for tensor in request.inputs()))
                ])
                for request in requests
            ]
"""

# After the identity: tells, and begins when it is told.
SLOW_START = """
        def initialize(self, args):
            import os
            print("waiting to begin", flush=True)
            with open(os.environ["GATE"]) as gate:
                gate.read()
"""

# Makes `array` of each request.
EACH = """
    import os
    import time
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for one in requests:
                WORK
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]))
            return responses
"""

# Calls the model that its parameter names.
CALLER = """
    import json
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.target = json.loads(args["model_config"])["parameters"]["target"]["string_value"]

        def execute(self, requests):
            responses = []
            for request in requests:
                call = pb_utils.InferenceRequest(
                    model_name=self.target, requested_output_names=["OUTPUT0"], inputs=request.inputs()
                )
                answer = call.exec()
                if answer.has_error():
                    responses.append(pb_utils.InferenceResponse(error=answer.error()))
                else:
                    output = pb_utils.Tensor("OUTPUT0", answer.output_tensors()[0].as_numpy())
                    responses.append(pb_utils.InferenceResponse([output]))
            return responses
"""

# Answers with its input, and with the most memory that Python objects had since the request before, in bytes.
MEASURED = """
    import tracemalloc
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            tracemalloc.start()

        def execute(self, requests):
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.reset_peak()
            array = requests[0].inputs()[0].as_numpy()
            outputs = [pb_utils.Tensor("OUTPUT0", array), pb_utils.Tensor("PEAK", np.array([peak], np.float32))]
            return [pb_utils.InferenceResponse(outputs)]
"""


def calls(target: str) -> str:
    """The configuration of a CALLER."""
    return io_config(extra=f'parameters {{ key: "target" value {{ string_value: "{target}" }} }}')


def write_join(repository: Path, name: str, count: int) -> None:
    inputs = "".join(f'input {{ name: "IN{number}" data_type: TYPE_FP32 dims: -1 }}\n' for number in range(count))
    write_model(repository, name, JOIN, f'{inputs}output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: -1 }}')


@pytest.mark.parametrize("size", [2, 100_000])
def test_a_chain_and_a_fan_of_models_that_write_to_their_input(repository: Path, size: int) -> None:
    """Small tensors travel in messages, large ones lie where all can read them; nobody sees what others write."""
    for number in range(4):
        write_model(repository, f"writer{number}", WRITER)
    write_join(repository, "join", 5)
    write_chain(repository, "chain", "writer0", "writer1", "writer2")
    write_ensemble(
        repository,
        "fan",
        *(one(f"writer{number}", "INPUT0", f"part{number}") for number in range(4)),
        step(
            "join",
            {**{f"IN{number}": f"part{number}" for number in range(4)}, "IN4": "INPUT0"},
            {"OUTPUT0": "OUTPUT0"},
        ),
    )
    array = np.arange(size, dtype=np.float32)
    with Serving(repository) as server, ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            chains = pool.map(lambda _: server.infer_array("chain", array), range(8))
            fans = pool.map(lambda _: server.infer_array("fan", array), range(8))
            for answer in chains:
                np.testing.assert_array_equal(binary_output(answer), array + 3)
            for answer in fans:
                np.testing.assert_array_equal(binary_output(answer), 5 * array + 4)
        statistics = server.statistics("fan")
        assert statistics["inference_stats"]["success"]["count"] == statistics["execution_count"] == 24


def test_a_large_tensor_is_not_copied_between_steps(repository: Path) -> None:
    nbytes = 4 << 20
    peaks = [f"PEAK{number}" for number in range(3)]
    for number in range(3):
        config = io_config(extra='output [ { name: "PEAK" data_type: TYPE_FP32 dims: [ 1 ] } ]')
        write_model(repository, f"step{number}", MEASURED, config)
    ends = ["INPUT0", "a", "b", "OUTPUT0"]
    steps = [
        step(f"step{number}", {"INPUT0": ends[number]}, {"OUTPUT0": ends[number + 1], "PEAK": peaks[number]})
        for number in range(3)
    ]
    write_ensemble(repository, "chain", *steps, outputs=" ".join(["OUTPUT0", *peaks]))
    with Serving(repository) as server, connected(server) as grpc:
        array = np.arange(nbytes // 4, dtype=np.float32)
        message = grpc_request("chain", shape=[nbytes // 4], raw=[array.tobytes()])
        # The peak of the first is told by the second.
        grpc.infer(message)
        answer = grpc.infer(message)
        found = dict(
            zip([output.name for output in answer.outputs], answer.raw_output_contents, strict=True),
        )
        np.testing.assert_array_equal(np.frombuffer(found["OUTPUT0"], np.float32), array)
        for peak in peaks:
            assert np.frombuffer(found[peak], np.float32)[0] < nbytes / 4


def test_a_member_whose_stub_dies(repository: Path) -> None:
    write_model(repository, "first")
    write_model(repository, "mortal", MORTAL)
    write_chain(repository, "chain", "first", "mortal", "first")
    with Serving(repository) as server:
        answer = run(server, "chain", -1)
        assert answer.status == 500
        assert answer.error.startswith("in ensemble 'chain', ")
        assert "SIGKILL" in answer.error
        # It is started again.
        eventually(lambda: server.get("/v2/models/chain/ready").status == 200)
        assert values(run(server, "chain", 5)) == [5]
        assert server.statistics("chain")["inference_stats"]["fail"]["count"] == 1


def test_a_member_that_is_down(repository: Path) -> None:
    write_model(repository, "mortal", MORTAL)
    write_chain(repository, "chain", "mortal")
    with Serving(repository, "--stub-restart-limit=0") as server:
        assert run(server, "chain", -1).status == 500
        eventually(lambda: server.get("/v2/models/chain/ready").status != 200)
        answer = run(server, "chain", 1)
        assert answer.status == 503
        assert answer.error.startswith("in ensemble 'chain', model 'mortal' version 1 has no running instance: ")
        (row,) = [row for row in server.request("POST", "/v2/repository/index").json() if row["name"] == "chain"]
        assert row["state"] == "UNAVAILABLE"
        assert row["reason"].startswith("its member 'mortal' is not ready: ")


def test_members_come_and_go(repository: Path) -> None:
    write_model(repository, "first")
    write_chain(repository, "chain", "first", "first")
    write_chain(repository, "outer", "chain", "first")
    with Serving(repository, EXPLICIT) as server:
        assert load(server, "outer").status == 200
        assert values(run(server, "outer", 1)) == [1]
        assert unload(server, "first").status == 200
        for model in ("chain", "outer"):
            assert run(server, model, 1).status == 404
        # Both come back with it.
        assert load(server, "first").status == 200
        assert values(run(server, "outer", 1)) == [1]
        # A member that does another thing, then one that fits no more.
        write_model(repository, "first", WRITER)
        assert load(server, "first").status == 200
        assert values(run(server, "outer", 1)) == [4]
        write_model(repository, "first", WRITER, io_config("INT32"))
        assert load(server, "first").status == 200
        assert run(server, "chain", 1).status == 404
        server.wait_for("inconsistent data type: TYPE_FP32 is inferred from model chain while TYPE_INT32 is inferred")


@pytest.mark.parametrize(("asked", "gone"), [("pipe", "dep"), ("pipe", "echo"), ("outer", "dep"), ("outer", "pipe")])
def test_a_member_that_is_unloaded_while_its_ensemble_is_loading(
    repository: Path, tmp_path: Path, asked: str, gone: str
) -> None:
    """Both succeed, as if one had come after the other: the unload takes the ensemble along."""
    os.mkfifo(tmp_path / "gate")
    write_model(repository, "echo")
    write_model(repository, "dep", IDENTITY + SLOW_START)
    write_chain(repository, "pipe", "echo", "dep")
    write_chain(repository, "outer", "echo", "pipe")
    environment = {"GATE": str(tmp_path / "gate")}
    with Serving(repository, EXPLICIT, environment=environment) as server, ThreadPoolExecutor() as clients:
        loading = clients.submit(load, server, asked)
        server.wait_for("waiting to begin")
        eventually(lambda: "READY" in server.request("POST", "/v2/repository/index").body.decode())
        unloading = server.connect()
        unloading.request("POST", f"/v2/repository/models/{gone}/unload", b"{}")
        assert server.get("/v2/health/live").status == 200  # what was sent before has been read
        (tmp_path / "gate").write_text("go")
        assert loading.result().status == 200, loading.result()
        assert unloading.getresponse().status == 200
        unloading.close()
        for name in {asked, "pipe", gone}:
            answer = server.infer_array(name, np.ones(1, np.float32))
            assert answer.error == f"Request for unknown model: '{name}' has no available versions"
        going = clients.submit(load, server, gone)
        if gone == "dep":
            (tmp_path / "gate").write_text("go")
        assert going.result().status == 200
        assert values(run(server, asked, 3)) == [3]


def test_what_an_ensemble_has_brought_goes_with_it(repository: Path) -> None:
    for name in ("asked_for", "brought", "shared"):
        write_model(repository, name)
    write_chain(repository, "chain", "asked_for", "brought", "shared")
    write_chain(repository, "other", "shared")
    with Serving(repository, EXPLICIT) as server:
        for name in ("asked_for", "chain", "other"):
            assert load(server, name).status == 200
        assert unload(server, "chain", dependents=True).status == 200
        ready = {
            name: server.get(f"/v2/models/{name}/ready").status == 200 for name in ("asked_for", "brought", "shared")
        }
        assert ready == {"asked_for": True, "brought": False, "shared": True}
        assert values(run(server, "other", 1)) == [1]


def test_a_request_under_way_keeps_its_members(repository: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    write_model(
        repository,
        "slow",
        f"""
        import os
        import time
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                print("executing", flush=True)
                while not os.path.exists({str(gate)!r}):
                    time.sleep(0.01)
                return [
                    pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
                    for request in requests
                ]
        """,
    )
    write_model(repository, "last")
    write_chain(repository, "chain", "slow", "last")
    with Serving(repository, EXPLICIT) as server, ThreadPoolExecutor(1) as pool:
        load(server, "chain")
        answer = pool.submit(run, server, "chain", 3)
        server.wait_for("executing")
        assert unload(server, "last").status == 200
        assert run(server, "chain", 3).status == 404
        gate.touch()
        assert values(answer.result()) == [3]
        server.wait_for("successfully unloaded 'last' version 1")


def test_a_start_with_ensembles_that_cannot_be_served(repository: Path) -> None:
    write_model(repository, "good")
    write_model(repository, "bad", "raise ValueError('this is bad')")
    write_chain(repository, "a_good", "good")
    write_chain(repository, "b_bad", "bad")
    write_chain(repository, "c_circle", "d_circle")
    write_chain(repository, "d_circle", "c_circle")
    write_chain(repository, "e_unknown", "nosuch")
    with Serving(repository, "--exit-on-error=false") as server:
        assert values(run(server, "a_good", 1)) == [1]
        rows = {row["name"]: row.get("reason", "") for row in server.request("POST", "/v2/repository/index").json()}
        assert rows["b_bad"].startswith(
            "ensemble 'b_bad' depends on 'bad' which has no loaded version. Model 'bad' loading failed with error: "
            "version 1 is at UNAVAILABLE state: "
        )
        assert rows["c_circle"] == "circular dependency between ensembles: c_circle -> ... -> d_circle -> c_circle"
        assert rows["e_unknown"] == "ensemble e_unknown contains models that are not available or ambiguous: nosuch"


def test_polling_follows_members(repository: Path) -> None:
    write_model(repository, "first")
    write_chain(repository, "chain", "first")
    with Serving(repository, "--model-control-mode=poll", "--repository-poll-secs=1") as server:
        assert values(run(server, "chain", 1)) == [1]
        write_model(repository, "first", WRITER)
        eventually(lambda: values(run(server, "chain", 1)) == [2])
        (repository / "first").rename(repository.parent / "away")
        eventually(lambda: run(server, "chain", 1).status == 404)
        (repository.parent / "away").rename(repository / "first")
        eventually(lambda: run(server, "chain", 1).status == 200)


def test_a_model_calls_an_ensemble(repository: Path) -> None:
    write_model(repository, "writer", WRITER)
    write_chain(repository, "chain", "writer", "writer")
    write_model(repository, "caller", CALLER, calls("chain"))
    with Serving(repository) as server:
        assert values(run(server, "caller", 1, 2)) == [3, 4]


def test_a_model_that_calls_itself_through_an_ensemble_is_told_so(repository: Path) -> None:
    write_model(repository, "writer", WRITER)
    write_model(repository, "caller", CALLER, calls("chain"))
    write_chain(repository, "chain", "writer", "caller")
    with Serving(repository) as server:
        answer = run(server, "caller", 1)
        assert answer.status == 500
        assert "caller_0 -> chain -> caller_0" in answer.error


@pytest.mark.parametrize("count", [0, 1, 3, 300])
def test_a_stream_through_an_ensemble(repository: Path, count: int) -> None:
    write_model(repository, "counter", COUNTER, io_config(extra=DECOUPLED))
    write_model(repository, "writer", WRITER)
    write_chain(repository, "chain", "counter", "writer")
    with Serving(repository) as server, connected(server) as grpc:
        answers = grpc.stream(grpc_request("chain", [float(count)]))
        numbers = [np.frombuffer(answer.infer_response.raw_output_contents[0], np.float32)[0] for answer in answers]
        assert numbers == [number + 1 for number in range(count)]
        assert server.get("/v2/models/chain/config").json()["model_transaction_policy"] == {"decoupled": True}
        answer = server.request("POST", "/v2/models/chain/generate_stream", json.dumps({"INPUT0": [count]}).encode())
        events: list[dict[str, Any]] = [
            json.loads(line.removeprefix(b"data: ")) for line in answer.body.splitlines() if line
        ]
        assert [event["OUTPUT0"] for event in events] == [number + 1 for number in range(count)]


def test_steps_that_are_paused_and_wait_for_each_other(repository: Path) -> None:
    """A step that is paused keeps the only instance of its model, and a later step may need that to catch up."""
    for name in ("counter", "other"):
        write_model(repository, name, COUNTER, io_config(extra=DECOUPLED))
    stream = CALLER.replace("answer = call.exec()", "answer = next(call.exec(decoupled=True))")
    write_model(repository, "caller", stream.replace("answer.output_tensors()", "request.inputs()"), calls("counter"))
    write_chain(repository, "there", "counter", "other")
    write_chain(repository, "back", "other", "counter")
    write_chain(repository, "round", "counter", "caller")
    count = 90  # more than may be under way between two steps
    with Serving(repository) as server, connected(server) as grpc, ThreadPoolExecutor() as clients:

        def ask(ensemble: str) -> int:
            return len(grpc.stream(grpc_request(ensemble, [float(count)])))

        assert ask("round") == count
        assert list(clients.map(ask, ("there", "back"))) == [sum(range(count))] * 2


def test_a_client_that_leaves_a_stream_stops_it(repository: Path) -> None:
    endless = COUNTER.replace("range(int(request.inputs()[0].as_numpy()[0]))", "endless(request)").replace(
        "class TritonPythonModel:",
        """def endless(request):
        number = 0
        while not request.is_cancelled():
            yield number
            number += 1
        print("the source has heard", flush=True)

    class TritonPythonModel:""",
    )
    write_model(repository, "counter", endless, io_config(extra=DECOUPLED))
    write_model(repository, "writer", WRITER)
    write_chain(repository, "chain", "counter", "writer")
    with Serving(repository) as server, connected(server) as grpc:
        responses = grpc.stub.ModelStreamInfer(iter([grpc_request("chain", [1.0])]))
        for _, _response in zip(range(10), responses, strict=False):
            pass
        responses.cancel()
        server.wait_for("the source has heard")
        eventually(lambda: server.statistics("chain")["inference_stats"]["fail"]["count"] == 1)


def test_a_limit_of_requests_in_flight_holds_back_the_step_before(repository: Path, tmp_path: Path) -> None:
    """Results of 4 MB that wait for a slow step do not pile up: with the limit 2 there are four at most."""
    decode = """
        array = np.full(1_000_000, one.inputs()[0].as_numpy()[0])
        with open(os.environ["LINES"], "a") as file:
            file.write("x")
    """
    slow = """
        decoded = os.stat(os.environ["LINES"]).st_size
        time.sleep(0.01)
        array = np.full(1, decoded, np.float32)
    """
    for name, work in (("decode", decode), ("slow", slow)):
        write_model(
            repository, name, EACH.replace("WORK", textwrap.dedent(work).strip().replace("\n", "\n" + " " * 16))
        )
    write_ensemble(
        repository, "pipe", one("decode", "INPUT0", "t"), one("slow", "t", "OUTPUT0"), "max_inflight_requests: 2"
    )
    lines = tmp_path / "lines"
    with Serving(repository, environment={"LINES": str(lines)}) as server, ThreadPoolExecutor(20) as clients:
        answers = clients.map(lambda number: values(run(server, "pipe", number)), range(60))
        seen = sorted(decoded for (decoded,) in answers)
    assert all(decoded <= finished + 4 for finished, decoded in enumerate(seen))


def test_an_output_that_no_step_has_made_is_named_in_the_log(repository: Path) -> None:
    other = 'output { name: "OTHER" data_type: TYPE_FP32 dims: -1 }'
    write_model(repository, "partial", WRITER, io_config(extra=other))
    made = step("partial", {"INPUT0": "INPUT0"}, {"OUTPUT0": "OUTPUT0", "OTHER": "left"})
    write_ensemble(repository, "pipe", made, outputs="OUTPUT0 left")
    with Serving(repository, "--log-verbose=1") as server:
        answer = server.infer_json("pipe", [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}])
        assert [(output["name"], output["data"]) for output in answer.json()["outputs"]] == [("OUTPUT0", [2])]
        server.wait_for("Composing models did not output tensor left")
        assert "did not output tensor OUTPUT0" not in server.output


def test_an_ensemble_of_files_follows_its_members(repository: Path) -> None:
    """Its configuration and its labels came with the load; no folder in the repository has them."""
    write_model(repository, "first")
    write_chain(repository.parent, "made", "first", "first")
    config = (repository.parent / "made" / "config.pbtxt").read_text()
    config = config.replace('name: "OUTPUT0" data_type', 'name: "OUTPUT0" label_filename: "labels.txt" data_type')
    as_json = json_format.MessageToJson(text_format.Parse(config, ModelConfig()), preserving_proto_field_name=True)
    labels = base64.b64encode(b"zero\none\ntwo\n").decode()
    parameters = {"config": as_json, "file:labels.txt": labels, "file:1/none": ""}
    with Serving(repository, EXPLICIT) as server:
        body = json.dumps({"parameters": parameters}).encode()
        assert server.request("POST", "/v2/repository/models/made/load", body).status == 200
        assert values(run(server, "made", 1, 2, 3)) == [1, 2, 3]
        for added, model in enumerate(["", WRITER, ""]):
            write_model(repository, "first", *([model] if model else []))
            assert load(server, "first").status == 200
            assert values(run(server, "made", 1, 2, 3)) == [1 + added % 2 * 2, 2 + added % 2 * 2, 3 + added % 2 * 2]
            tensor = {"name": "INPUT0", "shape": [3], "datatype": "FP32", "data": [1, 5, 2]}
            wanted = [{"name": "OUTPUT0", "parameters": {"classification": 1}}]
            answer = server.infer_json("made", [tensor], outputs=wanted)
            assert answer.json()["outputs"][0]["data"][0].endswith(":1:one")
