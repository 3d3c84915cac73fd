"""What backends that load a file have in common: the configuration against the file, parameters, why a load is refused.

Comparing a tensor of a model's file with the configuration follows Triton's rules, in its texts. Sequence batching adds
inputs and outputs to those of a configuration: its controls and states.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire.datatypes import BY_NUMBER, shape_text

if TYPE_CHECKING:
    # The server needs nothing of a stub's process when it looks at a file.
    from stubserve_stub.backends.base import InstanceSetup


class TensorInfo(NamedTuple):
    """An input or output of a model. -1 in `dims` is a dimension that may have any size."""

    name: str
    datatype: int
    dims: Sequence[int]

    @property
    def config_type(self) -> str:
        """The data type as configurations name it."""
        return BY_NUMBER[self.datatype].config_name

    def described(self) -> Dict[str, Any]:
        """The tensor as configurations have it."""
        return {"name": self.name, "data_type": self.config_type, "dims": list(self.dims)}


def compare(config: Mapping[str, Any], what: str, tensor: Mapping[str, Any], info: TensorInfo) -> None:
    """Whether one input or output (`what`) of a configuration is what `info` says. Raises Refusal."""
    model, name = config["name"], tensor["name"]
    compare_type(config, what, name, tensor["data_type"], info)
    if what == "input" and tensor.get("allow_ragged_batch"):
        _compare_ragged(model, tensor, info)
        return
    if what == "output" and any(name in made["target_name"] for made in config.get("batch_output", ())):
        return  # the dimensions of the configuration are those of each request's part
    dims = dims_of(tensor)
    batches = bool(config.get("max_batch_size"))
    if info.dims or batches:
        _compare_dims(model, name, info.dims, dims, batches, exactly=what == "output")
    elif any(dim != 1 for dim in dims):
        raise Refusal(
            f"unable to load model '{model}', scalar tensor '{name}', should only provide 1 in the model "
            f"configuration when the model doesn't support batching. Model configuration provided: {shape_text(dims)}."
        )


def compare_type(config: Mapping[str, Any], what: str, name: str, data_type: str, info: TensorInfo) -> None:
    """Whether the file has a tensor of the configuration with the same data type. Raises Refusal."""
    if data_type != info.config_type:
        raise Refusal(
            f"unable to load model '{config['name']}', configuration expects datatype {data_type} for {what} "
            f"'{name}', model provides {info.config_type}"
        )


def dims_of(tensor: Mapping[str, Any]) -> Sequence[int]:
    """The dimensions that a model sees of an input or output of a configuration, without that of the batch."""
    reshape = tensor.get("reshape")
    return [int(dim) for dim in (tensor["dims"] if reshape is None else reshape.get("shape", []))]


def _compare_ragged(model: str, tensor: Mapping[str, Any], info: TensorInfo) -> None:
    """A ragged input reaches the model without its shape, in one dimension."""
    what = f"unable to load model '{model}', configuration expects model provides input with shape [-1] "
    if tensor.get("optional"):
        raise Refusal(f"{what}for ragged input '{tensor['name']}', which is not supported for optional input")
    if list(info.dims) != [-1]:
        # Upstream has the two spaces.
        raise Refusal(f"{what} for ragged input '{tensor['name']}', model provides {shape_text(info.dims)}")


def _compare_dims(model: str, name: str, own: Sequence[int], dims: Sequence[int], batches: bool, exactly: bool) -> None:
    """`exactly`: a variable dimension of the file has to be one of the configuration, too."""
    where = f"model '{model}', tensor '{name}': "
    if batches and (not own or own[0] != -1):
        raise Refusal(
            f"{where}for the model to support batching the shape should have at least 1 dimension and the first "
            f"dimension must be -1; but shape expected by the model is {shape_text(own)}"
        )
    whole = [-1, *dims] if batches else list(dims)
    if len(whole) == len(own) and all(mine == given or (mine == -1 and not exactly) for mine, given in zip(own, whole)):
        return
    expects = (
        f"the model expects {len(own)} dimensions (shape {shape_text(own)}) but the model configuration specifies "
        f"{len(whole)} dimensions "
    )
    if batches:
        raise Refusal(
            f"{where}{expects}(an initial batch dimension because max_batch_size > 0 followed by the explicit tensor "
            f"shape, making complete shape {shape_text(whole)})"
        )
    raise Refusal(f"{where}{expects}(shape {shape_text(whole)})")


_BY_VALUES = {"int32_false_true": "TYPE_INT32", "fp32_false_true": "TYPE_FP32", "bool_false_true": "TYPE_BOOL"}


def added_inputs(config: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """Inputs of sequence batching, which no client sends, each with name, data_type and dims."""
    sequences = config.get("sequence_batching") or {}
    found: List[Dict[str, Any]] = []
    for given in sequences.get("control_input") or ():
        for control in given.get("control") or ():
            types = [kind for values, kind in _BY_VALUES.items() if control.get(values)]
            data_type = types[0] if types else control.get("data_type")
            found.append({"name": given["name"], "data_type": data_type, "dims": [1]})
    return found + [_tensor(state, "input_name") for state in sequences.get("state") or ()]


def added_outputs(config: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """Outputs that are states, with name, data_type and dims; clients may ask for those that are outputs besides."""
    sequences = config.get("sequence_batching") or {}
    return [_tensor(state, "output_name") for state in sequences.get("state") or ()]


def _tensor(state: Mapping[str, Any], name: str) -> Dict[str, Any]:
    return {"name": state[name], "data_type": state["data_type"], "dims": state["dims"]}


# Parameters that the server reads, whatever the backend
_OF_THE_SERVER = {
    "EXECUTION_ENV_PATH", "EXECUTE_TIMEOUT_SECS", "FORCE_CPU_ONLY_INPUT_TENSORS", "INSTANCES_PER_STUB",
    "OPENAI_ROUTES", "THREADS_PER_INSTANCE",
}  # fmt: skip


class Parameters:
    """The parameters of a model, from the server's JSON. A parameter that is not given is empty, 0 or None."""

    def __init__(self, backend: str, config: Mapping[str, Any], settings: Mapping[str, str]) -> None:
        self._backend = backend
        self._model = config.get("name", "")
        self._parameters: Dict[str, Any] = config.get("parameters", {})
        self._settings = settings
        self._known = set(_OF_THE_SERVER)

    def unknown(self, *unread: str) -> List[str]:
        """Remarks about parameters that the backend does not have: all but `unread` must have been read before."""
        return [
            f"parameter '{name}' has no effect: the backend {self._backend} has none of this name"
            for name in self._parameters
            if name not in self._known and name not in unread
        ]

    def text(self, name: str) -> str:
        self._known.add(name)
        value: str = self._parameters.get(name, {}).get("string_value", "")
        return value

    def integer(self, name: str) -> int:
        """A number from 0 on, 0 where there is no such parameter. Raises Refusal."""
        return _number(self.text(name), self.called(name))

    def boolean(self, name: str) -> Optional[bool]:
        """None where there is no such parameter. Raises Refusal."""
        return _flag(self.text(name), self.called(name))

    def called(self, name: str) -> str:
        """The name of a parameter in errors."""
        return f"parameter '{name}' of model '{self._model}'"

    def setting(self, name: str, default: str = "0") -> int:
        return _number(self._settings.get(name, default), self._setting_called(name))

    def setting_is_on(self, name: str) -> bool:
        return bool(_flag(self._settings.get(name, ""), self._setting_called(name)))

    def _setting_called(self, name: str) -> str:
        return f"--backend-config={self._backend},{name}"


