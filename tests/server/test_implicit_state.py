"""Implicit state in a whole server: models that remember nothing, and what keeps their states between requests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import onnx_models
from tests.real_server import Answer, Serving, eventually, write_model

from .grpc_calls import connected
from .side_by_side import check_sums
from .test_sequences import message

# The new sum is the old one and what is sent; a negative number has it fail in some way.
ADDER = """
    import os
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            state = pb_utils.get_input_tensor_by_name(request, "SUM_IN").as_numpy()
            assert state.flags.writeable
            total = (state + value).astype(np.int32)
            wrong = int(value.reshape(-1)[0])
            if wrong == -1:
                return pb_utils.InferenceResponse([], pb_utils.TritonError("no more"))
            if wrong == -2:
                return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", total)])
            if wrong == -3:
                total = total.astype(np.int64)
            if wrong == -4:
                total = np.zeros((1, 2), np.int32)
            if wrong == -5:
                raise ValueError("no more at all")
            if wrong == -6:
                state += 1000
                return pb_utils.InferenceResponse([], pb_utils.TritonError("after it has written"))
            answers = [pb_utils.Tensor("OUT", total), pb_utils.Tensor("SUM_OUT", total)]
            return pb_utils.InferenceResponse(answers)
"""
STATE = """state { input_name: "SUM_IN" output_name: "SUM_OUT" data_type: TYPE_INT32 dims: [ 1 ] %s }"""


def config(
    backend: str = "python",
    strategy: str = "direct { }",
    initial: str = "",
    batch: int = 4,
    idle_us: int = 600_000_000,
    outputs: str = "",
    more: str = "",
) -> str:
    return f"""
        backend: "{backend}"
        max_batch_size: {batch}
        input [ {{ name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }} ]
        output [ {{ name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }} {outputs} ]
        sequence_batching {{ {strategy} max_sequence_idle_microseconds: {idle_us} {STATE % initial} }}
        instance_group [ {{ count: 1 kind: KIND_CPU }} ]
        {more}
    """


def zero(dims: str = "1", kind: str = "INT32") -> str:
    return f'initial_state {{ name: "zero" data_type: TYPE_{kind} dims: [ {dims} ] zero_data: true }}'


def from_file(name: str, dims: str = "1", kind: str = "INT32") -> str:
    return f'initial_state {{ name: "file" data_type: TYPE_{kind} dims: [ {dims} ] data_file: "{name}" }}'


def write_accumulator(repository: Path, name: str, text: str) -> Path:
    """ONNX: OUT and the new state are IN and the old state."""
    dims = ["batch", 1]
    made = onnx_models.model(
        [onnx_models.node("Add", "IN SUM_IN", "OUT"), onnx_models.node("Identity", "OUT", "SUM_OUT")],
        [("IN", "INT32", dims), ("SUM_IN", "INT32", dims)],
        [("OUT", "INT32", dims), ("SUM_OUT", "INT32", dims)],
    )
    onnx_models.save(made, repository / name / "1")
    (repository / name / "config.pbtxt").write_text(text)
    return repository / name


# The new state is the old one with what is sent behind it.
GROWING = """
    backend: "{backend}"
    max_batch_size: {batch}
    input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
    output [ {{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }} ]
    sequence_batching {{
        oldest {{ max_candidate_sequences: 4 }}
        max_sequence_idle_microseconds: {idle_us}
        state {{
            input_name: "PAST" output_name: "NOW" data_type: TYPE_FP32 dims: [ -1 ]
            initial_state {{ name: "nothing" data_type: TYPE_FP32 dims: [ 0 ] zero_data: true }}
            {more}
        }}
    }}
    instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""
APPENDER = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                x, past = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("INPUT0", "PAST"))
                now = np.concatenate([past, x], axis=-1)
                y = np.array([[now.size, now.sum()]], np.float32)
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", y), pb_utils.Tensor("NOW", now)]))
            return responses
