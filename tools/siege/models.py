"""The model repository that is besieged: what polite clients ask, and what hostile ones make the server hold."""

from __future__ import annotations

from pathlib import Path

from tools.bench.repository import IDENTITY, write_configured, write_model

# As many values as it is told: numbers that have many digits as text.
MAKES = """\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.make(int(request.inputs()[0].as_numpy()[0])) for request in requests]

    def make(self, count):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", {values})])
"""
FLOATS = MAKES.format(values="np.arange(count, dtype=np.float32) * np.float32(0.37)")
STRINGS = MAKES.format(values="np.full(count, b'a text', object)")

MAKES_CONFIG = """\
backend: "python"
input [ {{ name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: {data_type} dims: [ -1 ] }} ]
"""

SLOW = IDENTITY.replace("import triton", "import time\n\nimport triton", 1).replace(
    "        responses = []\n", "        time.sleep(0.3)\n        responses = []\n"
)


NAMES = ("small", "large", "echo", "slow", "floats", "strings")


def write(repository: Path) -> None:
    """Polite clients have `small` and `large` to themselves, so that they never wait for a model that others use."""
    for name in ("small", "large", "echo"):
        write_model(repository, name)
    write_model(repository, "slow", code=SLOW, max_batch_size=1)
    write_configured(repository, "floats", FLOATS, MAKES_CONFIG.format(data_type="TYPE_FP32"))
    write_configured(repository, "strings", STRINGS, MAKES_CONFIG.format(data_type="TYPE_STRING"))
