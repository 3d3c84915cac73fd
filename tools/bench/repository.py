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
    """Writes one model with version 1 into `repository`."""
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(code)
    config = CONFIG.format(data_type=data_type, max_batch_size=max_batch_size, instances=instances)
    (folder / "config.pbtxt").write_text(config)


def write_serving(repository: Path) -> None:
    """The models of all timed requests."""
    write_model(repository, "identity_fp32")
    write_model(repository, "identity_bytes", data_type="TYPE_STRING")
    write_model(repository, "sleep_2ms", code=SLEEPING, max_batch_size=8, instances=4)


def write_many(repository: Path, count: int) -> None:
    """`count` identity models, to be loaded and nothing else."""
    for i in range(count):
        write_model(repository, f"identity_{i:02}")
