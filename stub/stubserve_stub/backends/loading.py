"""What backends that load a file have in common: the configuration against the file, parameters, why a load is refused.

Comparing a tensor of a model's file with the configuration follows Triton's rules, in its texts. Sequence batching adds
inputs and outputs to those of a configuration: its controls and states.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire.datatypes import BY_NUMBER

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
            "unable to load model '{}', scalar tensor '{}', should only provide 1 in the model configuration when the "
            "model doesn't support batching. Model configuration provided: {}.".format(model, name, shape_text(dims))
        )


def compare_type(config: Mapping[str, Any], what: str, name: str, data_type: str, info: TensorInfo) -> None:
    """Whether the file has a tensor of the configuration with the same data type. Raises Refusal."""
    if data_type != info.config_type:
        raise Refusal(
            "unable to load model '{}', configuration expects datatype {} for {} '{}', model provides {}".format(
                config["name"], data_type, what, name, info.config_type
            )
        )


def dims_of(tensor: Mapping[str, Any]) -> Sequence[int]:
    """The dimensions that a model sees of an input or output of a configuration, without that of the batch."""
    reshape = tensor.get("reshape")
    return [int(dim) for dim in (tensor["dims"] if reshape is None else reshape.get("shape", []))]


def _compare_ragged(model: str, tensor: Mapping[str, Any], info: TensorInfo) -> None:
    """A ragged input reaches the model without its shape, in one dimension."""
    what = "unable to load model '{}', configuration expects model provides input with shape [-1] ".format(model)
    if tensor.get("optional"):
        raise Refusal("{}for ragged input '{}', which is not supported for optional input".format(what, tensor["name"]))
    if list(info.dims) != [-1]:
        # Upstream has the two spaces.
        raise Refusal("{} for ragged input '{}', model provides {}".format(what, tensor["name"], shape_text(info.dims)))


def _compare_dims(model: str, name: str, own: Sequence[int], dims: Sequence[int], batches: bool, exactly: bool) -> None:
    """`exactly`: a variable dimension of the file has to be one of the configuration, too."""
    where = "model '{}', tensor '{}': ".format(model, name)
    if batches and (not own or own[0] != -1):
        raise Refusal(
            "{}for the model to support batching the shape should have at least 1 dimension and the first dimension "
            "must be -1; but shape expected by the model is {}".format(where, shape_text(own))
        )
    whole = [-1, *dims] if batches else list(dims)
    if len(whole) == len(own) and all(mine == given or (mine == -1 and not exactly) for mine, given in zip(own, whole)):
        return
    expects = "the model expects {} dimensions (shape {}) but the model configuration specifies {} dimensions ".format(
        len(own), shape_text(own), len(whole)
    )
    if batches:
        raise Refusal(
            "{}{}(an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making "
            "complete shape {})".format(where, expects, shape_text(whole))
        )
    raise Refusal("{}{}(shape {})".format(where, expects, shape_text(whole)))


def shape_text(dims: Sequence[int]) -> str:
    """Dimensions as upstream prints them."""
    return "[{}]".format(",".join(map(str, dims)))


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


class Parameters:
    """The parameters of a model, from the server's JSON. A parameter that is not given is empty, 0 or None."""

    def __init__(self, backend: str, config: Mapping[str, Any], settings: Mapping[str, str]) -> None:
        self._backend = backend
        self._model = config.get("name", "")
        self._parameters: Dict[str, Any] = config.get("parameters", {})
        self._settings = settings

    def text(self, name: str) -> str:
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
        return "parameter '{}' of model '{}'".format(name, self._model)

    def setting(self, name: str, default: str = "0") -> int:
        return _number(self._settings.get(name, default), self._setting_called(name))

    def setting_is_on(self, name: str) -> bool:
        return bool(_flag(self._settings.get(name, ""), self._setting_called(name)))

    def _setting_called(self, name: str) -> str:
        return "--backend-config={},{}".format(self._backend, name)


def _number(text: str, what: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()):
        raise Refusal("{} must be an integer from 0 on, got '{}'".format(what, text))
    return int(text)


def _flag(text: str, what: str) -> Optional[bool]:
    if not text:
        return None
    if text.lower() in ("1", "true"):
        return True
    if text.lower() in ("0", "false"):
        return False
    raise Refusal("{} must be 0 or 1, got '{}'".format(what, text))


def import_package(package: str, extra: str) -> Any:
    """A package that `stubserve[extra]` installs. Raises Refusal if the stub's environment has none that works."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        if error.name != package:
            raise Refusal("{} in {} cannot be imported: {}".format(package, sys.prefix, error)) from None
        raise Refusal(lacks(package, extra)) from None


def lacks(package: str, extra: str) -> str:
    """The text of a load and of `check` where the environment of this process lacks a package."""
    return (
        "the backend {} needs the package {}, which the environment {} does not have: pip install 'stubserve[{}]' "
        "adds it to the server's, or the parameter EXECUTION_ENV_PATH names an environment that has it".format(
            extra, package, sys.prefix, extra
        )
    )


def refuse_gpu(instance: InstanceSetup, backend: str) -> None:
    """Raises Refusal for an instance that is to run on a GPU."""
    if instance.arguments["model_instance_kind"] == "GPU":
        raise Refusal(
            "model instance '{}' is to run on a GPU, and the {} backend runs on CPUs only: "
            "`instance_group [ {{ kind: KIND_CPU }} ]` says so in config.pbtxt".format(instance.name, backend)
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