def _number(text: str, what: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()):
        raise Refusal(f"{what} must be an integer from 0 on, got '{text}'")
    return int(text)


def _flag(text: str, what: str) -> Optional[bool]:
    if not text:
        return None
    if text.lower() in ("1", "true"):
        return True
    if text.lower() in ("0", "false"):
        return False
    raise Refusal(f"{what} must be 0 or 1, got '{text}'")


def import_package(package: str, extra: str, backend: str = "") -> Any:
    """A package that `stubserve[extra]` installs, if there is such an extra, else one that `backend` needs.

    Raises Refusal if the stub's environment has none that works.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        if error.name != package:
            raise Refusal(f"{package} in {sys.prefix} cannot be imported: {error}") from None
        raise Refusal(lacks(package, extra, backend or extra)) from None


def lacks(package: str, extra: str, backend: str) -> str:
    """The text of a load and of `check` where the environment of this process lacks a package."""
    remedy = f"pip install 'stubserve[{extra}]' adds it to the server's" if extra else "install it there"
    return (
        f"the backend {backend} needs the package {package}, which the environment {sys.prefix} does not have: "
        f"{remedy}, or the parameter EXECUTION_ENV_PATH names an environment that has it"
    )


def cores(environ: Mapping[str, str]) -> int:
    """An instance's share of the processor's cores, which the server has set for its threads; at least 1."""
    share = environ.get("OMP_NUM_THREADS", "")
    return max(int(share) if share.isdecimal() else len(os.sched_getaffinity(0)), 1)


def refuse_gpu(instance: InstanceSetup, backend: str) -> None:
    """Raises Refusal for an instance that is to run on a GPU."""
    if instance.arguments["model_instance_kind"] == "GPU":
        raise Refusal(
            f"model instance '{instance.name}' is to run on a GPU, and the {backend} backend runs on CPUs only: "
            "`instance_group [ { kind: KIND_CPU } ]` says so in config.pbtxt"
        )


_KINDS: List[Tuple[bytes, str]] = [
    (b"version https://git-lfs", "a pointer of Git LFS: `git lfs pull` gets the file"),
    (b"PK\x03\x04", "a zip archive, as PyTorch saves models"),
    (b"\x89HDF", "an HDF5 file"),
    (b"<", "a web page or XML"),
]
# So many bytes are enough to recognise a file.
HEAD_BYTES = 200


def resemblance(head: bytes) -> str:
    """What the file seems to be, for the end of a sentence; empty for files of unknown kinds."""
    for start, what in _KINDS:
        if head.startswith(start):
            return "; it is " + what
    return ""
