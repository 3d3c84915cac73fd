"""TorchScript behind a server, beside a bare loop over the same module with the same one thread.

No other server of the table runs TorchScript here: real Triton's package has no libtorch. So what the rows tell is the
share of the bare loop alone.
"""

from __future__ import annotations

import importlib.util
import warnings
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from . import onnx_models
from .onnx_loads import OnnxLoad
from .onnx_models import BATCH, CLASSES, VALUES, WIDTH, OnnxModel
from .servers import Program

CONFIG = """\
backend: "pytorch"
max_batch_size: {batch}
input [ {{ name: "X" data_type: TYPE_FP32 dims: [ {values} ] }} ]
output [ {{ name: "Y__0" data_type: TYPE_FP32 dims: [ {classes} ] }} ]
dynamic_batching {{ }}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
parameters {{ key: "INTRA_OP_THREAD_COUNT" value {{ string_value: "1" }} }}
parameters {{ key: "INTER_OP_THREAD_COUNT" value {{ string_value: "1" }} }}
"""


def available() -> bool:
    """Whether the package is there that makes and runs the models."""
    return importlib.util.find_spec("torch") is not None


def dense(layers: int) -> Any:
    """As `onnx_models.dense`, in TorchScript."""
    import torch

    class Dense(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = [VALUES, *[WIDTH] * layers, CLASSES]
            torch.manual_seed(0)
            parts: list[torch.nn.Module] = []
            for before, after in pairwise(sizes):
                parts += [torch.nn.Linear(before, after), torch.nn.ReLU()]
            self.layers = torch.nn.Sequential(*parts[:-1])

        def forward(self, X: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.layers(X)
            return result

    with warnings.catch_warnings():
        # Newer releases advise against TorchScript. Files of it are what users have.
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.trace(Dense().eval(), torch.zeros(1, VALUES))


MODELS = [OnnxModel("torch_1ms", VALUES, 9, dense), OnnxModel("torch_10ms", VALUES, 80, dense)]


def write(repository: Path) -> None:
    """All models, each on one thread and with batches of up to BATCH."""
    for model in MODELS:
        folder = repository / model.name
        (folder / "1").mkdir(parents=True)
        (folder / "config.pbtxt").write_text(CONFIG.format(batch=BATCH, values=model.values, classes=CLASSES))
        model.make(model.layers).save(str(folder / "1" / "model.pt"))


class TorchLoad(OnnxLoad):
    """As OnnxLoad, for TorchScript."""

    backend = "pytorch"
    repository, file, output = "torch", "model.pt", "Y__0"
    write = staticmethod(write)

    def serves(self, program: Program) -> bool:
        return program.onnx and program.kserve

    @cached_property
    def _answers(self) -> list[bytes]:
        import torch

        module = self._model.make(self._model.layers)
        with torch.inference_mode():
            return [module(torch.from_numpy(given)).numpy().tobytes() for given in self._inputs]


def all_loads() -> list[TorchLoad]:
    return [TorchLoad(model, 128, 64, onnx_models.BATCH) for model in MODELS]
