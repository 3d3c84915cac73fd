"""The backends that a stub has built in, by their names in a configuration."""

from __future__ import annotations

import importlib
from typing import Any

PYTHON = "python"
# The module and class of each. A stub imports only the one that it runs.
BUILT_IN = {
    PYTHON: ("stubserve_stub.backends.python.backend", "PythonBackend"),
    "identity": ("stubserve_stub.backends.identity", "IdentityBackend"),
    "repeat": ("stubserve_stub.backends.repeat", "RepeatBackend"),
    "square": ("stubserve_stub.backends.repeat", "SquareBackend"),
    "onnxruntime": ("stubserve_stub.backends.onnxruntime.backend", "OnnxRuntimeBackend"),
    "tensorrt": ("stubserve_stub.backends.tensorrt.backend", "TensorRtBackend"),
    "pytorch": ("stubserve_stub.backends.pytorch.backend", "PyTorchBackend"),
    "remote": ("stubserve_stub.backends.remote.backend", "RemoteBackend"),
    "llamacpp": ("stubserve_stub.backends.llamacpp.backend", "LlamaCppBackend"),
    "tracking": ("stubserve_stub.backends.tracking.backend", "TrackingBackend"),
    "video": ("stubserve_stub.backends.video.backend", "VideoBackend"),
}
# Those that run in the environment that a model names, because their packages are there
IN_ENVIRONMENTS = frozenset({PYTHON, "onnxruntime", "tensorrt", "pytorch", "llamacpp", "tracking", "video"})

# Those for which `runtime: "model.py"` means something: in Triton they have a model.py beside the library
WITH_PYTHON_RUNTIME = frozenset({"pytorch"})

# Those whose implicit states the server keeps, and gives with each request: they outlive the stub
STATES_WITH_SERVER = frozenset({"tracking"})


def find(name: str) -> Any:
    module, backend = BUILT_IN[name]
    return getattr(importlib.import_module(module), backend)()
