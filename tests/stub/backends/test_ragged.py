"""Ragged batches: inputs of different shapes in one run, what is made of those shapes, and outputs parted by them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from stubserve_stub.backends.gather import Gathered, Gatherer
from stubserve_stub.backends.native import InputView, NativeOutput, NativeRequest
from stubserve_stub.backends.ragged import RaggedBatches
from stubserve_stub.wire import codes, strings
from stubserve_stub.wire.datatypes import BYTES

from tests.stub.backends.test_gather import FP32, Model, answers, array_of, floats, request

INT32 = 8


def config(**more: Any) -> dict[str, Any]:
    return {
        "max_batch_size": 8,
        "input": [
            {"name": "X", "data_type": "TYPE_FP32", "dims": ["-1", "-1"], "allow_ragged_batch": True},
            {"name": "FIXED", "data_type": "TYPE_FP32", "dims": ["-1"]},
        ],
        "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": ["-1", "-1"]}],
        **more,
    }


def batch_input(kind: str, data_type: str = "TYPE_INT32", *targets: str) -> dict[str, Any]:
    return {"kind": kind, "target_name": targets or ("Z",), "data_type": data_type, "source_input": ["X"]}


SCATTER = {"kind": "BATCH_SCATTER_WITH_INPUT_SHAPE", "target_name": ["Y"], "source_input": ["X"]}


def gatherer(**more: Any) -> Gatherer:
    return Gatherer("m", True, RaggedBatches.from_config(config(**more)))


def ragged(*shapes: Sequence[int]) -> list[NativeRequest]:
    """One request for each shape of X; the elements of all of them count from 0."""
    requests, start = [], 0
    for shape in shapes:
        requests.append(request(shape[0], X=floats(*shape, start=start)))
        start += int(np.prod(shape))
    return requests


class Doubles:
    """Answers with twice X, of as many elements; keeps what it was given."""

    def __init__(self, answered: int | None = None) -> None:
        self.runs: list[Gathered] = []
        self._answered = answered

    def __call__(self, gathered: Gathered) -> dict[str, NativeOutput]:
        self.runs.append(gathered)
        made = array_of(gathered.inputs["X"]).reshape(-1) * 2
        if self._answered is not None:
            made = np.resize(made, self._answered)
        return {name: NativeOutput(name, FP32, made.shape, made.view(np.uint8)) for name in gathered.outputs}


def test_a_plain_model_has_nothing_of_it() -> None:
    plain = config(input=[{"name": "X", "data_type": "TYPE_FP32", "dims": ["-1"], "allow_ragged_batch": False}])
    assert RaggedBatches.from_config(plain) is None
    assert RaggedBatches.from_config({}) is None


def test_ragged_inputs_lose_their_shapes() -> None:
    """Requests of all shapes run as one, but for the shapes of other inputs."""
    model = Doubles()
    shapes = [(1, 2, 3), (2, 1, 1), (1, 4, 0), (1, 1, 5)]
    responses = gatherer(batch_output=[SCATTER]).run(ragged(*shapes), model)
    (run,) = model.runs
    assert (run.requests, run.rows, run.inputs["X"].shape) == (4, 5, (13,))
    assert array_of(run.inputs["X"]).tolist() == list(range(13))
    assert [list(response.outputs[0].shape) for response in responses] == [list(shape) for shape in shapes]
    assert [element for answer in responses for element in array_of(answer.outputs[0]).reshape(-1)] == [
        2 * number for number in range(13)
    ]


def test_one_request_alone_is_flat_too_and_not_copied() -> None:
    model = Doubles()
    (given,) = ragged((2, 1, 3))
    (response,) = gatherer(batch_output=[SCATTER]).run([given], model)
    view = model.runs[0].inputs["X"]
    assert view.shape == (6,)
    assert view.memory is given.inputs["X"].memory
    assert list(response.outputs[0].shape) == [2, 1, 3]


def test_other_inputs_keep_requests_apart() -> None:
    model = Doubles()
    requests = [request(1, X=floats(1, 1, width), FIXED=floats(1, fixed)) for width, fixed in ((1, 2), (2, 3), (3, 2))]
    gatherer(batch_output=[SCATTER]).run(requests, model)
    assert [(run.inputs["X"].shape, run.inputs["FIXED"].shape) for run in model.runs] == [
        ((4,), (2, 2)),
        ((2,), (1, 3)),
    ]


def test_ragged_strings() -> None:
    runs = []

    def compute(gathered: Gathered) -> dict[str, NativeOutput]:
        runs.append(gathered.inputs["X"])
        elements = np.array([text.encode() for text in gathered.inputs["X"].memory], np.object_)
        return {"Y": NativeOutput("Y", BYTES, (3,), elements)}

    texts = [[b"one"], [b"two", b"three"]]
    memories = [np.frombuffer(strings.join(each), np.uint8) for each in texts]
    requests = [
        NativeRequest({"X": InputView("X", BYTES, (1, 1, len(each)), memory)}, ["Y"], 1)
        for each, memory in zip(texts, memories, strict=True)
    ]
    responses = gatherer(batch_output=[SCATTER]).run(requests, compute)
    assert (runs[0].shape, runs[0].memory.tolist()) == ((3,), ["one", "two", "three"])
    assert [response.outputs[0].memory for response in responses] == [strings.join(each) for each in texts]


@pytest.mark.parametrize(
    ("data_type", "number", "kind_of_array"), [("TYPE_INT32", INT32, np.int32), ("TYPE_FP32", FP32, np.float32)]
)
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("BATCH_ELEMENT_COUNT", [6, 4, 3]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", [6, 10, 13]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", [0, 6, 10, 13]),
        ("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", [0, 0, 0, 0, 0, 0]),
        ("BATCH_ITEM_SHAPE", [[2, 3], [1, 2], [1, 2], [3, 1]]),
        ("BATCH_ITEM_SHAPE_FLATTEN", [2, 3, 1, 2, 1, 2, 3, 1]),
    ],
)  # fmt: skip
def test_inputs_that_are_made(kind: str, expected: Any, data_type: str, number: int, kind_of_array: Any) -> None:
    model = Doubles()
    made = [batch_input(kind, data_type, "Z", "W")]
    gatherer(batch_input=made, batch_output=[SCATTER]).run(ragged((1, 2, 3), (2, 1, 2), (1, 3, 1)), model)
    inputs = model.runs[0].inputs
    assert sorted(inputs) == ["W", "X", "Z"]
    for name in ("Z", "W"):
        assert (inputs[name].name, inputs[name].datatype) == (name, number)
        assert inputs[name].memory.dtype == np.uint8
        array = inputs[name].memory.view(kind_of_array).reshape(inputs[name].shape)
        assert array.tolist() == expected


def test_they_are_made_for_inputs_that_keep_their_shape() -> None:
    """Also for one request, and where nothing is ragged or scattered."""
    model = Model()
    plain = [{"name": "X", "data_type": "TYPE_FP32", "dims": ["2"]}]
    made = gatherer(input=plain, batch_input=[batch_input("BATCH_ELEMENT_COUNT")])
    for requests in (ragged((3, 2)), ragged((1, 2), (3, 2))):
        responses = made.run(requests, model)
        assert answers(responses) == [(array_of(each.inputs["X"]) + 1).tolist() for each in requests]
    assert [run.inputs["Z"].memory.view(np.int32).tolist() for run in model.runs] == [[6], [2, 6]]
    assert [run.inputs["X"].shape for run in model.runs] == [(3, 2), (4, 2)]


def test_a_source_that_is_not_given() -> None:
    without = request(1, FIXED=floats(1, 2))
    for more in ({"batch_input": [batch_input("BATCH_ELEMENT_COUNT")]}, {"batch_output": [SCATTER]}):
        (response,) = gatherer(**more).run([without], lambda gathered: {"Y": NativeOutput("Y", FP32, (1,), b"1234")})
        assert response.code == codes.INVALID_ARG
        assert response.error.startswith("the request has no input 'X', from which")


def test_dimensions_of_scattered_outputs() -> None:
    """Fixed ones are the configuration's, reshaped ones the reshape's; others are those of the source, by place."""
    output = {"name": "Y", "data_type": "TYPE_FP32", "dims": ["1"], "reshape": {"shape": ["-1", "2", "1"]}}
    made = gatherer(output=[output], batch_output=[SCATTER])
    responses = made.run(ragged((1, 3, 2), (2, 1, 2)), Doubles())
    assert [list(response.outputs[0].shape) for response in responses] == [[1, 3, 2, 1], [2, 1, 2, 1]]


def test_scattered_outputs_without_batching() -> None:
    made = Gatherer("m", False, RaggedBatches.from_config(config(max_batch_size=0, batch_output=[SCATTER])))
    model = Doubles()
    responses = made.run(ragged((1, 3), (4, 2)), model)
    assert [run.inputs["X"].shape for run in model.runs] == [(3,), (8,)]
    assert [list(response.outputs[0].shape) for response in responses] == [[1, 3], [4, 2]]


def test_scattered_beside_rows() -> None:
    """One output by shapes, one by rows, and each request gets what it has asked for."""
    outputs = [*config()["output"], {"name": "ROWS", "data_type": "TYPE_FP32", "dims": ["2"]}]

    def compute(gathered: Gathered) -> dict[str, NativeOutput]:
        rows = floats(gathered.rows, 2)
        return {**Doubles()(gathered), "ROWS": NativeOutput("ROWS", FP32, rows.shape, rows.reshape(-1).view(np.uint8))}

    requests = ragged((1, 1, 3), (2, 1, 2))
    requests = [requests[0]._replace(outputs=["ROWS", "Y"]), requests[1]._replace(outputs=["ROWS"])]
    first, second = gatherer(output=outputs, batch_output=[SCATTER]).run(requests, compute)
    assert [(output.name, list(output.shape)) for output in first.outputs] == [("ROWS", [1, 2]), ("Y", [1, 1, 3])]
    assert [array_of(output).tolist() for output in second.outputs] == [[[2, 3], [4, 5]]]


@pytest.mark.parametrize("answered", [6, 8, 0])
def test_elements_that_miss(answered: int) -> None:
    """And such that are left over: nobody's memory is read past its end, and nothing is dropped in silence."""
    responses = gatherer(batch_output=[SCATTER]).run(ragged((1, 1, 3), (1, 2, 2)), Doubles(answered))
    assert {(response.error, response.code) for response in responses} == {
        (
            f"output 'Y' has {answered} elements (shape [{answered}]), but the shapes of input 'X' make 3 + 4 of it "
            "for the requests of the batch",
            codes.INTERNAL,
        )
    }


def test_dimensions_that_the_source_has_not() -> None:
    output = {"name": "Y", "data_type": "TYPE_FP32", "dims": ["1", "1", "-1"]}
    (response,) = gatherer(output=[output], batch_output=[SCATTER]).run(ragged((1, 2, 3)), Doubles())
    assert response.error == (
        "output 'Y' has the dimensions [-1, 1, 1, -1], of which input 'X' with the shape [1, 2, 3] cannot tell all"
    )
