"""Whether a configuration describes the model in its file. Texts and rules are those of Triton's backend."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

from stubserve_stub.backends.loading.added import added_inputs, added_outputs
from stubserve_stub.backends.loading.contract import TensorInfo, compare, compare_type
from stubserve_stub.backends.onnxruntime.tensors import Contract
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire.datatypes import BY_NUMBER

_CONFIG_TYPES = {kind.config_name for kind in BY_NUMBER.values()}


def validate(config: Mapping[str, Any], contract: Contract) -> None:
    """Raises Refusal for the first thing that does not fit."""
    model = config["name"]
    made = [(name, tensor) for tensor in config.get("batch_input", ()) for name in tensor["target_name"]]
    added = added_inputs(config)
    expected = sum(not tensor.get("optional") for tensor in config["input"]) + len(added) + len(made)
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
    for tensor in added:
        _check(config, "input", tensor, allowed)
    for name, tensor in made:
        info = _find(name, "input", contract.inputs)
        compare_type(config, "batch input", name, tensor["data_type"], info)
    for tensor in config["output"]:
        _check(config, "output", tensor, contract.outputs)
    for tensor in added_outputs(config):
        _check_state(config, tensor, contract.outputs)


def _check(config: Mapping[str, Any], what: str, tensor: Mapping[str, Any], allowed: Dict[str, TensorInfo]) -> None:
    model, name = config["name"], tensor["name"]
    info = _find(name, what, allowed)
    if tensor["data_type"] not in _CONFIG_TYPES:
        kind = tensor["data_type"]
        raise Refusal("unsupported datatype {} for {} '{}' for model '{}'".format(kind, what, name, model))
    compare(config, what, tensor, info)


def _check_state(config: Mapping[str, Any], tensor: Mapping[str, Any], allowed: Dict[str, TensorInfo]) -> None:
    """A new state is as the model makes it, step by step: only its type is known beforehand."""
    info = _find(tensor["name"], "output", allowed)
    compare_type(config, "state", tensor["name"], tensor["data_type"], info)


def _find(name: str, what: str, allowed: Dict[str, TensorInfo]) -> TensorInfo:
    info = allowed.get(name)
    if info is None:
        raise Refusal("unexpected inference {} '{}', allowed {}s are: {}".format(what, name, what, _names(allowed)))
    return info


def _names(tensors: Mapping[str, Any]) -> str:
    names: List[str] = sorted(tensors)
    return ", ".join(names)
