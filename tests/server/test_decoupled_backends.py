"""The backends for tests that stream: `repeat` and `square`, with Triton's rules; and what every native stream does."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from stubserve.checking.repository import check_repositories
from tests.real_server import Serving, eventually, write_model
from tests.server.grpc_calls import connected

DECOUPLED = "model_transaction_policy { decoupled: true }"
REPEAT = f"""
    backend: "repeat"
    max_batch_size: 0
    input [
      {{ name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }},
      {{ name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] }},
      {{ name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] }}
    ]
    output [
      {{ name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }},
      {{ name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] }}
    ]
    instance_group [ {{ count: 1 kind: KIND_CPU }} ]
    {DECOUPLED}
"""
SQUARE = f"""
    backend: "square"
    input [ {{ name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }} ]
    output [ {{ name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }} ]
    instance_group [ {{ count: 1 kind: KIND_CPU }} ]
    {DECOUPLED}
"""
# Calls `repeat` and answers with the sum of what comes.
CALLER = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                array = request.inputs()[0].as_numpy().astype(np.int32)
                call = pb_utils.InferenceRequest(
                    model_name="repeat",
                    requested_output_names=["OUT"],
                    inputs=[
                        pb_utils.Tensor("IN", array),
                        pb_utils.Tensor("DELAY", np.zeros(len(array), np.uint32)),
                        pb_utils.Tensor("WAIT", np.zeros(1, np.uint32)),
                    ],
                )
                total = 0
                for answer in call.exec(decoupled=True):
                    assert not answer.has_error(), answer.error().message()
                    total += sum(int(tensor.as_numpy()[0]) for tensor in answer.output_tensors())
                total = pb_utils.Tensor("OUTPUT0", np.array([total], np.float32))
                responses.append(pb_utils.InferenceResponse([total]))
            return responses
"""


def parameters(**values: str) -> str:
    return "".join(
        f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n' for name, value in values.items()
    )


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    write_model(path, "repeat", "", REPEAT)
    write_model(path, "square", "", SQUARE)
    write_model(path, "batched", "", "max_batch_size: 8 dynamic_batching {}" + SQUARE)
    custom = parameters(
        CUSTOM_FAIL_COUNT="2", CUSTOM_EMPTY_COUNT="1", CUSTOM_INFER_DELAY_NS="1000", CUSTOM_OUTPUT_DELAY_NS="x"
    )
    write_model(path, "custom", "", SQUARE + custom)
    write_model(path, "caller", CALLER)
    return path


@pytest.fixture(scope="module")
def serving(repository: Path) -> Iterator[Serving]:
    with Serving(repository) as server:
        server.wait_until_ready()
        yield server


def message(model: str, id: str = "", outputs: Sequence[str] = (), **inputs: Any) -> Any:
    """A request; lists are INT32 for IN, UINT32 for the others."""
    made = service_pb2.ModelInferRequest(model_name=model, id=id)
    for name, values in inputs.items():
        array = np.array(values, np.int32 if name == "IN" else np.uint32)
        made.inputs.add(name=name, datatype="INT32" if name == "IN" else "UINT32", shape=array.shape)
        made.raw_input_contents.append(array.tobytes())
    for name in outputs:
        made.outputs.add(name=name)
    return made


def repeat(values: Sequence[int], delay: int = 0, wait: int = 0, **more: Any) -> Any:
    return message("repeat", IN=list(values), DELAY=[delay] * len(values), WAIT=[wait], **more)


def read(answers: Sequence[Any]) -> list[dict[str, list[int]]]:
    """The outputs of each response of a stream that has any."""
    found = []
    for answer in answers:
        assert not answer.error_message, answer.error_message
        contents = answer.infer_response.raw_output_contents
        named = zip(answer.infer_response.outputs, contents, strict=True)
        found.append({output.name: np.frombuffer(content, np.int32).tolist() for output, content in named})
    return [outputs for outputs in found if outputs]


