"""Sequence batching in a whole server: states that models keep, over every way in, deaths and reloads."""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.real_server import Answer, Serving, eventually, write_model

from .grpc_calls import connected
from .side_by_side import check_sums

# Adds up what each of its sequences has sent.
ADDER = """
    import json
    import os
    import numpy as np
    import triton_python_backend_utils as pb_utils

    STEP = 1

    class TritonPythonModel:
        def initialize(self, args):
            config = json.loads(args["model_config"])
            self.decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
            self.sums = {}

        def execute(self, requests):
            responses = []
            for slot, request in enumerate(requests):
                given = {tensor.name(): tensor.as_numpy().reshape(-1)[0] for tensor in request.inputs()}
                if given.get("READY", True):
                    key = request.correlation_id()
                    if given.get("START", request.flags() & 1):
                        self.sums[key] = 0
                    self.sums[key] += int(given["IN"]) * STEP
                    sum = self.sums.pop(key) if request.flags() & 2 else self.sums[key]
                else:
                    sum = -1
                seen = {"sum": sum, "slot": slot, "of": len(requests), "pid": os.getpid()}
                out = pb_utils.Tensor("OUT", np.array([[json.dumps(seen)]], dtype=object))
                response = pb_utils.InferenceResponse([out])
                if self.decoupled:
                    sender = request.get_response_sender()
                    for _ in range(600):
                        sender.send(response)
                    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                responses.append(response)
            return None if self.decoupled else responses
"""
CONTROLS = """
    control_input { name: "START" control { kind: CONTROL_SEQUENCE_START bool_false_true: [ false, true ] } }
    control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } }
"""


def config(strategy: str = "direct { }", more: str = "", batch: int = 4, idle_us: int = 600_000_000) -> str:
    return f"""
        backend: "python"
        max_batch_size: {batch}
        input [ {{ name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }} ]
        output [ {{ name: "OUT" data_type: TYPE_STRING dims: [ 1 ] }} ]
        sequence_batching {{ {strategy} max_sequence_idle_microseconds: {idle_us} {CONTROLS} }}
        {more}
    """


CALLER = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                sums = []
                for value, flags in ((5, 1), (6, 0), (7, 2)):
                    call = pb_utils.InferenceRequest(
                        model_name="adder",
                        requested_output_names=["OUT"],
                        inputs=[pb_utils.Tensor("IN", np.array([[value]], np.int32))],
                        correlation_id="called",
                        flags=flags,
                    )
                    answer = call.exec()
                    assert not answer.has_error(), answer.error().message()
                    sums.append(json.loads(answer.output_tensors()[0].as_numpy()[0, 0])["sum"])
                text = np.array([json.dumps(sums)], dtype=object)
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("SUMS", text)]))
            return responses
