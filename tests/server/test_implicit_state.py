"""Implicit state in a whole server: models without memory of their own, and what keeps their states between requests."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import onnx_models
from tests.real_server import Answer, Serving, eventually, write_model

from .grpc_calls import connected
from .test_sequences import message

# The new sum is the old one and what is sent; a negative number has it fail in some way after it has looked at its state.
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
WITH_CONTROLS = """
    control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }
    control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }
"""
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
    found: dict[int, list[int]] = {}

    def run(number: int) -> None:
        flags = ["start", *[""] * 8, "end"]
        found[number] = total(*(add(serving, model, 100 + number, number, flag) for flag in flags))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(1, 13)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [number * step for step in range(1, 11)] for number in range(1, 13)}


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
    -2: "model 'python_direct' has not answered output 'SUM_OUT', the new state of 'SUM_IN'; its sequence keeps the "
    "state that it had",
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
