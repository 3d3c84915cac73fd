"""`ModelConfig`: what `auto_complete_config` gets, fills in and returns."""

from __future__ import annotations

import json
from typing import Any, Dict, Sequence


class ModelConfig:
    """A model's configuration as a dict, with methods that fill in what it leaves open.

    They raise ValueError where the model contradicts what its configuration says.
    """

    def __init__(self, model_config: str) -> None:
        self._model_config: Dict[str, Any] = json.loads(model_config)

    def as_dict(self) -> Dict[str, Any]:
        """The configuration itself, not a copy."""
        return self._model_config

    def _to_json(self) -> str:
        """The configuration as text, with extra keys that the model has added."""
        return json.dumps(self._model_config)

    @property
    def _name(self) -> str:
        name: str = self._model_config["name"]
        return name

    @property
    def _where(self) -> str:
        return f"in auto-complete-config function for model '{self._name}'"

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Sets the largest batch size; it may only grow."""
        specified = self._model_config["max_batch_size"]
        if specified > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {specified}, but {self._where} specified max_batch_size "
                f"{max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Asks for the dynamic batcher with its defaults, unless the configuration already does."""
        for choice in ("sequence_batching", "ensemble_scheduling"):
            if choice in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{choice}', but auto-complete-config function for "
                    f"model '{self._name}' tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, transaction_policy_dict: Dict[str, Any]) -> None:
        """Sets `{"decoupled": bool}`; a value that the configuration states cannot change."""
        if any(key != "decoupled" for key in transaction_policy_dict):
            raise ValueError(f"model transaction property {self._where} contains property other than 'decoupled'.")
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" not in transaction_policy_dict:
            return
        specified = policy.setdefault("decoupled", transaction_policy_dict["decoupled"])
        if specified != transaction_policy_dict["decoupled"]:
            raise ValueError(
                "trying to change decoupled property in auto-complete-config for model "
                f"'{self._name}', which is already set to '{specified}'."
            )

    def add_input(self, input: Dict[str, Any]) -> None:
        """Adds an input, or fills in the blanks of the configured one: name, data_type, dims and maybe optional."""
        allowed = ("name", "data_type", "dims", "optional")
        self._check("input", input, allowed, "'name', 'data_type', 'dims' and 'optional'")
        configured = self._add("input", input)
        if configured is not None and "optional" in input:
            specified = configured.setdefault("optional", input["optional"])
            if specified != input["optional"]:
                raise ValueError(
                    f"model '{self._name}', tensor '{input['name']}': the model expects optional "
                    f"{input['optional']} but the model configuration specifies optional {specified}"
                )

    def add_output(self, output: Dict[str, Any]) -> None:
        """Adds an output, or fills in the blanks of the configured one: name, data_type and dims."""
        self._check("output", output, ("name", "data_type", "dims"), "'name', 'data_type' and 'dims'")
        self._add("output", output)

    def _check(self, kind: str, tensor: Dict[str, Any], allowed: Sequence[str], spelled: str) -> None:
        for key in tensor:
            if key not in allowed:
                raise ValueError(
                    f"{kind} '{tensor.get('name', '')}' {self._where} contains property other than {spelled}."
                )
        if "name" not in tensor:
            raise ValueError(f"{kind} {self._where} is missing 'name' property.")
        for key in ("data_type", "dims"):
            if key not in tensor:
                raise ValueError(f"{kind} '{tensor['name']}' {self._where} is missing '{key}' property.")

    def _add(self, kind: str, tensor: Dict[str, Any]) -> Any:
        """Appends the tensor, or merges it into the configured one of its name, which it returns."""
        model, name = self._name, tensor["name"]
        for configured in self._model_config[kind]:
            if configured["name"] != name:
                continue
            if configured["data_type"] == "TYPE_INVALID":
                configured["data_type"] = tensor["data_type"]
            elif configured["data_type"] != tensor["data_type"]:
                raise ValueError(
                    f"unable to load model '{model}', configuration expects datatype {configured['data_type']} for "
                    f"{kind} '{name}', model provides {tensor['data_type']}"
                )
            if not configured["dims"]:
                configured["dims"] = tensor["dims"]
            elif configured["dims"] != tensor["dims"]:
                raise ValueError(
                    f"model '{model}', tensor '{name}': the model expects dims {tensor['dims']} but the model "
                    f"configuration specifies dims {configured['dims']}"
                )
            return configured
        self._model_config[kind].append(tensor)
        return None
