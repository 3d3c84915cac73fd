"""Whether a configuration describes the model in its file. Texts and rules are those of Triton's backend."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence

from stubserve_stub.backends.onnxruntime.tensors import Contract, TensorInfo
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire.datatypes import BY_NUMBER

_CONFIG_TYPES = {kind.config_name for kind in BY_NUMBER.values()}


def validate(config: Mapping[str, Any], contract: Contract) -> None:
    """Raises Refusal for the first thing that does not fit."""
    model = config["name"]
    _refuse_missing_parts(config)
    expected = sum(not tensor.get("optional") for tensor in config["input"])
    if len(contract.inputs) != expected:
        raise Refusal(
            "unable to load model '{}', configuration expects {} inputs, model provides {}: {}".format(
                model, expected, len(contract.inputs), _names(contract.inputs)
            )
        )
    allowed = {**contract.inputs, **contract.initializers}
    for tensor in config["input"]:
        if tensor.get("optional") and config.get("max_batch_size"):
            raise Refusal(
                "unable to load model '{}', optional input '{}' is not supported for models that support "
                "batching".format(model, tensor["name"])
            )
        _check(config, "input", tensor, allowed)
    for tensor in config["output"]:
        _check(config, "output", tensor, contract.outputs)


def _refuse_missing_parts(config: Mapping[str, Any]) -> None:
    """What upstream offers and stubserve does not yet would give wrong results if it were left out."""
    parts = [part for part in ("batch_input", "batch_output") if config.get(part)]
    parts += ["allow_ragged_batch" for tensor in config["input"] if tensor.get("allow_ragged_batch")]
    if parts:
        raise Refusal(
            "model '{}' has '{}', which stubserve does not offer for the onnxruntime backend yet".format(
                config["name"], parts[0]
            )
        )


def _check(config: Mapping[str, Any], what: str, tensor: Mapping[str, Any], allowed: Dict[str, TensorInfo]) -> None:
    model, name = config["name"], tensor["name"]
    info = allowed.get(name)
    if info is None:
        raise Refusal("unexpected inference {} '{}', allowed {}s are: {}".format(what, name, what, _names(allowed)))
    if tensor["data_type"] not in _CONFIG_TYPES:
        kind = tensor["data_type"]
        raise Refusal("unsupported datatype {} for {} '{}' for model '{}'".format(kind, what, name, model))
    if tensor["data_type"] != info.config_type:
        raise Refusal(
            "unable to load model '{}', configuration expects datatype {} for {} '{}', model provides {}".format(
                model, tensor["data_type"], what, name, info.config_type
            )
        )
    reshape = tensor.get("reshape")
    dims = [int(dim) for dim in (tensor["dims"] if reshape is None else reshape.get("shape", []))]
    batches = bool(config.get("max_batch_size"))
    if info.dims or batches:
        _compare(model, info, dims, batches, exactly=what == "output")
    elif any(dim != 1 for dim in dims):
        raise Refusal(
            "unable to load model '{}', scalar tensor '{}', should only provide 1 in the model configuration when the "
            "model doesn't support batching. Model configuration provided: {}.".format(model, name, _shape(dims))
        )


def _compare(model: str, info: TensorInfo, dims: Sequence[int], batches: bool, exactly: bool) -> None:
    """`exactly`: a variable dimension of the file has to be one of the configuration, too."""
    where = "model '{}', tensor '{}': ".format(model, info.name)
    if batches and (not info.dims or info.dims[0] != -1):
        raise Refusal(
            "{}for the model to support batching the shape should have at least 1 dimension and the first dimension "
            "must be -1; but shape expected by the model is {}".format(where, _shape(info.dims))
        )
    whole = [-1, *dims] if batches else list(dims)
    fits = len(whole) == len(info.dims) and all(
        own == given or (own == -1 and not exactly) for own, given in zip(info.dims, whole)
    )
    if fits:
        return
    expects = "the model expects {} dimensions (shape {}) but the model configuration specifies {} dimensions ".format(
        len(info.dims), _shape(info.dims), len(whole)
    )
    if batches:
        raise Refusal(
            "{}{}(an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making "
            "complete shape {})".format(where, expects, _shape(whole))
        )
    raise Refusal("{}{}(shape {})".format(where, expects, _shape(whole)))


def _names(tensors: Mapping[str, Any]) -> str:
    names: List[str] = sorted(tensors)
    return ", ".join(names)


def _shape(dims: Sequence[int]) -> str:
    return "[{}]".format(",".join(map(str, dims)))
