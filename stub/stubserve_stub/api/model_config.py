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
    def _where(self) -> str:
        return "in auto-complete-config function for model '{}'".format(self._model_config["name"])

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Sets the largest batch size; it may only grow."""
        specified = self._model_config["max_batch_size"]
        if specified > max_batch_size:
            raise ValueError(
                "configuration specified max_batch_size {}, but {} specified max_batch_size {}".format(
                    specified, self._where, max_batch_size
                )
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Asks for the dynamic batcher with its defaults, unless the configuration already does."""
        for choice in ("sequence_batching", "ensemble_scheduling"):
            if choice in self._model_config:
                raise ValueError(
                    "Configuration specified scheduling_choice as '{}', but auto-complete-config function for model "
                    "'{}' tries to set scheduling_choice as 'dynamic_batching'".format(
                        choice, self._model_config["name"]
                    )
                )
        self._model_config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, transaction_policy_dict: Dict[str, Any]) -> None:
        """Sets `{"decoupled": bool}`; a value that the configuration states cannot change."""
        if any(key != "decoupled" for key in transaction_policy_dict):
            raise ValueError(
                "model transaction property {} contains property other than 'decoupled'.".format(self._where)
            )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" not in transaction_policy_dict:
            return
        specified = policy.setdefault("decoupled", transaction_policy_dict["decoupled"])
        if specified != transaction_policy_dict["decoupled"]:
            raise ValueError(
                "trying to change decoupled property in auto-complete-config for model '{}', "
                "which is already set to '{}'.".format(self._model_config["name"], specified)
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
                    "model '{}', tensor '{}': the model expects optional {} but the model configuration specifies "
                    "optional {}".format(self._model_config["name"], input["name"], input["optional"], specified)
                )

    def add_output(self, output: Dict[str, Any]) -> None:
        """Adds an output, or fills in the blanks of the configured one: name, data_type and dims."""
        self._check("output", output, ("name", "data_type", "dims"), "'name', 'data_type' and 'dims'")
        self._add("output", output)

    def _check(self, kind: str, tensor: Dict[str, Any], allowed: Sequence[str], spelled: str) -> None:
        for key in tensor:
            if key not in allowed:
                raise ValueError(
                    "{} '{}' {} contains property other than {}.".format(
                        kind, tensor.get("name", ""), self._where, spelled
                    )
                )
        if "name" not in tensor:
            raise ValueError("{} {} is missing 'name' property.".format(kind, self._where))
        for key in ("data_type", "dims"):
            if key not in tensor:
                raise ValueError("{} '{}' {} is missing '{}' property.".format(kind, tensor["name"], self._where, key))

    def _add(self, kind: str, tensor: Dict[str, Any]) -> Any:
        """Appends the tensor, or merges it into the configured one of its name, which it returns."""
        model, name = self._model_config["name"], tensor["name"]
        for configured in self._model_config[kind]:
            if configured["name"] != name:
                continue
            if configured["data_type"] == "TYPE_INVALID":
                configured["data_type"] = tensor["data_type"]
            elif configured["data_type"] != tensor["data_type"]:
                raise ValueError(
                    "unable to load model '{}', configuration expects datatype {} for {} '{}', model provides "
                    "{}".format(model, configured["data_type"], kind, name, tensor["data_type"])
                )
            if not configured["dims"]:
                configured["dims"] = tensor["dims"]
            elif configured["dims"] != tensor["dims"]:
                raise ValueError(
                    "model '{}', tensor '{}': the model expects dims {} but the model configuration specifies dims "
                    "{}".format(model, name, tensor["dims"], configured["dims"])
                )
            return configured
        self._model_config[kind].append(tensor)
        return None