"""
CALLER_CONFIG = """
    backend: "python"
    input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
    output [ { name: "SUMS" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
ENSEMBLE = """
    platform: "ensemble"
    max_batch_size: 4
    input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
    output [ { name: "Y" data_type: TYPE_STRING dims: [ 1 ] } ]
    ensemble_scheduling { step [ {
        model_name: "adder" model_version: -1
        input_map { key: "IN" value: "X" } output_map { key: "OUT" value: "Y" }
    } ] }
"""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "adder", ADDER, config())
    write_model(repository, "oldest", ADDER, config("oldest { max_candidate_sequences: 2 }"))
    write_model(repository, "short", ADDER, config(batch=1, idle_us=200_000))
    write_model(repository, "streams", ADDER, config(more="model_transaction_policy { decoupled: true }"))
    write_model(repository, "caller", CALLER, CALLER_CONFIG)
    (repository / "ensemble" / "1").mkdir(parents=True)
    (repository / "ensemble" / "config.pbtxt").write_text(ENSEMBLE)
    with Serving(repository) as server:
        server.wait_until_ready()
        yield server


def add(serving: Serving, model: str, sequence: int | str, value: int, flag: str = "", name: str = "IN") -> Answer:
    parameters = {"sequence_id": sequence, "sequence_start": flag in ("start", "both")}
    parameters["sequence_end"] = flag in ("end", "both")
    tensor = {"name": name, "datatype": "INT32", "shape": [1, 1], "data": [value]}
    return serving.infer_json(model, [tensor], parameters=parameters)


def seen(answer: Answer) -> dict[str, Any]:
    assert answer.status == 200, answer
    found: dict[str, Any] = json.loads(answer.json()["outputs"][0]["data"][0])
    return found


def total(*answers: Answer) -> list[int]:
    return [seen(answer)["sum"] for answer in answers]


@pytest.mark.parametrize("model", ["adder", "oldest"])
def test_sequences_that_are_interleaved_keep_their_own_state(serving: Serving, model: str) -> None:
    assert total(add(serving, model, 1, 10, "start"), add(serving, model, "one", 1, "start")) == [10, 1]
    assert total(add(serving, model, 1, 20), add(serving, model, "one", 2)) == [30, 3]
    assert total(add(serving, model, "one", 3, "end"), add(serving, model, 1, 30, "end")) == [6, 60]


def test_a_sequence_keeps_its_slot_and_the_others_are_empty(serving: Serving) -> None:
    for number in (21, 22, 23):
        assert seen(add(serving, "adder", number, 1, "start"))["slot"] == number - 21
    last = seen(add(serving, "adder", 23, 1))
    assert (last["slot"], last["of"], last["sum"]) == (2, 3, 2)
    for number in (21, 22, 23):
        add(serving, "adder", number, 1, "end")


@pytest.mark.parametrize("model", ["adder", "oldest"])
def test_many_sequences_at_once(serving: Serving, model: str) -> None:
    """More than there are slots: each runs as it would alone."""
    check_sums(lambda number, flag: total(add(serving, model, 100 + number, number, flag))[0], range(1, 13), 10)


def test_who_is_idle_for_too_long_makes_room(serving: Serving) -> None:
    assert total(add(serving, "short", 1, 1, "start")) == [1]
    # There is one slot: it is answered when the first sequence has been given up.
    assert total(add(serving, "short", 2, 2, "both")) == [2]
    late = add(serving, "short", 1, 1)
    assert (late.status, late.error) == (
        400,
        "inference request for sequence 1 to model 'short' must specify the START flag on the first request of the "
        "sequence",
    )


def test_calls_of_a_model(serving: Serving) -> None:
    tensor = {"name": "IN", "datatype": "INT32", "shape": [1], "data": [0]}
    answer = serving.infer_json("caller", [tensor])
    assert answer.json()["outputs"][0]["data"] == ["[5, 11, 18]"]


def test_a_step_of_an_ensemble(serving: Serving) -> None:
    answers = [add(serving, "ensemble", 7, 3, flag, "X") for flag in ("start", "", "end")]
    assert total(*answers) == [3, 6, 9]


def test_generate_knows_sequences(serving: Serving) -> None:
    """Triton's `generate` passes these parameters on to the model."""
    for step, expected in ({"sequence_start": True}, 4), ({"sequence_end": True}, 8):
        body = json.dumps({"IN": 4, "sequence_id": 9, **step}).encode()
        answer = serving.request("POST", "/v2/models/adder/generate", body)
        assert json.loads(answer.json()["OUT"])["sum"] == expected


def message(model: str, sequence: int | str, value: int, *flags: str) -> Any:
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name="IN", datatype="INT32", shape=[1, 1])
    request.raw_input_contents.append(struct.pack("<i", value))
    if isinstance(sequence, str):
        request.parameters["sequence_id"].string_param = sequence
    else:
        request.parameters["sequence_id"].int64_param = sequence
    for flag in flags:
        request.parameters[f"sequence_{flag}"].bool_param = True
    return request


def sums(answers: Sequence[Any]) -> list[int]:
    """What a stream of answers brings."""
    found = []
    for answer in answers:
        assert not answer.error_message
        found += [json.loads(raw[4:])["sum"] for raw in answer.infer_response.raw_output_contents]
    return found


@pytest.mark.parametrize("model", ["adder", "oldest"])
def test_grpc(serving: Serving, model: str) -> None:
    with connected(serving) as grpc:
        assert json.loads(grpc.infer(message(model, "s", 1, "start")).raw_output_contents[0][4:])["sum"] == 1
        steps = [
            message(model, "s", 2),
            message(model, 3, 5, "start"),
            message(model, "s", 3, "end"),
            message(model, 3, 6, "end"),
        ]
        assert sums(grpc.stream(*steps)) == [3, 5, 6, 11]
        assert grpc.refusal(message(model, "s", 2)) == (
            "INVALID_ARGUMENT",
            f"inference request for sequence s to model '{model}' must specify the START flag on the first request of "
            "the sequence",
        )


def test_a_decoupled_model_may_answer_in_empty_slots(serving: Serving) -> None:
    """What it sends there is for nobody, however much."""
    with connected(serving) as grpc:
        assert sums(grpc.stream(message("streams", 1, 4, "start"))) == [4] * 600
        assert sums(grpc.stream(message("streams", 2, 5, "start"))) == [5] * 600
        assert sums(grpc.stream(message("streams", 2, 5, "end"))) == [10] * 600
        assert sums(grpc.stream(message("streams", 1, 4, "end"))) == [8] * 600


def test_a_stub_that_dies_ends_its_sequences(tmp_path: Path) -> None:
    write_model(tmp_path, "adder", ADDER, config(batch=2, more="instance_group [ { count: 2 kind: KIND_CPU } ]"))
    with Serving(tmp_path) as server:
        server.wait_until_ready()
        first, second = seen(add(server, "adder", 1, 1, "start")), seen(add(server, "adder", 2, 1, "start"))
        assert first["pid"] != second["pid"]
        os.kill(first["pid"], signal.SIGKILL)
        server.wait_for(f"is not healthy: .*pid {first['pid']}")
        told = add(server, "adder", 1, 1)
        assert told.status == 503
        assert "sequence 1 of model 'adder' has ended because its instance 'adder_0_" in told.error
        assert "begin it anew with the START flag" in told.error
        # The other goes on, and the first begins anew.
        assert total(add(server, "adder", 2, 4, "end")) == [5]
        assert total(add(server, "adder", 1, 7, "start"), add(server, "adder", 1, 1, "end")) == [7, 8]


