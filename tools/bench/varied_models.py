"""The models that answer requests which differ: mirrors, which return their inputs, and models that call them."""

from __future__ import annotations

from pathlib import Path

from .repository import write_configured

MIRROR = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensors = [pb_utils.Tensor("OUT_" + one.name(), one.as_numpy()) for one in request.inputs()]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
"""

# Asks another model the same, once for each request.
ASKING = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.ask(request) for request in requests]

    def ask(self, request):
        asked = pb_utils.InferenceRequest(
            model_name="{asked}", requested_output_names=["OUT_NUMBERS"], inputs=request.inputs()
        )
        response = asked.exec()
        if response.has_error():
            raise pb_utils.TritonModelException(response.error().message())
        return pb_utils.InferenceResponse(response.output_tensors())
"""

CONFIG = """\
backend: "python"
max_batch_size: 64
input [ {inputs} ]
output [ {outputs} ]
dynamic_batching {{ }}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""

Input = tuple[str, str]
NUMBERS: Input = ("NUMBERS", "TYPE_FP32")
TWENTY = [f"numbers_{number:02}" for number in range(20)]


def write_varied(repository: Path) -> None:
    """A mirror for each kind of request, and three models each of which calls the one before."""
    _write(repository, "mixed", ("A", "TYPE_FP32"), ("B", "TYPE_INT32"), ("C", "TYPE_FP32"), optional=("C",))
    _write(repository, "numbers", NUMBERS)
    _write(repository, "texts", ("TEXTS", "TYPE_STRING"))
    _write(repository, "flags", ("FLAGS", "TYPE_BOOL"), ("COUNTS", "TYPE_INT64"))
    for name, asked in (("ask", "numbers"), ("ask_2", "ask"), ("ask_3", "ask_2")):
        _write(repository, name, NUMBERS, code=ASKING.format(asked=asked))


def write_twenty(repository: Path) -> None:
    """Twenty mirrors of numbers."""
    for name in TWENTY:
        _write(repository, name, NUMBERS)


def _write(repository: Path, name: str, *inputs: Input, optional: tuple[str, ...] = (), code: str = MIRROR) -> None:
    fields = [
        f'{{ name: "{each}" data_type: {data_type} dims: [ -1 ]{" optional: true" if each in optional else ""} }}'
        for each, data_type in inputs
    ]
    outputs = [f'{{ name: "OUT_{each}" data_type: {data_type} dims: [ -1 ] }}' for each, data_type in inputs]
    config = CONFIG.format(inputs=", ".join(fields), outputs=", ".join(outputs))
    write_configured(repository, name, code, config)
