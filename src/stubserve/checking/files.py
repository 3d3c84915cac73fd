"""The checks of model files that a backend loads, without loading them: one check for each backend.

The inputs and outputs that an ONNX file declares are compared with the configuration. After loading, onnxruntime knows
more, because it infers shapes. So a dimension of an output that the file leaves open is taken from the configuration,
and every problem reported here would also fail a load.
"""

from __future__ import annotations

import importlib.util
import mmap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from stubserve_stub.backends.contract import Contract, needs_completion, validate
from stubserve_stub.backends.llamacpp import options as llamacpp_options
from stubserve_stub.backends.loading import TensorInfo, dims_of, lacks
from stubserve_stub.backends.onnxruntime import file as onnx_file
from stubserve_stub.backends.onnxruntime.file import CutOff, fields
from stubserve_stub.backends.onnxruntime.session import find_file, options_of
from stubserve_stub.backends.pytorch import file as torch_file
from stubserve_stub.backends.pytorch import options as torch_options
from stubserve_stub.backends.tracking import options as tracking_options
from stubserve_stub.backends.video import options as video_options
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire.datatypes import BY_NAME

from stubserve.environments.resolve import PARAMETER
from stubserve.model_config.render import to_json_dict

# Fields of ONNX's messages
_MODEL_IR_VERSION, _MODEL_GRAPH = 1, 7
_GRAPH_INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT = 5, 11, 12
_VALUE_NAME, _VALUE_TYPE, _TYPE_TENSOR = 1, 2, 1
_TENSOR_ELEMENT, _TENSOR_SHAPE, _SHAPE_DIM, _DIM_VALUE = 1, 2, 1, 1
_INITIALIZER_NAME = 8

# onnx.TensorProto.DataType -> the protocol's data types
_ELEMENTS = {
    1: "FP32", 2: "UINT8", 3: "INT8", 4: "UINT16", 5: "INT16", 6: "INT32", 7: "INT64", 8: "BYTES", 9: "BOOL",
    10: "FP16", 11: "FP64", 12: "UINT32", 13: "UINT64", 16: "BF16",
}  # fmt: skip

# From this version of the format on a request may also replace weights that are inputs.
_REPLACEABLE_FROM = 4


class _Undeclared(Exception):
    """The file does not say enough, or has something that only onnxruntime can judge."""


def declared(path: Path, config: Mapping[str, Any]) -> Contract | None:
    """The tensors that the file declares; None if that is unknown before loading it."""
    try:
        with path.open("rb") as file:
            # The map ends with its last view.
            return _contract(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)), config)
    except (_Undeclared, CutOff, ValueError, TypeError, KeyError, OSError):
        return None


def _contract(model: memoryview, config: Mapping[str, Any]) -> Contract:
    parts = dict(fields(model))
    graph = parts[_MODEL_GRAPH]
    given: dict[str, bytes] = {}
    made: dict[str, bytes] = {}
    weights: set[str] = set()
    for number, value in fields(graph):
        if number in (_GRAPH_INPUT, _GRAPH_OUTPUT):
            entry = dict(fields(value))
            (given if number == _GRAPH_INPUT else made)[_text(entry[_VALUE_NAME])] = bytes(entry[_VALUE_TYPE])
        elif number == _GRAPH_INITIALIZER:
            weights.update(_text(name) for field, name in fields(value) if field == _INITIALIZER_NAME)
    replaceable = parts.get(_MODEL_IR_VERSION, 0) >= _REPLACEABLE_FROM
    batches = bool(config.get("max_batch_size"))
    dims = {one["name"]: [-1, *dims_of(one)] if batches else list(dims_of(one)) for one in config["output"]}
    return Contract(
        {name: _info(name, kind) for name, kind in given.items() if name not in weights},
        {name: _info(name, kind, dims.get(name, [])) for name, kind in made.items()},
        {name: _info(name, kind) for name, kind in given.items() if name in weights and replaceable},
    )


