"""Requests as one batch, and its outputs as theirs again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stubserve_stub.backends.gather import Gathered, Gatherer, address_of
from stubserve_stub.backends.native import InputView, NativeOutput, NativeRequest, NativeResponse
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import codes, strings
from stubserve_stub.wire.datatypes import BYTES
from stubserve_stub.wire.places import zeros

FP32, UINT8 = 11, 2


def request(rows: int, outputs: Sequence[str] = ("Y",), **inputs: Any) -> NativeRequest:
    views = {}
    for name, value in inputs.items():
        if isinstance(value, list):
            views[name] = InputView(name, BYTES, (len(value),), np.frombuffer(strings.join(value), np.uint8))
        else:
            views[name] = InputView(name, FP32, value.shape, value.reshape(-1).view(np.uint8))
    return NativeRequest(views, outputs, rows)


def floats(*shape: int, start: int = 0) -> Any:
    return np.arange(start, start + int(np.prod(shape)), dtype=np.float32).reshape(shape)


def array_of(view: Any) -> Any:
    return np.frombuffer(view.memory, np.float32).reshape(view.shape)


class Model:
    """Answers with X + 1 as Y, and with the names that are asked for; keeps what it was given."""

    def __init__(self) -> None:
        self.runs: list[Gathered] = []

    def __call__(self, gathered: Gathered) -> dict[str, NativeOutput]:
        self.runs.append(gathered)
        made = (array_of(gathered.inputs["X"]) + 1).reshape(-1).view(np.uint8)
        return {name: NativeOutput(name, FP32, gathered.inputs["X"].shape, made) for name in gathered.outputs}


def answers(responses: Sequence[NativeResponse]) -> list[Any]:
    return [array_of(response.outputs[0]).tolist() for response in responses]


def test_one_request_is_not_copied() -> None:
    model = Model()
    given = request(2, X=floats(2, 3))
    (response,) = Gatherer("m", True).run([given], model)
    assert model.runs[0].inputs["X"] is given.inputs["X"]
    assert (model.runs[0].requests, model.runs[0].rows) == (1, 2)
    assert answers([response]) == [[[1, 2, 3], [4, 5, 6]]]


def test_an_input_that_lies_askew_is_copied() -> None:
    memory = np.empty(25, np.uint8)[1:]
    memory[:] = floats(2, 3).reshape(-1).view(np.uint8)
    model = Model()
    given = NativeRequest({"X": InputView("X", FP32, (2, 3), memory)}, ["Y"], 2)
    (response,) = Gatherer("m", True).run([given], model)
    assert answers([response]) == [[[1, 2, 3], [4, 5, 6]]]
    assert model.runs[0].inputs["X"].memory.view(np.float32).flags.aligned


def test_rows_are_joined_and_parted() -> None:
    model = Model()
    gatherer = Gatherer("m", True)
    requests = [request(2, X=floats(2, 3)), request(1, X=floats(1, 3, start=10)), request(3, X=floats(3, 3, start=20))]
    responses = gatherer.run(requests, model)
    (run,) = model.runs
    assert (run.requests, run.rows, run.inputs["X"].shape) == (3, 6, (6, 3))
    assert answers(responses) == [(array_of(each.inputs["X"]) + 1).tolist() for each in requests]
    assert [response.outputs[0].shape for response in responses] == [(2, 3), (1, 3), (3, 3)]


def test_outputs_are_slices_of_one_memory() -> None:
    whole: list[Any] = []

    def compute(gathered: Gathered) -> dict[str, NativeOutput]:
        whole.append(np.zeros(6 * 4, np.uint8))
        return {"Y": NativeOutput("Y", FP32, (6, 1), whole[0])}

    responses = Gatherer("m", True).run([request(2, X=floats(2, 1)), request(4, X=floats(4, 1))], compute)
    whole[0][:] = 7
    assert [response.outputs[0].memory.tolist() for response in responses] == [[7] * 8, [7] * 16]


def test_the_buffer_is_used_again() -> None:
    places: list[int] = []

    def compute(gathered: Gathered) -> dict[str, NativeOutput]:
        places.append(address_of(gathered.inputs["X"].memory))
        return {"Y": NativeOutput("Y", FP32, (gathered.rows, 1), bytes(gathered.rows * 4))}

    gatherer = Gatherer("m", True)
    for rows in (3, 2):
        gatherer.run([request(rows, X=floats(rows, 3)), request(1, X=floats(1, 3))], compute)
    assert places[0] == places[1]


def test_empty_slots_take_no_memory() -> None:
    rows = 10 << 20
    there = np.full(rows, 7, np.uint8)
    views = [there, *(zeros(rows) for _ in range(60)), there]
    requests = [NativeRequest({"X": InputView("X", UINT8, (1, rows), view)}, ["Y"], 1) for view in views]
    before = resident_bytes()
    seen = []

    def compute(gathered: Gathered) -> dict[str, NativeOutput]:
        memory = gathered.inputs["X"].memory
        assert type(memory) is np.ndarray
        seen.extend(part.any() and bool((part == there).all()) for part in memory.reshape(len(views), rows))
        seen.append(resident_bytes() - before < 10 * rows)
        memory[rows] = 1
        return {"Y": NativeOutput("Y", UINT8, (len(views), 1), memory[: len(views)])}

    gatherer = Gatherer("m", True)
    gatherer.run(requests, compute)
    assert seen == [True, *[False] * 60, True, True]
    assert not views[1].any()
    # Nor is it kept for the next batch.
    assert resident_bytes() - before < 10 * rows


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_buffer_that_a_model_keeps_is_not_used_again() -> None:
    """Also if it keeps no more than a part of what it was given."""
    kept: list[Any] = []

    def compute(gathered: Gathered) -> dict[str, NativeOutput]:
        kept.append(array_of(gathered.inputs["X"])[1:])
        return {"Y": NativeOutput("Y", FP32, (gathered.rows, 1), bytes(gathered.rows * 4))}

    gatherer = Gatherer("m", True)
    for value in (1, 2, 3):
        gatherer.run([request(1, X=np.full((1, 2), value, np.float32))] * 2, compute)
    assert [part.tolist() for part in kept] == [[[1, 1]], [[2, 2]], [[3, 3]]]


def test_each_gets_what_it_has_asked_for() -> None:
    model = Model()
    requests = [
        request(1, ["A"], X=floats(1, 2)),
        request(1, ["B", "A"], X=floats(1, 2)),
        request(1, [], X=floats(1, 2)),
    ]
    responses = Gatherer("m", True).run(requests, model)
    assert model.runs[0].outputs == ["A", "B"]
    assert [[output.name for output in response.outputs] for response in responses] == [["A"], ["B", "A"], []]


def test_without_batching_each_runs_by_itself() -> None:
    model = Model()
    responses = Gatherer("m", False).run([request(1, X=floats(3)), request(1, X=floats(3, start=5))], model)
    assert [run.inputs["X"].shape for run in model.runs] == [(3,), (3,)]
    assert answers(responses) == [[1, 2, 3], [6, 7, 8]]


def test_what_does_not_fit_together_runs_apart() -> None:
    """Another shape, and an optional input: three runs, and the responses in the order of the requests."""
    model = Model()
    requests = [
        request(1, X=floats(1, 2)),
        request(1, X=floats(1, 3, start=10)),
        request(1, X=floats(1, 2, start=20), OPTIONAL=floats(1, 2)),
        request(1, X=floats(1, 2, start=30)),
    ]
    responses = Gatherer("m", True).run(requests, model)
    assert [(run.rows, sorted(run.inputs)) for run in model.runs] == [(2, ["X"]), (1, ["X"]), (1, ["OPTIONAL", "X"])]
    assert answers(responses) == [[[1, 2]], [[11, 12, 13]], [[21, 22]], [[31, 32]]]


def encoded(view: Any) -> NativeOutput:
    """The texts of an input as the output Y."""
    elements = np.array([text.encode() for text in view.memory], np.object_)
    return NativeOutput("Y", BYTES, (len(elements), 1), elements)


def test_strings_are_texts_inside() -> None:
    runs = []

    def compute(gathered: Gathered) -> dict[str, NativeOutput]:
        runs.append(gathered.inputs["S"])
        return {"Y": encoded(gathered.inputs["S"])}

    requests = [request(2, S=[b"one", b""]), request(1, S=["dr\u00fc".encode() * 200])]
    responses = Gatherer("m", True).run(requests, compute)
    assert runs[0].memory.tolist() == ["one", "", "dr\u00fc" * 200]
    assert runs[0].shape == (3,)
    assert [response.outputs[0].memory for response in responses] == [
        strings.join([b"one", b""]),
        strings.join(["dr\u00fc".encode() * 200]),
    ]
    assert [response.outputs[0].shape for response in responses] == [(2, 1), (1, 1)]


def test_strings_that_are_none() -> None:
    broken = NativeRequest({"S": InputView("S", BYTES, (1,), np.frombuffer(b"\x09\0\0\0ab", np.uint8))}, ["Y"], 1)
    (response,) = Gatherer("m", True).run([broken], Model())
    assert response.code == codes.INVALID_ARG
    assert response.error == "input 'S': Invalid bytes tensor data: string extends beyond buffer"


def test_strings_that_are_none_are_the_mistake_of_one_request() -> None:
    """Whether they are malformed or no text, in whichever input: the others run together, and without them."""
    runs: list[Gathered] = []

    def compute(gathered: Gathered) -> dict[str, NativeOutput]:
        runs.append(gathered)
        return {"Y": encoded(gathered.inputs["S"])}

    requests = [
        request(1, S=[b"one"], T=[b"1"]),
        request(1, S=[b"ok"], T=[b"\xff"]),
        request(2, S=[b"two", b"three"], T=[b"2", b"3"]),
        request(1, S=[b"a\xc3"], T=[b"4"]),
        request(1, S=[b"cut"], T=[b"5"]),
    ]
    requests[4].inputs["T"] = InputView("T", BYTES, (1,), np.frombuffer(b"\x09\0\0\0ab", np.uint8))
    responses = Gatherer("m", True, reader="Cobol").run(requests, compute)
    assert [run.inputs["S"].memory.tolist() for run in runs] == [["one", "two", "three"]]
    assert [run.inputs["T"].memory.tolist() for run in runs] == [["1", "2", "3"]]
    assert [(run.requests, run.rows) for run in runs] == [(2, 3)]
    assert [response.code for response in responses] == [0, codes.INVALID_ARG, 0, codes.INVALID_ARG, codes.INVALID_ARG]
    assert [responses[at].outputs[0].memory for at in (0, 2)] == [
        strings.join([b"one"]),
        strings.join([b"two", b"three"]),
    ]
    assert responses[1].error.startswith("input 'T' has a string that is no UTF-8, which Cobol cannot take")
    assert responses[3].error.startswith("input 'S' has a string that is no UTF-8, which Cobol cannot take")
    assert responses[4].error == "input 'T': Invalid bytes tensor data: string extends beyond buffer"


def test_a_run_of_which_no_request_is_left() -> None:
    def compute(gathered: Gathered) -> dict[str, NativeOutput]:
        raise AssertionError("nothing is left to run")

    responses = Gatherer("m", True).run([request(1, S=[b"\xff"]), request(1, S=[b"\xfe"])], compute)
    assert ["0xff" in responses[0].error, "0xfe" in responses[1].error] == [True, True]


@pytest.mark.parametrize("shape", [(2, 3), (4, 3), ()])
@pytest.mark.parametrize("others", [0, 1])
def test_rows_that_miss(shape: tuple[int, ...], others: int) -> None:
    """The model's own rows are others than the batch's; the requests before it in the batch fail with it."""

    def compute(gathered: Gathered) -> dict[str, NativeOutput]:
        return {"Y": NativeOutput("Y", FP32, shape, np.zeros(4 * int(np.prod(shape)), np.uint8))}

    requests = [request(3 - others, X=floats(3 - others, 2))] + [request(1, X=floats(1, 2))] * others
    responses = Gatherer("boxes", True).run(requests, compute)
    assert len(responses) == 1 + others
    for response in responses:
        assert response.code == codes.INTERNAL
        assert (
            f"output 'Y' of model 'boxes' has shape {list(shape)}, but its first dimension must be 3" in response.error
        )
        assert f"X [{3 - others}, 2]" in response.error


def test_a_refusal_is_for_its_run_alone() -> None:
    def compute(gathered: Gathered) -> dict[str, NativeOutput]:
        if gathered.inputs["X"].shape == (2,):
            raise Refusal("not two", codes.UNSUPPORTED)
        return Model()(gathered)

    requests = [request(1, X=floats(3)), request(1, X=floats(2)), request(1, X=floats(1))]
    first, second, third = Gatherer("m", False).run(requests, compute)
    assert (second.error, second.code) == ("not two", codes.UNSUPPORTED)
    assert answers([first, third]) == [[1, 2, 3], [1]]


def test_no_rows_at_all() -> None:
    (response,) = Gatherer("m", True).run([request(0, X=floats(0, 3))], Model())
    assert (response.error, response.outputs[0].shape, response.outputs[0].memory.nbytes) == ("", (0, 3), 0)
