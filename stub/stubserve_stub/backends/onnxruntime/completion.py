"""Completing a configuration out of the model's file: batch size, scheduler, inputs, outputs. Rules are upstream's.

Nothing is completed where the configuration has both inputs and outputs. A model can be batched if the first dimension
of all its tensors is variable; then `max_batch_size` becomes `default-max-batch-size` (--backend-config) unless it is
given, and with more than 1 the dynamic batcher is chosen unless there is a choice. A batch dimension is left out of
`dims`. A tensor without dimensions has `dims: [ 1 ]`, and with batching an empty `reshape` besides. What sequence
batching adds, controls and states, is none of a model's inputs and outputs.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

from stubserve_stub.backends.loading.added import added_inputs, added_outputs
from stubserve_stub.backends.loading.contract import TensorInfo
from stubserve_stub.backends.onnxruntime.tensors import Contract
from stubserve_stub.runtime.failure import Refusal

_SCHEDULERS = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")


def needs_completion(config: Mapping[str, Any]) -> bool:
    """Whether there is anything to complete."""
    return not ((config.get("input") or config.get("batch_input")) and config.get("output"))


def complete(config: Dict[str, Any], contract: Contract, default_batch_size: int) -> List[str]:
    """Completes `config` in place; lines for the log. Raises Refusal where the file cannot be what it says."""
    remarks = []
    tensors = [*contract.inputs.values(), *contract.outputs.values()]
    if all(info.dims and info.dims[0] == -1 for info in tensors):
        if not config.get("max_batch_size"):
            config["max_batch_size"] = max(default_batch_size, 0)
            remarks.append(
                "autofilled max_batch_size to {} for model '{}': the file can be batched, and the configuration says "
                "nothing of it".format(config["max_batch_size"], config["name"])
            )
        if config["max_batch_size"] > 1 and not any(choice in config for choice in _SCHEDULERS):
            config["dynamic_batching"] = {}
    elif config.get("max_batch_size"):
        raise Refusal(
            "autofill failed for model '{}': model does not support batching while non-zero max_batch_size is "
            "specified".format(config["name"])
        )
    batches = bool(config.get("max_batch_size"))
    if not (config.get("input") or config.get("batch_input")):
        added = {tensor["name"] for tensor in added_inputs(config)}
        config["input"] = [_described(info, batches) for info in contract.inputs.values() if info.name not in added]
    if not config.get("output"):
        states = {tensor["name"] for tensor in added_outputs(config)}
        config["output"] = [_described(info, batches) for info in contract.outputs.values() if info.name not in states]
    return remarks


def _described(info: TensorInfo, batches: bool) -> Dict[str, Any]:
    described: Dict[str, Any] = {"name": info.name, "data_type": info.config_type}
    described["dims"] = list(info.dims[1:] if batches else info.dims)
    if not described["dims"]:
        described["dims"] = [1]
        if batches:
            described["reshape"] = {"shape": []}
    return described
