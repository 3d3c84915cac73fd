"""The models of a chaotic run. Each answer follows from its request, so every success can be checked."""

from __future__ import annotations

from pathlib import Path

from tools.bench.repository import write_configured

# Each answer is `y` of the request's only input.
EACH = """\
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(SLEEPS_S)
        return [self.answer(request.inputs()[0].as_numpy()) for request in requests]

    def answer(self, x):
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", Y_OF_X)])
"""


def each(y: str, sleeps_s: float = 0.0) -> str:
    """The code of a model that answers `y`, an expression of x, after a while."""
    return EACH.replace("Y_OF_X", y).replace("SLEEPS_S", str(sleeps_s))


# y = 2x + 1. With CHILDREN it has a process of its own, as models have that start workers.
WORKS = """\
import os
import subprocess

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.child = None
        if os.environ.get("CHAOS_CHILDREN"):
            self.child = subprocess.Popen(["sleep", "1000"])

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", 2 * request.inputs()[0].as_numpy() + 1)])
            for request in requests
        ]

    def finalize(self):
        if self.child is not None:
            self.child.kill()
            self.child.wait()
"""
WORKS_TENSORS = """\
max_batch_size: 16
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
WORKS_CONFIG = f"""\
backend: "python"
{WORKS_TENSORS}\
dynamic_batching {{ }}
instance_group [ {{ count: 2 kind: KIND_CPU }} ]
"""


def ensemble(*steps: str, tensors: str = WORKS_TENSORS, more: str = "") -> str:
    """The configuration of an ensemble, with a step for each `MODEL INPUT=TENSOR ... -> OUTPUT=TENSOR`."""
    lines = ['platform: "ensemble"', tensors.rstrip(), "ensemble_scheduling {", more]
    for step in steps:
        (model, *inputs), outputs = (words.split() for words in step.split(" -> "))
        lines.append(f'  step {{ model_name: "{model}" model_version: -1')
        for kind, pairs in ("input", inputs), ("output", outputs):
            for key, tensor in (pair.split("=") for pair in pairs):
                lines.append(f'    {kind}_map {{ key: "{key}" value: "{tensor}" }}')
        lines.append("  }")
    return "\n".join([*lines, "}", ""])


# N, N - 1, ... 1, in order.
COUNTS = """\
import threading

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.count, args=(request,)).start()

    def count(self, request):
        sender = request.get_response_sender()
        for value in range(int(request.inputs()[0].as_numpy().flat[0]), 0, -1):
            if request.is_cancelled():
                break
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([value], np.int32))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
COUNTS_TENSORS = """\
input [ { name: "N" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
COUNTS_CONFIG = 'backend: "python"\nmodel_transaction_policy { decoupled: true }\n' + COUNTS_TENSORS

# What `works` makes of x, negated.
CALLS = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.call(request.inputs()[0]) for request in requests]

    def call(self, tensor):
        request = pb_utils.InferenceRequest(
            model_name="works",
            requested_output_names=["Y"],
            inputs=[pb_utils.Tensor("X", tensor.as_numpy())],
        )
        response = request.exec()
        if response.has_error():
            return pb_utils.InferenceResponse(error=response.error())
        y = pb_utils.get_output_tensor_by_name(response, "Y").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", -y)])
"""
CALLS_CONFIG = WORKS_CONFIG.replace("dynamic_batching { }\n", "")


# Each number, negated.
NEGATES = each("-x")
NEGATES_CONFIG = 'backend: "python"\n' + COUNTS_TENSORS

# A minus B.
SUBTRACTS = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            a, b = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in "AB")
            # It owns neither, and writes to one all the same.
            a -= b
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", a)]))
        return responses
"""
SUBTRACTS_CONFIG = WORKS_CONFIG.replace(
    '{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }',
    '{ name: "A" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "B" data_type: TYPE_FP32 dims: [ -1 ] }',
)

# y = 4x + 3: `works` twice.
CHAIN_CONFIG = ensemble("works X=X -> Y=half", "works X=half -> Y=Y")

# y = 4x + 2: `works` and, through a model that calls it, its opposite, and the one less the other; x is read by both.
FORK_CONFIG = ensemble("works X=X -> Y=a", "calls X=X -> Y=b", "subtracts A=a B=b -> Y=Y")

# -N, 1 - N, ... -1, in order.
COUNTED_CONFIG = ensemble("counts N=N -> Y=n", "negates N=n -> Y=Y", tensors=COUNTS_TENSORS)

# The sum of what a sequence has sent, kept in a dictionary. One that it does not know is none of its own.
SUMS = """\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self.add(request) for request in requests]

    def add(self, request):
        key = request.correlation_id()
        if request.flags() & 1:
            self.sums[key] = 0
        if key not in self.sums:
            return self.answer(-1)
        self.sums[key] += int(pb_utils.get_input_tensor_by_name(request, "X").as_numpy()[0, 0])
        return self.answer(self.sums.pop(key) if request.flags() & 2 else self.sums[key])

    def answer(self, sum):
        return pb_utils.InferenceResponse([pb_utils.Tensor("SUM", np.array([[sum]], np.int32))])
"""

# The same with implicit state, of which most does not fit into a message.
KEEPS = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.add(request) for request in requests]

    def add(self, request):
        x, state = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("X", "OLD"))
        state += x
        same = (state == state[0, 0]).all()
        sum = state[:, :1] if same else 0 * x - 1
        return pb_utils.InferenceResponse([pb_utils.Tensor("SUM", sum.copy()), pb_utils.Tensor("NEW", state)])
"""
KEEPS_STATE = """\
  state {
    input_name: "OLD" output_name: "NEW" data_type: TYPE_INT32 dims: [ 5000 ]
    initial_state { name: "zeros" data_type: TYPE_INT32 dims: [ 5000 ] zero_data: true }
  }
"""
# A sequence that nobody goes on with is soon over, and what a load replaces is soon gone.
SUMS_CONFIG = """\
backend: "python"
max_batch_size: 4
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "SUM" data_type: TYPE_INT32 dims: [ 1 ] } ]
sequence_batching {
  max_sequence_idle_microseconds: 2000000
  %s
}
instance_group [ { count: 2 kind: KIND_CPU } ]
"""


def write(repository: Path) -> None:
    write_configured(repository, "negates", NEGATES, NEGATES_CONFIG)
    write_configured(repository, "subtracts", SUBTRACTS, SUBTRACTS_CONFIG)
    for name, config in (("chain", CHAIN_CONFIG), ("fork", FORK_CONFIG), ("counted", COUNTED_CONFIG)):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
    write_configured(repository, "works", WORKS, WORKS_CONFIG)
    write_configured(repository, "counts", COUNTS, COUNTS_CONFIG)
    write_configured(repository, "calls", CALLS, CALLS_CONFIG)
    write_configured(repository, "sums", SUMS, SUMS_CONFIG % "direct { }")
    write_configured(repository, "keeps", KEEPS, SUMS_CONFIG % f"oldest {{ max_candidate_sequences: 4 }} {KEEPS_STATE}")


def works_with(instances: int) -> str:
    """The configuration of `works` with as many instances."""
    return WORKS_CONFIG.replace("count: 2", f"count: {instances}")


def sums_with(instances: int, turn: int) -> str:
    """The configuration of `sums` with as many instances; one of another `turn` is loaded anew."""
    config = (SUMS_CONFIG % "direct { }").replace("count: 2", f"count: {instances}")
    return f'{config}parameters {{ key: "turn" value {{ string_value: "{turn}" }} }}\n'
