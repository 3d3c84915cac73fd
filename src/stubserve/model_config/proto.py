"""NVIDIA's own `ModelConfig` message, without gRPC.

The generated module ships inside `tritonclient.grpc`, and importing that package brings in grpcio: a quarter of a
second and 30 MB that a server without gRPC has no use for. So only the one generated file is executed, found by its
place on disk.

Guarantees:
- whoever imports the real `tritonclient.grpc` later, or did so before, works with the very same message class:
  protobuf keeps one class per descriptor, and registering an identical file twice is a no-op;
- the module is deliberately *not* left in `sys.modules`. An entry there would make the later real import skip the step
  that binds `model_config_pb2` as an attribute of its package.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from google.protobuf.descriptor import FieldDescriptor

__all__ = ["ModelConfig", "is_repeated", "model_config_pb2"]

_MODULE = "tritonclient.grpc.model_config_pb2"


def _load() -> ModuleType:
    loaded = sys.modules.get(_MODULE)
    if loaded is not None:
        return loaded
    # Finding the spec of a subpackage imports its parent only, and `tritonclient/__init__.py` is empty.
    package = importlib.util.find_spec("tritonclient.grpc")
    if package is None or not package.submodule_search_locations:
        raise ImportError("the package tritonclient[grpc] is not installed: run `pip install 'tritonclient[grpc]'`")
    for folder in package.submodule_search_locations:
        path = Path(folder) / "model_config_pb2.py"
        if path.is_file():
            break
    else:
        raise ImportError(f"tritonclient.grpc has no model_config_pb2.py in {list(package.submodule_search_locations)}")
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2
    from tritonclient.grpc.model_config_pb2 import ModelConfig
else:
    model_config_pb2 = _load()
    ModelConfig = model_config_pb2.ModelConfig


def is_repeated(field: FieldDescriptor) -> bool:
    """Lists and maps. Protobuf 5 has no property for it, and newer releases warn about the `label` that it has."""
    return isinstance(field.default_value, list)
