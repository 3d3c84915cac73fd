"""A model's inputs and outputs as its file has them, and what its configuration says of them.

`validate` says whether a configuration describes the model in its file, by the rules and in the texts of Triton's
backends. `complete` fills in the batch size, the scheduler, the inputs and outputs, by upstream's rules: nothing where
the configuration has both inputs and outputs. A model can be batched if the first dimension of all its tensors is
variable. Then `max_batch_size` becomes what the file allows or, where it does not say, `default-max-batch-size`
(--backend-config), unless it is given; and above 1 the dynamic batcher is chosen unless the configuration names a
scheduler. A batch dimension is left out of `dims`. A tensor without dimensions has `dims: [ 1 ]`, and with batching an
empty `reshape`, too. Controls and states of sequence batching are no inputs and outputs of the model.
"""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, List, Mapping, NamedTuple

from stubserve_stub.backends.loading import TensorInfo, added_inputs, added_outputs, compare, compare_type
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire.datatypes import BY_CONFIG_NAME


class Contract(NamedTuple):
    """All tensors of a model. `initializers` are weights that a request may replace.

    The values of `shape_tensors` say shapes. `most_rows` is the largest batch, 0 where the file does not say.
    """

    inputs: Dict[str, TensorInfo]
    outputs: Dict[str, TensorInfo]
    initializers: Mapping[str, TensorInfo] = {}
    shape_tensors: FrozenSet[str] = frozenset()
    most_rows: int = 0


_SCHEDULERS = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")


def needs_completion(config: Mapping[str, Any]) -> bool:
    return not ((config.get("input") or config.get("batch_input")) and config.get("output"))


def complete(config: Dict[str, Any], contract: Contract, default_batch_size: int) -> List[str]:
    """Completes `config` in place, and returns lines for the log. Raises Refusal where the file contradicts it."""
    remarks = []
    tensors = [*contract.inputs.values(), *contract.outputs.values()]
    if all(info.dims and info.dims[0] == -1 for info in tensors):
        if not config.get("max_batch_size"):
            config["max_batch_size"] = contract.most_rows or max(default_batch_size, 0)
            remarks.append(
                f"autofilled max_batch_size to {config['max_batch_size']} for model '{config['name']}': the file can "
                "be batched, and the configuration says nothing of it"
            )
        if config["max_batch_size"] > 1 and not any(choice in config for choice in _SCHEDULERS):
            config["dynamic_batching"] = {}
    elif config.get("max_batch_size"):
        raise Refusal(
            f"autofill failed for model '{config['name']}': model does not support batching while non-zero "
            "max_batch_size is specified"
        )
    batches = bool(config.get("max_batch_size"))
    if not (config.get("input") or config.get("batch_input")):
        added = {tensor["name"] for tensor in added_inputs(config)}
        config["input"] = [
            _described(contract, one, batches) for one in contract.inputs.values() if one.name not in added
        ]
    if not config.get("output"):
        states = {tensor["name"] for tensor in added_outputs(config)}
        outputs = contract.outputs.values()
        config["output"] = [_described(contract, one, batches) for one in outputs if one.name not in states]
    return remarks


def _described(contract: Contract, info: TensorInfo, batches: bool) -> Dict[str, Any]:
    described = info._replace(dims=info.dims[1:] if batches else info.dims).described()
    if info.name in contract.shape_tensors:
        described["is_shape_tensor"] = True
    if not described["dims"]:
        described["dims"] = [1]
        if batches:
            described["reshape"] = {"shape": []}
    return described


def validate(config: Mapping[str, Any], contract: Contract) -> None:
    """Raises Refusal for the first thing that does not fit."""
    model = config["name"]
    made = [(name, tensor) for tensor in config.get("batch_input", ()) for name in tensor["target_name"]]
    added = added_inputs(config)
    expected = sum(not tensor.get("optional") for tensor in config["input"]) + len(added) + len(made)
    if len(contract.inputs) != expected:
        raise Refusal(
            f"unable to load model '{model}', configuration expects {expected} inputs, model provides "
            f"{len(contract.inputs)}: {_names(contract.inputs)}"
        )
    allowed = {**contract.inputs, **contract.initializers}
    for tensor in [*config["input"], *added]:
        if tensor.get("optional") and config.get("max_batch_size"):
            raise Refusal(
                f"unable to load model '{model}', optional input '{tensor['name']}' is not supported for models that "
                "support batching"
            )
        _check(config, "input", tensor, allowed)
    for name, tensor in made:
        compare_type(config, "batch input", name, tensor["data_type"], _find(name, "input", contract.inputs))
    for tensor in config["output"]:
        _check(config, "output", tensor, contract.outputs)
    for tensor in added_outputs(config):
        # Only the type: the shape of a state is known when the model runs.
        name = tensor["name"]
        compare_type(config, "state", name, tensor["data_type"], _find(name, "output", contract.outputs))


def _check(config: Mapping[str, Any], what: str, tensor: Mapping[str, Any], allowed: Dict[str, TensorInfo]) -> None:
    model, name = config["name"], tensor["name"]
    info = _find(name, what, allowed)
    if tensor["data_type"] not in BY_CONFIG_NAME:
        kind = tensor["data_type"]
        raise Refusal(f"unsupported datatype {kind} for {what} '{name}' for model '{model}'")
    compare(config, what, tensor, info)


def _find(name: str, what: str, allowed: Dict[str, TensorInfo]) -> TensorInfo:
    info = allowed.get(name)
    if info is None:
        raise Refusal(f"unexpected inference {what} '{name}', allowed {what}s are: {_names(allowed)}")
    return info


def _names(tensors: Mapping[str, Any]) -> str:
    return ", ".join(sorted(tensors))