"""


def write_appender(repository: Path, name: str, backend: str, more: str = "", idle_us: int = 600_000_000) -> None:
    text = GROWING.format(backend=backend, batch=4, more=more, idle_us=idle_us)
    if backend == "python":
        write_model(repository, name, APPENDER, text)
        return
    dims = ["batch", "n"]
    made = onnx_models.model(
        [
            onnx_models.node("Concat", "PAST INPUT0", "NOW", axis=1),
            onnx_models.node("ReduceSum", "NOW AXES", "TOTAL", keepdims=1),
            onnx_models.node("Shape", "NOW", "SIZE", start=1),
            onnx_models.node("Cast", "SIZE", "FLOAT_SIZE", to=1),
            onnx_models.node("Shape", "TOTAL", "TOTAL_SHAPE"),
            onnx_models.node("Expand", "FLOAT_SIZE TOTAL_SHAPE", "SIZES"),
            onnx_models.node("Concat", "SIZES TOTAL", "Y", axis=1),
        ],
        [("PAST", "FP32", ["batch", "m"]), ("INPUT0", "FP32", dims)],
        [("NOW", "FP32", ["batch", "k"]), ("Y", "FP32", ["batch", "two"])],
        [onnx_models.helper.make_tensor("AXES", 7, [1], [1])],
    )
    onnx_models.save(made, repository / name / "1")
    (repository / name / "config.pbtxt").write_text(text)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    oldest = "oldest { max_candidate_sequences: 3 }"
    asked = ', { name: "SUM_OUT" data_type: TYPE_INT32 dims: [ 1 ] }'
    for backend, write in (("python", lambda *named: write_model(repository, named[1], ADDER, named[2])),
                           ("onnxruntime", write_accumulator)):  # fmt: skip
        write(repository, f"{backend}_direct", config(backend))
        write(repository, f"{backend}_oldest", config(backend, oldest, zero()))
        write(repository, f"{backend}_asked", config(backend, outputs=asked))
        folder = write(repository, f"{backend}_file", config(backend, initial=from_file("sub/first")))
        (folder / "initial_state" / "sub").mkdir(parents=True)
        (folder / "initial_state" / "sub" / "first").write_bytes(np.int32(500).tobytes() + b"beyond")
        write_appender(repository, f"{backend}_growing", backend)
    in_place = "use_same_buffer_for_input_output: true use_growable_memory: true"
    write_appender(repository, "python_in_place", "python", in_place)
    with Serving(repository) as server:
        server.wait_until_ready()
        yield server


def add(server: Serving, model: str, sequence: int | str, value: int, flag: str = "", **more: Any) -> Answer:
    parameters = {"sequence_id": sequence, "sequence_start": flag in ("start", "both")}
    parameters["sequence_end"] = flag in ("end", "both")
    tensor = {"name": "IN", "datatype": "INT32", "shape": [1, 1], "data": [value]}
    return server.infer_json(model, [tensor], parameters=parameters, **more)


def total(*answers: Answer) -> list[int]:
    return [output["data"][0] for answer in answers for output in answer.json()["outputs"]]


BACKENDS = ("python", "onnxruntime")
MODELS = [f"{backend}_{kind}" for backend in BACKENDS for kind in ("direct", "oldest")]


@pytest.mark.parametrize("model", MODELS)
def test_each_sequence_has_its_own_state(serving: Serving, model: str) -> None:
    assert total(add(serving, model, 1, 10, "start"), add(serving, model, "one", 1, "start")) == [10, 1]
    assert total(add(serving, model, 1, 20), add(serving, model, "one", 2)) == [30, 3]
    # One that begins anew without an end has the initial state again.
    assert total(add(serving, model, 1, 5, "start"), add(serving, model, 1, 5)) == [5, 10]
    assert total(add(serving, model, "one", 3, "end"), add(serving, model, 1, 30, "end")) == [6, 40]
    assert total(add(serving, model, 1, 7, "both"), add(serving, model, 1, 8, "start")) == [7, 8]
    assert total(add(serving, model, 1, 1, "end")) == [9]


@pytest.mark.parametrize("model", MODELS)
def test_many_sequences_at_once(serving: Serving, model: str) -> None:
    """More than there are slots: each runs as it would alone."""
    check_sums(lambda number, flag: total(add(serving, model, 100 + number, number, flag))[0], range(1, 13), 10)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_initial_state_from_a_file(serving: Serving, backend: str) -> None:
    model = f"{backend}_file"
    for _ in range(2):
        assert total(add(serving, model, 1, 10, "start"), add(serving, model, 1, 1, "end")) == [510, 511]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_state_that_is_an_output_can_be_asked_for(serving: Serving, backend: str) -> None:
    model = f"{backend}_asked"
    assert total(add(serving, model, 1, 10, "start")) == [10, 10]
    assert total(add(serving, model, 1, 5, outputs=[{"name": "SUM_OUT"}])) == [15]
    assert total(add(serving, model, 1, 5, outputs=[{"name": "OUT"}])) == [20]
    assert total(add(serving, model, 1, 1, "end")) == [21, 21]
    hidden = add(serving, f"{backend}_direct", 1, 1, "both", outputs=[{"name": "SUM_OUT"}])
    assert (hidden.status, "unexpected inference output 'SUM_OUT'" in hidden.error) == (400, True)


@pytest.mark.parametrize("model", MODELS)
def test_clients_cannot_give_a_state(serving: Serving, model: str) -> None:
    tensors = [{"name": name, "datatype": "INT32", "shape": [1, 1], "data": [1]} for name in ("IN", "SUM_IN")]
    answer = serving.infer_json(model, tensors, parameters={"sequence_id": 1, "sequence_start": True})
    assert answer.status == 400, answer
    assert "SUM_IN" not in str(serving.get(f"/v2/models/{model}").json())


WRONG = {
    -1: "no more",
    -3: "model 'python_direct' has answered output 'SUM_OUT', the new state of 'SUM_IN', as TYPE_INT64 [1, 1], but its "
    "configuration says TYPE_INT32 [1, 1]; its sequence keeps the state that it had",
    -4: "as TYPE_INT32 [1, 2], but its configuration says TYPE_INT32 [1, 1]",
    -5: "ValueError: no more at all",
    -6: "after it has written",
}


@pytest.mark.parametrize(("value", "text"), WRONG.items())
def test_a_step_that_fails_leaves_the_state_as_it_was(serving: Serving, value: int, text: str) -> None:
    model = "python_direct"
    assert total(add(serving, model, 1, 10, "start")) == [10]
    failed = add(serving, model, 1, value)
    assert failed.status == 500
    assert text in failed.error
    assert total(add(serving, model, 1, 5)) == [15]
    # The last step leaves nothing, whatever becomes of it.
    assert add(serving, model, 1, value, "end").status == 500
    assert add(serving, model, 1, value, "start").status == 500
    assert total(add(serving, model, 1, 5, "end")) == [5]


def test_a_state_that_the_model_leaves_out_stays_as_it_was(serving: Serving) -> None:
    """The log says so once, however often."""
    assert total(add(serving, "python_direct", 1, 10, "start")) == [10]
    assert total(*(add(serving, "python_direct", 1, -2) for _ in range(3))) == [8, 8, 8]
    assert total(add(serving, "python_direct", 1, 5, "end")) == [15]
    line = "model 'python_direct' has not answered output 'SUM_OUT', the new state of 'SUM_IN'; its sequence keeps the "
    serving.wait_for(line)
    assert serving.output.count(line) == 1


def append(server: Serving, model: str, sequence: int, size: int, value: int = 1, flag: str = "") -> Answer:
    parameters = {"sequence_id": sequence, "sequence_start": flag == "start", "sequence_end": flag == "end"}
    return server.infer_array(model, np.full((1, size), value, np.float32), parameters=parameters)


@pytest.mark.parametrize("model", ["python_growing", "onnxruntime_growing", "python_in_place"])
def test_a_state_may_grow(serving: Serving, model: str) -> None:
    """Beyond what fits into a message, and sequences of different sizes share a batch or not."""
    sizes = [1, 2, 3000, 5000, 100_000, 1]
    for sequence in (1, 2):
        assert grown(append(serving, model, sequence, 7 * sequence, 1, "start")) == (7 * sequence,) * 2
    for step, size in enumerate(sizes):
        for sequence in (1, 2):
            expected = 7 * sequence + sequence * sum(sizes[: step + 1])
            assert grown(append(serving, model, sequence, size * sequence)) == (expected, expected)
    for sequence in (1, 2):
        assert append(serving, model, sequence, 1, 1, "end").status == 200


def grown(answer: Answer) -> tuple[float, float]:
    """Size and sum of what has been sent so far."""
    assert answer.status == 200, answer
    (output,) = answer.json()["outputs"]
    return tuple(output["data"])


def test_batches_of_sequences(tmp_path: Path) -> None:
    """Four steps wait for each other: what is gathered and parted are the states of four sequences."""
    waits = "direct { minimum_slot_utilization: 1 max_queue_delay_microseconds: 600000000 }"
    write_model(tmp_path, "python", ADDER, config(strategy=waits))
    write_accumulator(tmp_path, "onnxruntime", config("onnxruntime", waits))
    with Serving(tmp_path) as server:
        server.wait_until_ready()
        for model in BACKENDS:
            check_sums(
                lambda number, flag, model=model: total(add(server, model, number, number, flag))[0], range(1, 5), 3
            )
            statistics = server.statistics(model)
            assert (statistics["inference_count"], statistics["execution_count"]) == (12, 3)


def test_slots_that_are_empty_have_states_too(serving: Serving) -> None:
    for backend in BACKENDS:
        model = f"{backend}_direct"
        assert total(add(serving, model, 1, 1, "start"), add(serving, model, 2, 2, "start")) == [1, 2]
        assert total(add(serving, model, 1, 1, "end"), add(serving, model, 2, 2, "end")) == [2, 4]


def write_with_controls(repository: Path, name: str) -> None:
    """ONNX, without an initial state: what START says is multiplied into the old state."""
    dims = ["batch", 1]
    made = onnx_models.model(
        [
            onnx_models.node("Sub", "ONE START", "GOES_ON"),
            onnx_models.node("Mul", "GOES_ON SUM_IN", "OLD"),
            onnx_models.node("Add", "IN OLD", "OUT"),
            onnx_models.node("Identity", "OUT", "SUM_OUT"),
        ],
        [("IN", "INT32", dims), ("SUM_IN", "INT32", dims), ("START", "INT32", dims)],
        [("OUT", "INT32", dims), ("SUM_OUT", "INT32", dims)],
        [onnx_models.helper.make_tensor("ONE", 6, [], [1])],
    )
    onnx_models.save(made, repository / name / "1")
    start = (
        'control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } } direct { }'
    )
    (repository / name / "config.pbtxt").write_text(config("onnxruntime", start))


CALLER = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                sums = []
                for value, flags in ((5, 1), (6, 0), (7, 2)):
                    call = pb_utils.InferenceRequest(
                        model_name="counter",
                        requested_output_names=["OUT"],
                        inputs=[pb_utils.Tensor("IN", np.array([[value]], np.int32))],
                        correlation_id=77,
                        flags=flags,
                    )
                    answer = call.exec()
                    assert not answer.has_error(), answer.error().message()
                    sums.append(answer.output_tensors()[0].as_numpy().item())
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(sums, np.int32))]))
            return responses
"""
CALLER_CONFIG = """
    backend: "python"
    input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
    output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 3 ] } ]
"""
ENSEMBLE = """
    platform: "ensemble"
    max_batch_size: 4
    input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
    output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
    ensemble_scheduling {
        step [
            { model_name: "counter" model_version: -1
              input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "SUM" } },
            { model_name: "summer" model_version: -1
              input_map { key: "IN" value: "SUM" } output_map { key: "OUT" value: "OUT" } }
        ]
    }
"""
# Answers through senders; the second response of a step has the state.
STREAMING = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                value, state = (
                    pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("IN", "SUM_IN")
                )
                sender = request.get_response_sender()
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", state)]))
                total = state + value
                answers = [pb_utils.Tensor("OUT", total), pb_utils.Tensor("SUM_OUT", total)]
                sender.send(pb_utils.InferenceResponse(answers), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def test_every_way_in(tmp_path: Path) -> None:
    """gRPC and its streams, a model's calls, two members of an ensemble, models that answer through senders."""
    write_with_controls(tmp_path, "counter")
    write_model(tmp_path, "summer", ADDER, config())
    write_model(tmp_path, "caller", CALLER, CALLER_CONFIG)
    write_model(tmp_path, "streams", STREAMING, config(more="model_transaction_policy { decoupled: true }"))
    (tmp_path / "ensemble" / "1").mkdir(parents=True)
    (tmp_path / "ensemble" / "config.pbtxt").write_text(ENSEMBLE)
    with Serving(tmp_path) as server, connected(server) as grpc:
        server.wait_until_ready()
        steps = [message("counter", "s", 2, "start"), message("counter", 3, 5, "start")]
        steps += [message("counter", "s", 3, "end"), message("counter", 3, 6, "end")]
        assert received(grpc.stream(*steps)) == [2, 5, 5, 11]
        assert received(grpc.stream(message("streams", 1, 4, "start"))) == [0, 4]
        assert received(grpc.stream(message("streams", 1, 5), message("streams", 1, 6, "end"))) == [4, 9, 9, 15]
        called = server.infer_json("caller", [{"name": "IN", "datatype": "INT32", "shape": [1], "data": [0]}])
        assert called.json()["outputs"][0]["data"] == [5, 11, 18]
        flags = ("start", "", "", "end")
        assert total(*(add(server, "ensemble", 8, 1, flag) for flag in flags)) == [1, 3, 6, 10]


def received(answers: list[Any]) -> list[int]:
    assert not [answer.error_message for answer in answers if answer.error_message]
    return [
        int(np.frombuffer(raw, np.int32)[0]) for answer in answers for raw in answer.infer_response.raw_output_contents
    ]


@pytest.mark.parametrize("model", ["python_growing", "onnxruntime_growing", "python_in_place"])
def test_sequences_leave_nothing_behind(tmp_path: Path, model: str) -> None:
    """Whether they end, are idle for too long, or are cut short by the next; states of 400 kB each."""
    backend, _, kind = model.partition("_")
    more = "use_same_buffer_for_input_output: true" if kind == "in_place" else ""
    write_appender(tmp_path, "m", backend, more, idle_us=200_000)
    # Its sequences are never idle for too long, however busy the machine is.
    write_appender(tmp_path, "patient", backend, more)
    with Serving(tmp_path, "--shm-limit=32M") as server:
        server.wait_until_ready()
        # What does not fit many times over: of 100 sequences each leaves its state to nobody.
        for sequence in range(1, 101):
            assert append(server, "patient", sequence, 100_000, 1, "start").status == 200
            assert append(server, "patient", sequence, 10_000, 1, "end").status == 200
        # Four slots, and nobody ends: each next one waits until one before it has been idle for too long.
        for sequence in range(1, 13):
            assert append(server, "m", sequence, 1_000_000, 1, "start").status == 200


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_state_that_finds_no_memory(tmp_path: Path, backend: str) -> None:
    """Its request is told so, the state is as it was, and others are served."""
    write_appender(tmp_path, "m", backend)
    with Serving(tmp_path, "--shm-limit=32M") as server:
        server.wait_until_ready()
        size = 1 << 20
        kept = 0
        while True:
            answer = append(server, "m", 1, size, 1, "" if kept else "start")
            if answer.status != 200:
                break
            kept += size
            assert grown(answer) == (kept, kept)
        assert answer.status == 503
        assert "--shm-limit" in answer.error
        assert kept >= size
        assert grown(append(server, "m", 1, 1)) == (kept + 1, kept + 1)
        assert append(server, "m", 1, size).status == 503
        assert grown(append(server, "m", 2, 10, 1, "start")) == (10, 10)
        assert append(server, "m", 1, 1, 1, "end").status == 200
        assert grown(append(server, "m", 3, size, 1, "start")) == (size, size)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stub_that_dies_takes_its_states_along(tmp_path: Path, backend: str) -> None:
    text = config(backend, more="").replace("count: 1", "count: 2")
    if backend == "python":
        write_model(tmp_path, "m", ADDER, text)
    else:
        write_accumulator(tmp_path, "m", text)
    with Serving(tmp_path) as server:
        server.wait_until_ready()
        assert total(add(server, "m", 1, 10, "start"), add(server, "m", 2, 20, "start")) == [10, 20]
        pid = server.stub_pids()[0]
        os.kill(pid, signal.SIGKILL)
        server.wait_for(f"is not healthy: .*pid {pid}")
        answers = [add(server, "m", number, 1) for number in (1, 2)]
        (lost,) = [index for index, answer in enumerate(answers) if answer.status == 503]
        assert f"sequence {lost + 1} of model 'm' has ended because its instance 'm_0_" in answers[lost].error
        assert "and its state with it; begin it anew with the START flag" in answers[lost].error
        lives = 1 - lost
        assert total(answers[lives]) == [[11, 21][lives]]
        assert total(add(server, "m", lost + 1, 7, "start"), add(server, "m", lost + 1, 1)) == [7, 8]


@pytest.mark.parametrize("backend", BACKENDS)
def test_who_is_idle_loses_the_state(tmp_path: Path, backend: str) -> None:
    text = config(backend, idle_us=200_000, batch=1)
    if backend == "python":
        write_model(tmp_path, "m", ADDER, text)
    else:
        write_accumulator(tmp_path, "m", text)
    with Serving(tmp_path) as server:
        server.wait_until_ready()
        assert total(add(server, "m", 1, 1, "start")) == [1]
        # There is one slot: it is answered when the first sequence has been given up.
        assert total(add(server, "m", 2, 2, "both")) == [2]
        assert "must specify the START flag" in add(server, "m", 1, 1).error
        assert total(add(server, "m", 1, 5, "start")) == [5]


def test_states_stay_with_their_instances_when_the_model_is_loaded_anew(tmp_path: Path) -> None:
    write_accumulator(tmp_path, "m", config("onnxruntime"))
    with Serving(tmp_path, "--model-control-mode=explicit", "--load-model=m") as server:
        server.wait_until_ready()
        assert total(add(server, "m", 1, 10, "start")) == [10]
        write_accumulator(tmp_path, "m", config("onnxruntime", initial=from_file("f")))
        (tmp_path / "m" / "initial_state").mkdir()
        (tmp_path / "m" / "initial_state" / "f").write_bytes(np.int32(100).tobytes())
        assert server.request("POST", "/v2/repository/models/m/load", b"{}").status == 200
        assert total(add(server, "m", 2, 1, "start")) == [101]
        assert total(add(server, "m", 1, 1), add(server, "m", 1, 1, "end")) == [11, 12]


REFUSED = {
    "no_file": (from_file("f"), "failed to open text file for read "),
    "short": (from_file("short"), "initial_state setting expects 4 bytes, but the data provided from shortonly has 3 "),
    "outside": (
        from_file("../1/model.py"),
        "'../1/model.py' is not the name of a file in the model's folder 'initial_",
    ),
    "type": (zero(kind="FP32"), "'initial_state' field of state 'SUM_IN' does not match the state data type."),
    "two": (zero() * 2, "'SUM_IN' must contain exactly one or zero element. Found '2' elements."),
    "identity": ("", "which the backend 'identity' does not keep"),
}


def test_what_cannot_be_kept_is_refused_at_load(tmp_path: Path) -> None:
    for name, (initial, _) in REFUSED.items():
        backend = "identity" if name == "identity" else "python"
        folder = write_model(tmp_path, name, ADDER, config(backend, initial=initial))
        (folder / "initial_state").mkdir()
        (folder / "initial_state" / "short").write_bytes(b"123")
    with Serving(tmp_path, "--strict-readiness=false", "--exit-on-error=false") as server:
        server.wait_for("Started HTTPService")
        rows = eventually(lambda: loaded(server, len(REFUSED)))
    for name, (_, text) in REFUSED.items():
        assert text in rows[name], (name, rows[name])


def loaded(server: Serving, models: int) -> dict[str, str]:
    """Why each model is not there, once all have been tried."""
    rows = {row["name"]: row for row in server.request("POST", "/v2/repository/index").json()}
    done = {
        name: row["reason"] for name, row in rows.items() if row.get("state") == "UNAVAILABLE" and row.get("reason")
    }
    return done if len(done) == models else {}
