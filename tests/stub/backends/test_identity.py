"""The identity backend by itself; what it does in a server is in tests/server/test_identity_backend.py."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest
from stubserve_stub.backends.base import InstanceSetup
from stubserve_stub.backends.identity.backend import IdentityBackend
from stubserve_stub.backends.native import InputView, NativeRequest
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import codes

FP32 = 11


def identity(name: str = "m_0", optional: bool = False, **parameters: str) -> IdentityBackend:
    tensors = {"data_type": "TYPE_FP32", "dims": [-1, 3]}
    config = {
        "max_batch_size": 4,
        "input": [{"name": "INPUT0", **tensors, "optional": optional}, {"name": "INPUT_7", **tensors}],
        "output": [{"name": "OUTPUT_7", **tensors}, {"name": "OUTPUT0", **tensors}],
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
    }
    backend = IdentityBackend()
    backend.instance_initialize(InstanceSetup(name, {"model_config": json.dumps(config)}, ["OUTPUT0"], False))
    return backend


def given(name: str) -> InputView:
    return InputView(name, FP32, [2, 1, 3], np.zeros(24, np.uint8))


def test_the_memory_is_the_inputs_own() -> None:
    """What follows OUTPUT says which, and only what is asked for is answered."""
    inputs = {name: given(name) for name in ("INPUT0", "INPUT_7")}
    (response,) = identity().compute([NativeRequest(inputs, ["OUTPUT_7"], 2)])
    (output,) = response.outputs
    assert (output.name, output.datatype, output.shape) == ("OUTPUT_7", FP32, [2, 1, 3])
    assert output.memory is inputs["INPUT_7"].memory


def test_each_request_is_answered_by_itself() -> None:
    """One without its input does not keep the others from theirs."""
    good = NativeRequest({"INPUT0": given("INPUT0")}, ["OUTPUT0"], 2)
    fine, failed = identity().compute([good, NativeRequest({}, ["OUTPUT0"], 1)])
    assert not fine.error
    assert (failed.error, failed.code) == ("failed to get input 'INPUT0'", codes.UNSUPPORTED)
    (response,) = identity(optional=True).compute([NativeRequest({}, ["OUTPUT0"], 2)])
    assert response.outputs[0][1:] == (FP32, [2, 1, 3], bytes(24))


@pytest.mark.parametrize(
    ("name", "parameters", "seconds"),
    [
        ("m_0", {}, None),
        ("m_0", {"execute_delay_ms": "250"}, 0.25),
        ("m_1", {"execute_delay_ms": "250"}, 0.25),
        ("m_0_0", {"execute_delay_ms": "250", "instance_wise_delay_multiplier": "4"}, 0.25),
        ("m_0_1", {"execute_delay_ms": "250", "instance_wise_delay_multiplier": "4"}, 1.0),
        ("m_0_3", {"execute_delay_ms": "250", "instance_wise_delay_multiplier": "4"}, 3.0),
        ("named", {"execute_delay_ms": "250", "instance_wise_delay_multiplier": "4"}, 0.25),
        ("m_3", {"instance_wise_delay_multiplier": "4"}, None),
    ],
)
def test_how_long_a_batch_takes(
    monkeypatch: pytest.MonkeyPatch, name: str, parameters: Any, seconds: float | None
) -> None:
    backend = identity(name, **parameters)
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    backend.compute([])
    assert slept == ([] if seconds is None else [seconds])


def test_how_long_a_load_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    identity(creation_delay_sec="7")
    assert slept == [7]


@pytest.mark.parametrize("value", ["", "-1", "soon", "1.5"])
def test_a_parameter_that_is_no_number(value: str) -> None:
    with pytest.raises(Refusal, match=f"'execute_delay_ms' .* must be an integer from 0 on, got '{value}'$"):
        identity(execute_delay_ms=value)
