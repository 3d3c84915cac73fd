"""The backends that a stub has built in, by their names in a configuration."""

from __future__ import annotations

import importlib
from typing import Any

PYTHON = "python"
# Where each lies. Nothing is imported but the one that a stub runs.
BUILT_IN = {
    PYTHON: ("stubserve_stub.backends.python.backend", "PythonBackend"),
    "identity": ("stubserve_stub.backends.identity", "IdentityBackend"),
    "repeat": ("stubserve_stub.backends.repeat", "RepeatBackend"),
    "square": ("stubserve_stub.backends.repeat", "SquareBackend"),
    "onnxruntime": ("stubserve_stub.backends.onnxruntime.backend", "OnnxRuntimeBackend"),
    "pytorch": ("stubserve_stub.backends.pytorch.backend", "PyTorchBackend"),
}
# Those that run in the environment that a model names, for the packages that they need are there
IN_ENVIRONMENTS = frozenset({PYTHON, "onnxruntime", "pytorch"})

# Those that stand for the model.py beside the library in Triton, too: `runtime: "model.py"` means something to them
WITH_PYTHON_RUNTIME = frozenset({"pytorch"})


def find(name: str) -> Any:
    """A new backend of that name."""
    module, backend = BUILT_IN[name]
    return getattr(importlib.import_module(module), backend)()
