"""Inputs and outputs that sequence batching adds to a model: controls and states, as a configuration has them."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

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
