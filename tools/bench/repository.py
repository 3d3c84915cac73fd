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
