"""The names of the public module, its import outside a server, and what it does not offer yet."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import c_python_backend_utils
import numpy as np
import pytest
import triton_python_backend_utils as pb_utils

STUB = Path(__file__).parents[2] / "stub"

# Those of Triton 2.51.
NAMES = """
InferenceRequest InferenceResponse Logger MetricFamily ModelConfig PreferredMemory TRITONSERVER_MEMORY_CPU
TRITONSERVER_MEMORY_GPU TRITONSERVER_REQUEST_FLAG_SEQUENCE_END TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
TRITONSERVER_REQUEST_RELEASE_ALL TRITONSERVER_REQUEST_RELEASE_RESCHEDULE TRITONSERVER_RESPONSE_COMPLETE_FINAL
TRITON_STRING_TO_NUMPY Tensor TritonError TritonModelException deserialize_bytes_tensor get_input_config_by_name
get_input_tensor_by_name get_model_dir get_output_config_by_name get_output_tensor_by_name is_model_ready load_model
numpy_to_triton_type serialize_byte_tensor triton_string_to_numpy triton_to_numpy_type unload_model
using_decoupled_model_transaction_policy
"""
# What it imports itself.
NAMES += "json np struct "
# Beyond Triton's.
NAMES += "stack unstack"
NAMES_BEHIND = """
COUNTER GAUGE HISTOGRAM InferenceRequest InferenceResponse InferenceResponseSender InferenceTrace Logger MemoryType
Metric MetricFamily MetricKind PreferredMemory ResponseIterator SharedMemory TRITONSERVER_MEMORY_CPU
TRITONSERVER_MEMORY_GPU Tensor TritonError TritonModelException is_model_ready load_model shared_memory unload_model
"""


@pytest.mark.parametrize(("module", "names"), [(pb_utils, NAMES), (c_python_backend_utils, NAMES_BEHIND)])
def test_names(module: ModuleType, names: str) -> None:
    assert set(module.__all__) == set(names.split())
    assert [name for name in names.split() if not hasattr(module, name)] == []


def test_import_in_a_plain_interpreter() -> None:
    program = (
        "import sys\n"
        "sys.modules['msgpack'] = None\n"
        "import triton_python_backend_utils\n"
        "print(sorted(name for name in sys.modules if name.startswith('stubserve') and '_stub' not in name))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(STUB)}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_there_is_no_shared_memory_without_a_server() -> None:
    with pytest.raises(pb_utils.TritonModelException, match=r"^There is no shared memory outside of a server"):
        c_python_backend_utils.shared_memory.free_memory()


@pytest.mark.parametrize(
    ("call", "failure"),
    [
        (lambda: pb_utils.load_model("m"), "Failed to load model"),
        (lambda: pb_utils.load_model(model_name="m", config="{}", files={}), "Failed to load model"),
        (lambda: pb_utils.unload_model("m", unload_dependents=True), "Failed to unload model"),
        (lambda: pb_utils.is_model_ready("m", "1"), "Failed to check model readiness"),
    ],
)
def test_there_is_no_server_to_ask(call: Callable[[], Any], failure: str) -> None:
    with pytest.raises(pb_utils.TritonModelException, match=f"^{failure}: there is no server to ask"):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: pb_utils.load_model(None),
        lambda: pb_utils.load_model("m", config=5),
        lambda: pb_utils.unload_model("m", unload_dependents=1),
        lambda: pb_utils.is_model_ready("m", 1),
    ],
)
def test_model_control_wants_text(call: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match="incompatible function arguments"):
        call()


def test_a_model_in_a_unit_test() -> None:
    def execute(requests: list[Any]) -> list[Any]:
        answers = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "IN")
            assert tensor is not None
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor.as_numpy() * 2)]))
        return answers

    request = pb_utils.InferenceRequest(
        inputs=[pb_utils.Tensor("IN", np.arange(3))], requested_output_names=["OUT"], model_name="m"
    )
    (response,) = execute([request])
    output = pb_utils.get_output_tensor_by_name(response, "OUT")
    assert output is not None
    assert output.as_numpy().tolist() == [0, 2, 4]
