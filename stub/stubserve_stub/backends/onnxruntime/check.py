"""What is wrong with an ONNX file and its configuration, found without onnxruntime.

The inputs and outputs that a file declares are compared with the configuration. After loading, onnxruntime knows more,
because it infers shapes. So a dimension of an output that the file leaves open is taken from the configuration, and
every problem reported here would also fail a load.
"""

from __future__ import annotations

import importlib.util
import mmap
import os
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Union

from stubserve_stub.backends.card import FileProblem
from stubserve_stub.backends.contract import Contract, needs_completion, validate
from stubserve_stub.backends.loading import TensorInfo, dims_of, import_package
from stubserve_stub.backends.onnxruntime import file as onnx_file
from stubserve_stub.backends.onnxruntime.card import CARDS
from stubserve_stub.backends.onnxruntime.file import CutOff, fields, text_of
from stubserve_stub.backends.onnxruntime.gpu import PROVIDERS
from stubserve_stub.backends.onnxruntime.session import OnnxOptions, find_file, options_of
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire.datatypes import BY_NAME

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


def declared(path: Union[str, "os.PathLike[str]"], config: Mapping[str, Any]) -> Optional[Contract]:
    """The tensors that the file declares; None if that is unknown before loading it."""
    try:
        with open(path, "rb") as file:
            # The map ends with its last view.
            return _contract(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)), config)
    except (_Undeclared, CutOff, ValueError, TypeError, KeyError, OSError):
        return None


def _contract(model: memoryview, config: Mapping[str, Any]) -> Contract:
    parts = dict(fields(model))
    graph = parts[_MODEL_GRAPH]
    given: Dict[str, bytes] = {}
    made: Dict[str, bytes] = {}
    weights: Set[str] = set()
    for number, value in fields(graph):
        if number in (_GRAPH_INPUT, _GRAPH_OUTPUT):
            entry = dict(fields(value))
            (given if number == _GRAPH_INPUT else made)[text_of(entry[_VALUE_NAME])] = bytes(entry[_VALUE_TYPE])
        elif number == _GRAPH_INITIALIZER:
            weights.update(text_of(name) for field, name in fields(value) if field == _INITIALIZER_NAME)
    replaceable = parts.get(_MODEL_IR_VERSION, 0) >= _REPLACEABLE_FROM
    batches = bool(config.get("max_batch_size"))
    dims = {one["name"]: [-1, *dims_of(one)] if batches else list(dims_of(one)) for one in config["output"]}
    return Contract(
        {name: _info(name, kind) for name, kind in given.items() if name not in weights},
        {name: _info(name, kind, dims.get(name, [])) for name, kind in made.items()},
        {name: _info(name, kind) for name, kind in given.items() if name in weights and replaceable},
    )


def _info(name: str, kind: bytes, expected: Optional[List[int]] = None) -> TensorInfo:
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
            found = [own if own != -1 else other for own, other in zip(found, expected)]
    return TensorInfo(name, BY_NAME[_ELEMENTS[parts[_TENSOR_ELEMENT]]].number, found)


# Only the environment of a model knows what is installed in it.
_ALL_PROVIDERS = ("CPUExecutionProvider", "OpenVINOExecutionProvider", *PROVIDERS)
_OWN_ENVIRONMENT = "EXECUTION_ENV_PATH"


def check_config(config: Mapping[str, Any]) -> OnnxOptions:
    """The options of a session. Raises Refusal for a configuration that the backend would not take."""
    groups = [one for one in config["instance_group"] if one["kind"] == "KIND_GPU"]
    device = groups[0]["gpus"][0] if groups and groups[0]["gpus"] else None
    available: Sequence[str] = _ALL_PROVIDERS
    is_asked = device is not None or "execution_accelerators" in config["optimization"]
    if is_asked and _OWN_ENVIRONMENT not in config["parameters"] and importlib.util.find_spec("onnxruntime"):
        for name, value in CARDS[0].variables:  # as in a stub
            os.environ.setdefault(name, value)
        available = import_package("onnxruntime", "onnxruntime").get_available_providers()
    return options_of(config, {}, available, device)


def _library_problems(libraries: Sequence[str], file: str) -> Iterator[FileProblem]:
    """Libraries with operators that are not there, in the loader's words."""
    for library in libraries:
        if "/" not in library:
            text = f"only the system's loader knows where '{library}' lies: write its whole path"
            yield FileProblem(file, text, is_warning=True)
        elif not os.path.isfile(library):
            text = f"{library}: cannot open shared object file: No such file or directory"
            yield FileProblem(file, f"Failed to load library {library} with error: {text}")


def file_problems(config: Mapping[str, Any], version_dir: str) -> Iterator[FileProblem]:
    path = find_file(version_dir, config["default_model_filename"])
    if not os.path.isfile(path):
        yield FileProblem(version_dir, f"unable to find '{path}' for model '{config['name']}'")
        return
    libraries = config.get("model_operations", {}).get("op_library_filename", ())
    yield from _library_problems(libraries, os.path.join(os.path.dirname(version_dir), "config.pbtxt"))
    try:
        onnx_file.read(path)
        contract = None if needs_completion(config) else declared(path, config)
        if contract is not None:
            validate(config, contract)
    except Refusal as refusal:
        yield FileProblem(path, str(refusal))
