"""NVIDIA's own messages, without gRPC.

The generated modules ship inside `tritonclient.grpc`, and importing that package brings in grpcio: a quarter of a
second and 30 MB that the server has no use for. So only the generated files are executed, found by their place on
disk.

Guarantees:
- whoever imports the real `tritonclient.grpc` later, or did so before, works with the very same message classes:
  protobuf keeps one class per descriptor, and registering an identical file twice is a no-op;
- the modules are deliberately *not* left in `sys.modules`. An entry there would make the later real import skip the
  step that binds them as attributes of their package.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from google.protobuf.descriptor import FieldDescriptor

__all__ = ["ModelConfig", "is_repeated", "load_service_pb2", "model_config_pb2"]

_PACKAGE = "tritonclient.grpc"


@functools.cache
def _folder() -> Path:
    # Finding the spec of a subpackage imports its parent only, and `tritonclient/__init__.py` is empty.
    package = importlib.util.find_spec(_PACKAGE)
    if package is None or not package.submodule_search_locations:
        raise ImportError("the package tritonclient[grpc] is not installed: run `pip install 'tritonclient[grpc]'`")
    return Path(package.submodule_search_locations[0])


def _load(name: str) -> ModuleType:
    loaded = sys.modules.get(f"{_PACKAGE}.{name}")
    if loaded is not None:
        return loaded
    path = _folder() / f"{name}.py"
    if not path.is_file():
        raise ImportError(f"{_PACKAGE} has no {path}")
    spec = importlib.util.spec_from_file_location(f"{_PACKAGE}.{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _stand_in() -> Iterator[None]:
    """For as long as it lasts, `from tritonclient.grpc import model_config_pb2` does not import the real package."""
    if _PACKAGE in sys.modules:
        yield
        return
    package = ModuleType(_PACKAGE)
    package.model_config_pb2 = model_config_pb2  # type: ignore[attr-defined]
    sys.modules[_PACKAGE] = package
    try:
        yield
    finally:
        del sys.modules[_PACKAGE]


def load_service_pb2() -> ModuleType:
    """The messages of `GRPCInferenceService`, without gRPC too. Not to be called while another thread imports."""
    with _stand_in():
        return _load("service_pb2")


if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2
    from tritonclient.grpc.model_config_pb2 import ModelConfig
else:
    model_config_pb2 = _load("model_config_pb2")
    ModelConfig = model_config_pb2.ModelConfig


def is_repeated(field: FieldDescriptor) -> bool:
    """Lists and maps. Protobuf 5 has no property for it, and newer releases warn about the `label` that it has."""
    return isinstance(field.default_value, list)