def _info(name: str, kind: bytes, expected: list[int] | None = None) -> TensorInfo:
    """One tensor; open dimensions of an output are taken from `expected`."""
    tensor = dict(fields(memoryview(kind))).get(_TYPE_TENSOR)
    parts = dict(fields(tensor)) if tensor is not None else {}
    if parts.get(_TENSOR_ELEMENT) not in _ELEMENTS or (_TENSOR_SHAPE not in parts and expected is None):
        raise _Undeclared
    found = expected or []
    if _TENSOR_SHAPE in parts:
        found = [
            dict(fields(value)).get(_DIM_VALUE, -1)
            for number, value in fields(parts[_TENSOR_SHAPE])
            if number == _SHAPE_DIM
        ]
        if expected is not None and len(expected) == len(found):
            found = [own if own != -1 else other for own, other in zip(found, expected, strict=True)]
    return TensorInfo(name, BY_NAME[_ELEMENTS[parts[_TENSOR_ELEMENT]]].number, found)


def _text(value: Any) -> str:
    return bytes(value).decode("utf-8", "backslashreplace")


class FileProblem(NamedTuple):
    """`file` is the file to look at. A warning does not keep the model from being served."""

    file: Path
    text: str
    is_warning: bool = False


# Only the machine that runs the model knows whether an accelerator is installed.
_ALL_PROVIDERS = ("CPUExecutionProvider", "OpenVINOExecutionProvider")


def onnx_problems(config: Any, version_dir: Path) -> Iterator[FileProblem]:
    """What is wrong with the ONNX file of a version, as far as the file and the configuration show it."""
    path = find_file(str(version_dir), config.default_model_filename)
    if not Path(path).is_file():
        yield FileProblem(version_dir, f"unable to find '{path}' for model '{config.name}'")
        return
    try:
        onnx_file.read(path)
        said = to_json_dict(config)
        contract = None if needs_completion(said) else declared(Path(path), said)
        if contract is not None:
            validate(said, contract)
    except Refusal as refusal:
        yield FileProblem(Path(path), str(refusal))


def torch_problems(config: Any, version_dir: Path) -> Iterator[FileProblem]:
    """What is wrong with the PyTorch file of a version, as far as the file and the configuration show it."""
    path = str(version_dir)
    try:
        path = torch_file.find(path, to_json_dict(config))
        if path.endswith(torch_file.SOURCE):
            return
        kind = torch_file.kind_of(path)
        if kind == torch_file.PICKLE:
            raise torch_file.no_torchscript(path, kind)
    except Refusal as refusal:
        yield FileProblem(Path(path), str(refusal))
        return
    if kind == torch_file.TORCHSCRIPT:
        for device in torch_file.cuda_devices(path):
            yield FileProblem(Path(path), torch_file.names_device(path, device), is_warning=True)


def check_tracking(config: dict[str, Any]) -> object:
    completed = {"input": [], "output": [], **config}
    tracking_options.complete(completed)
    tracking_options.validate(completed)
    return tracking_options.options_of(completed)


def llamacpp_problems(config: Any, version_dir: Path) -> Iterator[FileProblem]:
    """What is wrong with the GGUF file of a version."""
    try:
        llamacpp_options.find_file(str(version_dir), to_json_dict(config))
    except Refusal as refusal:
        yield FileProblem(version_dir, str(refusal))


@dataclass(frozen=True)
class FileCheck:
    """The check of one backend. `package` is its package, `extra` the name for that in `pip install stubserve[extra]`.

    `read_options` raises Refusal for a configuration that the backend would not take, given as JSON has it;
    `file_problems` finds what is wrong with the file in a version's folder, if there is one.
    """

    package: str
    extra: str
    read_options: Callable[[dict[str, Any]], object]
    file_problems: Callable[[Any, Path], Iterator[FileProblem]] = lambda config, version_dir: iter(())

    def problems(self, config: Any) -> Iterator[str]:
        """What the backend would refuse in the configuration; or a missing package if the model has no environment."""
        try:
            self.read_options(to_json_dict(config))
        except Refusal as refusal:
            yield str(refusal)
        if PARAMETER not in config.parameters and importlib.util.find_spec(self.package) is None:
            yield lacks(self.package, self.extra)


FILE_CHECKS = {
    "onnxruntime": FileCheck(
        "onnxruntime", "onnxruntime", lambda config: options_of(config, {}, _ALL_PROVIDERS), onnx_problems
    ),
    "tensorrt": FileCheck("tensorrt", "tensorrt", lambda config: None),
    "pytorch": FileCheck("torch", "pytorch", torch_options.options_of, torch_problems),
    "llamacpp": FileCheck("xllamacpp", "llamacpp", llamacpp_options.validate, llamacpp_problems),
    "tracking": FileCheck("scipy", "tracking", check_tracking),
    "video": FileCheck("av", "video", video_options.validate),
}
