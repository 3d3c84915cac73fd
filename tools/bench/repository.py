"""The model repositories that both servers read, written afresh for each run."""

from __future__ import annotations

from pathlib import Path

IDENTITY = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "INPUT0")
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", tensor.as_numpy())]))
        return responses
"""

# Stands for a model on an accelerator: a batch takes 2 ms whatever its size, and the processor is free meanwhile.
SLEEPING = IDENTITY.replace("import triton", "import time\n\nimport triton", 1).replace(
    "        responses = []\n", "        time.sleep(0.002)\n        responses = []\n"
)

# As many responses as it is told, sent by a thread for each request.
REPEATING = """\
import threading

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.repeat, args=(request,)).start()

    def repeat(self, request):
        count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
        sender = request.get_response_sender()
        for value in range(count):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("VALUE", np.array([value], np.int32))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

REPEATING_CONFIG = """\
backend: "python"
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "VALUE" data_type: TYPE_INT32 dims: [ 1 ] } ]
model_transaction_policy { decoupled: true }
"""

# Calls an identity model as often as it is told, with as many floats as it is told, one call after the other.
CALLING = """\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.call(*request.inputs()[0].as_numpy()) for request in requests]

    def call(self, calls, floats):
        values = np.arange(floats, dtype=np.float32)[None]
        for _ in range(calls):
            tensors = [pb_utils.Tensor("INPUT0", values)]
            request = pb_utils.InferenceRequest(
                model_name="identity_fp32", requested_output_names=["OUTPUT0"], inputs=tensors
            )
            response = request.exec()
            if response.has_error():
                raise pb_utils.TritonModelException(response.error().message())
            answer = pb_utils.get_output_tensor_by_name(response, "OUTPUT0").as_numpy()
        right = np.array_equal(answer, values)
        return pb_utils.InferenceResponse([pb_utils.Tensor("RIGHT", np.array([calls if right else 0], np.int32))])
"""

CALLING_CONFIG = """\
backend: "python"
input [ { name: "CALLS_AND_FLOATS" data_type: TYPE_INT32 dims: [ 2 ] } ]
output [ { name: "RIGHT" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""

# Adds its four inputs.
JOINING = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            a, b, c, d = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in "ABCD")
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", a + b + c + d)]))
        return responses
"""

JOINING_CONFIG = """\
backend: "python"
max_batch_size: 64
input [
  { name: "A" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "B" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "C" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "D" data_type: TYPE_FP32 dims: [ -1 ] }
]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
dynamic_batching { }
instance_group [ { count: 1 kind: KIND_CPU } ]
"""

ENSEMBLE_CONFIG = """\
platform: "ensemble"
max_batch_size: 64
input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
ensemble_scheduling {{
  step [
{steps}
  ]
}}
"""

CONFIG = """\
backend: "python"
max_batch_size: {max_batch_size}
input [ {{ name: "INPUT0" data_type: {data_type} dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: {data_type} dims: [ -1 ] }} ]
dynamic_batching {{ }}
instance_group [ {{ count: {instances} kind: KIND_CPU }} ]
"""


def write_model(
    repository: Path,
    name: str,
    *,
    data_type: str = "TYPE_FP32",
    code: str = IDENTITY,
    max_batch_size: int = 64,
    instances: int = 1,
) -> None:
    """Writes one model of one input and one output, in version 1, into `repository`."""
    config = CONFIG.format(data_type=data_type, max_batch_size=max_batch_size, instances=instances)
    write_configured(repository, name, code, config)


def write_configured(repository: Path, name: str, code: str, config: str) -> None:
    """Writes one model with this configuration, in version 1, into `repository`."""
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(code)
    (folder / "config.pbtxt").write_text(config)


def write_ensemble(repository: Path, name: str, steps: list[tuple[str, dict[str, str], str]]) -> None:
    """Writes an ensemble. A step is its model, the tensors of its inputs by their names, the tensor of its OUTPUT0."""
    lines = []
    for model, inputs, output in steps:
        maps = "".join(f'input_map {{ key: "{key}" value: "{tensor}" }} ' for key, tensor in inputs.items())
        maps += f'output_map {{ key: "OUTPUT0" value: "{output}" }}'
        lines.append(f'    {{ model_name: "{model}" model_version: -1 {maps} }}')
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(ENSEMBLE_CONFIG.format(steps=",\n".join(lines)))


def write_chain(repository: Path, name: str, *models: str) -> None:
    """An ensemble that hands one tensor from model to model."""
    ends = ["INPUT0", *(f"t{number}" for number in range(1, len(models))), "OUTPUT0"]
    chain = zip(models, ends, ends[1:], strict=False)
    write_ensemble(repository, name, [(model, {"INPUT0": source}, target) for model, source, target in chain])


def write_pipelines(repository: Path) -> None:
    """Identity models in a row, and one tensor that goes through four of them side by side."""
    for number in range(4):
        write_model(repository, f"step_{number}")
    write_configured(repository, "join", JOINING, JOINING_CONFIG)
    write_chain(repository, "chain_2", "step_0", "step_1")
    write_chain(repository, "chain_3", "step_0", "step_1", "step_2")
    parts: list[tuple[str, dict[str, str], str]] = [
        (f"step_{number}", {"INPUT0": "INPUT0"}, f"part{number}") for number in range(4)
    ]
    join = {name: f"part{number}" for number, name in enumerate("ABCD")}
    write_ensemble(repository, "fan", [*parts, ("join", join, "OUTPUT0")])


def write_serving(repository: Path) -> None:
    """The models of all timed requests."""
    write_model(repository, "identity_fp32")
    write_model(repository, "identity_bytes", data_type="TYPE_STRING")
    write_model(repository, "sleep_2ms", code=SLEEPING, max_batch_size=8, instances=4)
    write_configured(repository, "repeat", REPEATING, REPEATING_CONFIG)
    write_configured(repository, "calls", CALLING, CALLING_CONFIG)


def write_many(repository: Path, count: int) -> None:
    """`count` identity models, to be loaded and nothing else."""
    for i in range(count):
        write_model(repository, f"identity_{i:02}")
