"""Responses."""

from __future__ import annotations

import numpy as np
import pytest
from stubserve_stub.api.exceptions import TritonError, TritonModelException
from stubserve_stub.api.responses import InferenceResponse
from stubserve_stub.api.tensors import Tensor
from stubserve_stub.runtime.outputs import InlinePlacer


def tensors(names: str) -> list[Tensor]:
    return [Tensor(name, np.zeros(1)) for name in names]


def names(response: InferenceResponse) -> str:
    return "".join(tensor.name() for tensor in response.output_tensors())


def test_outputs_are_a_copy_of_the_list() -> None:
    given = tensors("ab")
    response = InferenceResponse(given)
    given.clear()
    response.output_tensors().clear()
    assert names(response) == "ab"


def test_what_is_not_requested_is_dropped_in_place_and_the_order_stays() -> None:
    response = InferenceResponse(tensors("cab"))
    for requested, kept in ((["a", "c", "missing"], "ca"), (["b"], "")):
        error, outputs, _ = response._encode(requested, InlinePlacer())
        assert error is None
        assert [name for name, _, _, _ in outputs] == list(kept)
        assert names(response) == kept


def test_parameters() -> None:
    assert InferenceResponse().parameters() == "{}"
    assert InferenceResponse()._parameters is None
    response = InferenceResponse([], None, {"b": 1, "a": True, "c": "x"})
    assert response.parameters() == '{"b": 1, "a": true, "c": "x"}'
    assert response._parameters == {"b": 1, "a": True, "c": "x"}
    with pytest.raises(TritonModelException, match="Expect parameters values to have type bool/int/str"):
        InferenceResponse(parameters={"a": None})


def test_error() -> None:
    error = TritonError("text", TritonError.NOT_FOUND)
    response = InferenceResponse(error=error)
    assert response.has_error()
    assert response.error() is error
    assert response.output_tensors() == []