def test_repeat(serving: Serving) -> None:
    with connected(serving) as grpc:
        answers = grpc.stream(repeat([7, -3, 9], delay=1, id="mine"))
        assert read(answers) == [{"OUT": [value], "IDX": [index]} for index, value in enumerate([7, -3, 9])]
        assert {answer.infer_response.id for answer in answers} == {"mine"}
        assert list(answers[0].infer_response.outputs[0].shape) == [1]
        assert read(grpc.stream(repeat([4], outputs=["IDX"]))) == [{"IDX": [0]}]
        assert read(grpc.stream(repeat([]))) == []


def test_streams_of_one_instance_mix(serving: Serving) -> None:
    """The next request is executed after WAIT, whatever of the one before is still to come."""
    with connected(serving) as grpc:
        answers = grpc.stream(repeat([1, 1, 1], delay=300, id="slow"), repeat([2], id="quick"))
    assert [answer.infer_response.id for answer in answers if answer.infer_response.outputs] == ["quick", *["slow"] * 3]


def test_a_stream_longer_than_its_reader_is_ahead(serving: Serving) -> None:
    """Many groups of responses: each waits for word that those before have been passed on."""
    with connected(serving) as grpc:
        answers = read(grpc.stream(repeat(range(2000))))
    assert [answer["OUT"][0] for answer in answers] == list(range(2000))


def test_a_reader_that_leaves(tmp_path: Path) -> None:
    """Its request is over then, and not when its last response would have been sent: the model can be unloaded."""
    write_model(tmp_path, "repeat", "", REPEAT)
    with Serving(tmp_path, "--model-control-mode=explicit", "--load-model=repeat") as server, connected(server) as grpc:
        stream = grpc.stub.ModelStreamInfer(iter([repeat([1]), repeat([5] * 10_000, delay=60_000)]))
        next(stream)
        eventually(lambda: server.statistics("repeat")["execution_count"] == 2)
        stream.cancel()
        # So is the wait that its instance owes it.
        stream = grpc.stub.ModelStreamInfer(
            iter([message("repeat", IN=[1, 2], DELAY=[0, 60_000], WAIT=[4_000_000_000])])
        )
        next(stream)
        stream.cancel()
        assert server.request("POST", "/v2/repository/models/repeat/unload", b"{}").status == 200
        eventually(lambda: not server.stub_pids())


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (message("repeat", IN=[1, 2], DELAY=[1], WAIT=[0]), "expected IN and DELAY shape to match, got [2] and [1]"),
        (message("square", IN=[-1]), "IN is how many responses are to be sent, got -1"),
        (message("batched", IN=[[1], [2]]), "unexpected shape for IN input"),
    ],
)
def test_requests_that_are_refused(serving: Serving, request_: Any, text: str) -> None:
    """With a single response, and the instance goes on."""
    with connected(serving) as grpc:
        for _ in range(2):
            (answer,) = [answer for answer in grpc.stream(request_) if answer.error_message]
            assert text in answer.error_message


def test_square(serving: Serving) -> None:
    with connected(serving) as grpc:
        assert read(grpc.stream(message("square", IN=[3]))) == [{"OUT": [3]}] * 3
        assert read(grpc.stream(message("square", IN=[0]))) == []
        batch = grpc.stream(*(message("batched", IN=[[number]], id=str(number)) for number in (4, 2, 5)))
        counts = [answer.infer_response.id for answer in batch if answer.infer_response.outputs]
        assert {number: counts.count(number) for number in counts} == {"4": 4, "2": 2, "5": 5}
        assert list(batch[0].infer_response.outputs[0].shape) == [1, 1]
    statistics = serving.statistics("square")
    assert statistics["response_stats"]["2"]["success"]["count"] == 1


def test_square_that_fails_on_purpose(serving: Serving) -> None:
    with connected(serving) as grpc:
        answers = grpc.stream(message("custom", IN=[5]))
    errors = [answer.error_message for answer in answers]
    assert [error for error in errors if error] == ["simulated failure"] * 2
    assert [bool(error) for error in errors[:4]] == [False, False, True, True]
    serving.wait_for("x string_value from CUSTOM_OUTPUT_DELAY_NS parameter is not a number")


def test_called_by_a_model(serving: Serving) -> None:
    answer = serving.infer_json("caller", [{"name": "INPUT0", "datatype": "FP32", "shape": [3], "data": [1, 2, 3]}])
    assert answer.json()["outputs"][0]["data"] == [6.0]


