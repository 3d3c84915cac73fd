"""Requests: what was received, and what a model makes."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from stubserve_stub.api.exceptions import TritonModelException
from stubserve_stub.api.requests import InferenceRequest
from stubserve_stub.api.tensors import Tensor
from stubserve_stub.wire.options import RequestOptions


def received(**given: Any) -> InferenceRequest:
    options = RequestOptions(**{name: given.pop(name) for name in RequestOptions._fields if name in given})
    fields: dict[str, Any] = {
        "id": "",
        "options": tuple(options),  # as messages have them
        "trace": None,
        "requested_output_names": ["OUT"],
        "inputs": [],
        "target": None,
        "create_sender": None,
    }
    request: InferenceRequest = object.__new__(InferenceRequest)
    request._set(**{**fields, **given})
    return request


def made(**given: Any) -> InferenceRequest:
    return InferenceRequest(**{"inputs": [], "requested_output_names": [], "model_name": "m", **given})


def test_received() -> None:
    tensor = Tensor("IN", np.zeros(1))
    request = received(
        id="r", correlation_id="seq", flags=3, timeout_us=500, inputs=[tensor], requested_output_names=("B", "A")
    )
    assert request.request_id() == "r"
    assert request.correlation_id() == "seq"
    assert request.flags() == 3
    assert request.timeout() == 500
    assert request.requested_output_names() == {"A", "B"}
    assert request.inputs() == [tensor]
    assert request.trace().get_context() is None


def test_inputs_are_a_new_list_of_the_same_tensors() -> None:
    request = received(inputs=[Tensor("IN", np.zeros(1))])
    request.inputs().clear()
    assert [tensor.name() for tensor in request.inputs()] == ["IN"]


def test_parameters_are_printed_as_whoever_gave_them() -> None:
    assert received(parameters={"a": 1.5, "b": "é"}).parameters() == '{"a":1.5,"b":"é"}'
    assert made(parameters={"a": 1, "b": "é"}).parameters() == '{"a": 1, "b": "\\u00e9"}'
    assert received().parameters() == "{}"


def test_cancellation_is_seen_at_once() -> None:
    request = received()
    assert request.is_cancelled() is False
    request._cancelled = True
    assert request.is_cancelled() is True
    assert made().is_cancelled() is False


def test_release_flags() -> None:
    request = received()
    assert request._release_flags == 0
    request.set_release_flags(2)
    assert request._release_flags == 2
    for unfit in (None, -1, 1.0):
        with pytest.raises(TypeError, match="set_release_flags\\(\\): incompatible function arguments"):
            request.set_release_flags(unfit)  # type: ignore[arg-type]


def test_arguments_are_copied() -> None:
    inputs, names = [Tensor("IN", np.zeros(1))], ["OUT"]
    request = made(inputs=inputs, requested_output_names=names)
    inputs.clear()
    names.clear()
    assert len(request.inputs()) == 1
    assert request.requested_output_names() == {"OUT"}


def test_unknown_argument() -> None:
    with pytest.raises(TypeError):
        made(bogus=1)


@pytest.mark.parametrize("correlation_id", [-1, 2**64])
def test_correlation_id_out_of_range(correlation_id: int) -> None:
    with pytest.raises(TritonModelException, match=f"got {correlation_id}$"):
        made(correlation_id=correlation_id)


def test_correlation_id_that_cannot_be_sent() -> None:
    with pytest.raises(TritonModelException, match="Correlation ID has characters that UTF-8 cannot encode"):
        made(correlation_id="\ud800")


def test_sequences_of_other_kinds() -> None:
    inputs = np.array([Tensor("IN", np.zeros(1))], dtype=object)
    assert [tensor.name() for tensor in made(inputs=inputs).inputs()] == ["IN"]
    assert made(requested_output_names=np.array(["A"])).requested_output_names() == {"A"}


@pytest.mark.parametrize("decoupled", [False, True])
def test_bls_is_refused_where_no_server_is(decoupled: bool) -> None:
    async def awaited() -> None:
        await made(model_name="other").async_exec(decoupled=decoupled)

    refusal = r"^BLS is only supported during the 'execute' function\.$"
    with pytest.raises(TritonModelException, match=refusal):
        made(model_name="other").exec(decoupled=decoupled)
    with pytest.raises(TritonModelException, match=refusal):
        asyncio.run(awaited())


def test_sender_is_always_the_same() -> None:
    request = received()
    assert request.get_response_sender() is request.get_response_sender()
    assert request.get_response_sender().is_cancelled() is False