def test_sequences_end_on_the_version_that_they_began_on(tmp_path: Path) -> None:
    write_model(tmp_path, "adder", ADDER, config())
    with Serving(tmp_path, "--model-control-mode=explicit", "--load-model=adder") as server:
        server.wait_until_ready()
        old = seen(add(server, "adder", 1, 1, "start"))
        assert total(add(server, "adder", 2, 1, "start")) == [1]
        write_model(tmp_path, "adder", ADDER.replace("STEP = 1", "STEP = 100"), config())
        assert server.request("POST", "/v2/repository/models/adder/load", b"{}").status == 200
        new = seen(add(server, "adder", 3, 1, "start"))
        assert new["sum"] == 100
        on = seen(add(server, "adder", 1, 1))
        assert (on["sum"], on["pid"]) == (2, old["pid"])
        # One that begins again is a new one.
        assert total(add(server, "adder", 2, 1, "start"), add(server, "adder", 2, 1, "end")) == [100, 200]
        assert total(add(server, "adder", 1, 1, "end"), add(server, "adder", 3, 1, "end")) == [3, 200]
        gone = add(server, "adder", 1, 1)
        assert "must specify the START flag" in gone.error


def test_sequences_stay_where_they_are_while_instances_change(tmp_path: Path) -> None:
    def resize(server: Serving, count: int) -> None:
        text = config(batch=1, more=f"instance_group [ {{ count: {count} kind: KIND_CPU }} ]")
        (tmp_path / "adder" / "config.pbtxt").write_text(text)
        # As with Triton, which waits for no sequence either
        assert server.request("POST", "/v2/repository/models/adder/load", b"{}").status == 200

    write_model(tmp_path, "adder", ADDER, config(batch=1, more="instance_group [ { count: 2 kind: KIND_CPU } ]"))
    with Serving(tmp_path, "--model-control-mode=explicit", "--load-model=adder") as server:
        server.wait_until_ready()
        pids = [seen(add(server, "adder", number, 1, "start"))["pid"] for number in (1, 2)]
        resize(server, 1)
        assert server.stub_pids() == sorted(pids)
        assert [seen(add(server, "adder", number, 1))["pid"] for number in (1, 2)] == pids
        # The one that stays has no slot free; the other has one soon, and takes nobody in.
        found: list[dict[str, Any]] = []
        waits = threading.Thread(target=lambda: found.append(seen(add(server, "adder", 3, 10, "start"))))
        waits.start()
        assert total(*(add(server, "adder", number, 1, "end") for number in (1, 2))) == [3, 3]
        waits.join()
        eventually(lambda: server.stub_pids() == [found[0]["pid"]])
        resize(server, 2)
        assert total(add(server, "adder", 3, 10), add(server, "adder", 4, 1, "start")) == [20, 1]
        resize(server, 1)
        # The last stays. Whose instance dies while it leaves is told so, and the instance does not come back.
        os.kill(found[0]["pid"], signal.SIGKILL)
        server.wait_for("It was about to go, and is not restarted")
        assert "has ended because its instance" in add(server, "adder", 3, 1).error
        assert total(add(server, "adder", 4, 1, "end"), add(server, "adder", 5, 7, "both")) == [2, 7]
        assert len(server.stub_pids()) == 1
        assert server.statistics("adder")["inference_count"] == 11


def test_a_large_request_beside_empty_slots_takes_its_own_memory_only(tmp_path: Path) -> None:
    """The model sees as many zeros in each of them, and may look at all."""
    program = ADDER.replace(".reshape(-1)[0]", ".sum()").replace('"IN"', '"INPUT0"')
    text = config(batch=48).replace(
        '"IN" data_type: TYPE_INT32 dims: [ 1 ]', '"INPUT0" data_type: TYPE_INT32 dims: [ -1 ]'
    )
    write_model(tmp_path, "adder", program, text)
    ones = np.ones((1, 10 << 18), np.int32)
    with Serving(tmp_path, "--shm-limit=64M") as server:
        server.wait_until_ready()
        for number in range(1, 49):
            assert total(add(server, "adder", number, 0, "start", "INPUT0")) == [0]
        last = seen(server.infer_array("adder", ones, "INT32", parameters={"sequence_id": 48}))
        assert (last["sum"], last["slot"], last["of"]) == (10 << 18, 47, 48)
        for pid in (server.process.pid, last["pid"]):
            peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
            assert peak is not None
            assert int(peak[1]) < 200 << 10
