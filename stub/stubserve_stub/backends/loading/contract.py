"""Comparing a tensor of a model's file with the configuration. Texts and rules are Triton's.

Sequence batching adds inputs and outputs to those of a configuration: its controls and states.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Sequence

from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire.datatypes import BY_NUMBER


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
        return  # it is what all requests get of it that has the dimensions of the configuration
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
    """Inputs that no client sends, each with name, data_type and dims."""
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