def test_streams_as_events(serving: Serving) -> None:
    body = b'{"IN": 2}'
    events = serving.request("POST", "/v2/models/square/generate_stream", body).body.decode().split("\n\n")
    assert [json.loads(event.removeprefix("data: "))["OUT"] for event in events if event] == [2, 2]


def test_a_stub_that_dies_in_the_middle(tmp_path: Path) -> None:
    write_model(tmp_path, "repeat", "", REPEAT)
    with Serving(tmp_path) as server, connected(server) as grpc:
        server.wait_until_ready()
        stream = grpc.stub.ModelStreamInfer(iter([repeat([1, 2], delay=0), repeat([3] * 9, delay=600_000)]))
        for _ in range(2):
            next(stream)
        os.kill(server.stub_pids()[0], signal.SIGKILL)
        assert any("is not healthy" in answer.error_message for answer in stream)
        server.wait_for("instance 'repeat_0_0' is back")
        assert len(read(grpc.stream(repeat([1, 2])))) == 2


def test_warmed_up(tmp_path: Path) -> None:
    """All responses of a sample belong to it; a batch of two is none for a model without batching."""
    sample = """
    model_warmup {
      name: "w" batch_size: COUNT
      inputs { key: "IN" value { data_type: TYPE_INT32 dims: [ 200 ] zero_data: true } }
      inputs { key: "DELAY" value { data_type: TYPE_UINT32 dims: [ 200 ] zero_data: true } }
      inputs { key: "WAIT" value { data_type: TYPE_UINT32 dims: [ 1 ] zero_data: true } }
    }
    """
    write_model(tmp_path, "repeat", "", REPEAT + sample.replace("COUNT", "1"))
    write_model(tmp_path, "two", "", REPEAT + sample.replace("COUNT", "2"))
    with Serving(tmp_path, "--exit-on-error=false") as server:
        server.wait_for("failed to load 'two' .*batch size 2 for 'two_0_0', max allowed is 0")
        assert server.statistics("repeat")["execution_count"] == 1


REFUSED = [
    (REPEAT.replace(DECOUPLED, ""), "has to say: `model_transaction_policy { decoupled: true }`"),
    (REPEAT.replace("batch_size: 0", "batch_size: 1"), "only supports models with max_batch_size == 0"),
    (REPEAT.replace('"DELAY"', '"LATER"'), "expected second input tensor name to be DELAY, got LATER"),
    (REPEAT.replace('"IDX"', '"INDEX"'), "expected second output tensor name to be IDX, got INDEX"),
    (
        REPEAT.replace("TYPE_INT32 dims: [ -1 ]", "TYPE_INT32 dims: [ 2, 2 ]"),
        "expected IN shape to have one dimension, got [2,2]",
    ),
    (
        REPEAT.replace("TYPE_INT32 dims: [ -1 ]", "TYPE_INT32 dims: [ 2 ]"),
        "expected IN and DELAY shape to match, got [2] and [-1]",
    ),
    (
        REPEAT.replace("UINT32 dims: [ 1 ]", "INT32 dims: [ 1 ]"),
        "expected WAIT datatype to be UINT32, got TYPE_INT32",
    ),
    (SQUARE.replace("dims: [ 1 ]", "dims: [ 2 ]"), "expected IN shape to be [1], got [2]"),
    (SQUARE + 'input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]', "expected 1 input, got 2"),
    (SQUARE.replace('"OUT"', '"Y"'), "expected first output tensor name to be OUT, got Y"),
]


def test_configurations_that_are_refused(tmp_path: Path) -> None:
    for index, (config, _) in enumerate(REFUSED):
        write_model(tmp_path, f"m{index}", "", config)
    with Serving(tmp_path, "--exit-on-error=false") as server:
        rows = server.request("POST", "/v2/repository/index", b"{}").json()
    reasons = {row["name"]: row["reason"] for row in rows}
    for index, (_, text) in enumerate(REFUSED):
        assert text in reasons[f"m{index}"]


def test_check_knows_them(repository: Path, tmp_path: Path) -> None:
    assert check_repositories([repository], tmp_path).problems == ()
