"""What a model is told of outputs that are not those of its configuration."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from stubserve_stub.api.exceptions import TritonError
from stubserve_stub.api.responses import InferenceResponse
from stubserve_stub.api.tensors import Tensor
from stubserve_stub.backends.python.output_check import ALWAYS, FIRST, NEVER, OutputCheck
from stubserve_stub.runtime.outputs import InlinePlacer

FLOATS = {"name": "Y", "data_type": "TYPE_FP32", "dims": [-1, 2]}
SCALAR = {"name": "Z", "data_type": "TYPE_INT64", "dims": [1], "reshape": {"shape": []}}


def check(told: list[str], mode: str = ALWAYS, batches: int = 0, decoupled: bool = False) -> OutputCheck:
    config: dict[str, Any] = {"max_batch_size": batches, "output": [FLOATS, SCALAR]}
    if decoupled:
        config["model_transaction_policy"] = {"decoupled": True}
    return OutputCheck(mode, "m", json.dumps(config), told.append)


def answer(*tensors: tuple[str, Any]) -> InferenceResponse:
    return InferenceResponse([Tensor(name, np.asarray(array)) for name, array in tensors])


Y = ("Y", np.zeros((3, 2), np.float32))
Z = ("Z", np.zeros((), np.int64))


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        ([Y, Z], None),
        ([Z], "output 'Y' is not among the outputs that it answered ('Z')"),
        ([Y, Z, ("X", np.zeros(1))], "output 'X' is not in its configuration, and is dropped"),
        ([("Y", np.zeros((3, 2))), Z], "output 'Y' is TYPE_FP64, and its configuration says TYPE_FP32"),
        ([("Y", np.zeros((3, 3), np.float32)), Z], "output 'Y' has shape [3, 3], expected was [-1, 2]"),
        ([("Y", np.zeros(2, np.float32)), Z], "output 'Y' has shape [2], expected was [-1, 2]"),
    ],
)
def test_each_mistake_is_told_once(tensors: list[Any], text: str | None) -> None:
    told: list[str] = []
    looking = check(told)
    for _ in range(2):
        looking.look(answer(*tensors), ["Y", "Z"], None)
    assert told == ([] if text is None else [f"model 'm': {text}"])


def test_the_rows_of_a_batch_are_those_of_the_request() -> None:
    told: list[str] = []
    looking = check(told, batches=8)
    batch = [("Y", np.zeros((2, 3, 2), np.float32)), ("Z", np.zeros(2, np.int64))]
    looking.look(answer(*batch), ["Y"], 2)
    assert told == []
    looking.look(answer(*batch), ["Y"], 4)
    assert told == [
        "model 'm': output 'Y' has shape [2, 3, 2], expected was [4, -1, 2]",
        "model 'm': output 'Z' has shape [2], expected was [4]",
    ]


def test_what_nobody_asked_for_may_be_missing_and_a_stream_may_answer_in_parts() -> None:
    told: list[str] = []
    check(told).look(answer(Z), ["Z"], None)
    check(told, decoupled=True).look(answer(Z), ["Y", "Z"], None)
    check(told).look(InferenceResponse([], error=TritonError("no")), ["Y", "Z"], None)
    check(told).look(None, ["Y", "Z"], None)
    assert told == []


def test_by_default_only_the_first_answers_are_looked_at() -> None:
    told: list[str] = []
    looking = check(told, FIRST)
    for _ in range(100):
        assert looking.left
        looking.look(answer(Y, Z), ["Y", "Z"], None)
    assert not looking.left
    looking.look(answer(Z), ["Y", "Z"], None)
    assert told == []
    assert not check(told, NEVER).left


@pytest.mark.parametrize(
    ("tensors", "requested", "error"),
    [
        ([Z, ("X", 1.0)], ["Y", "Z"], "output 'X' is not in its configuration; output 'Y' is not among the outputs"),
        ([("X", 1.0)], ["Y"], "output 'X' is not in its configuration; output 'Y' is not among the outputs"),
        ([Y, Z, ("X", 1.0)], ["Y", "Z"], None),  # upstream drops it, and the answer is whole
        ([Y, Z, ("X", 1.0)], ["Z"], None),
        ([Z], ["Y", "Z"], None),  # upstream lets a model leave out outputs
        ([Z], ["Y"], None),
    ],
)
@pytest.mark.parametrize("decoupled", [False, True])
def test_an_output_in_place_of_another_is_refused(
    tensors: list[Any], requested: list[str], error: str | None, decoupled: bool
) -> None:
    misnamed = check([], decoupled=decoupled).misnamed
    refused, outputs, _ = answer(*tensors)._encode(requested, InlinePlacer(), misnamed=misnamed)
    if error is None:
        assert refused is None
        assert len(outputs) == len(set(requested) & {name for name, _ in tensors})
    else:
        assert refused is not None
        assert refused[0].startswith(f"model 'm': {error}")
