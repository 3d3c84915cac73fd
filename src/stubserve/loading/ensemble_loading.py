"""Starting a version of an ensemble: its configuration is checked against its members, which serve already."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from stubserve.errors import ServeError, invalid, raise_first
from stubserve.inference.served_model import ServedModel
from stubserve.instances.bls import Models
from stubserve.loading.dependencies import version_not_loaded
from stubserve.model_config.proto import ModelConfig
from stubserve.model_config.validate import validate
from stubserve.model_config.validate_members import is_decoupled, member_problems
from stubserve.repository.candidate import Candidate
from stubserve.repository.folder import read_labels
from stubserve.repository.registry import Registry, VersionState
from stubserve.serving.ensemble_model import EnsembleModel

# By name, and version as `find` takes it
Members = Mapping[tuple[str, str], ServedModel]


async def start_ensemble(candidate: Candidate, version: int, models: Models, max_queue_size: int = 0) -> EnsembleModel:
    """A version of an ensemble that is ready. Raises ServeError with upstream's texts.

    `max_queue_size` is the server's own limit, as `EnsembleModel` has it.
    """
    folder, config = candidate.folder, candidate.config
    validate(config)
    labels = await asyncio.to_thread(read_labels, folder, config)
    # Nothing is awaited from here on: what is checked is what is served.
    members = _find(config, models)
    configs = _configs(members)
    raise_first(member_problems(config, configs))
    completed = ModelConfig()
    completed.CopyFrom(config)
    # As upstream, whatever the configuration itself says
    completed.model_transaction_policy.decoupled = is_decoupled(config, configs)
    model = EnsembleModel(folder.name, version, completed, models, members, max_queue_size=max_queue_size)
    model.signature.labels = {**_labels_of_members(config, members), **labels}
    return model


def check_members(config: Any, registry: Registry, namespace: str) -> None:
    """Raises ServeError INVALID_ARG where an ensemble cannot be served with the models that are loaded."""
    try:
        members = _find(config, registry.within(namespace))
    except ServeError:
        raise _why_not_there(config, registry, namespace) from None
    raise_first(member_problems(config, _configs(members)))


def _key(step: Any) -> tuple[str, str]:
    return step.model_name, "" if step.model_version == -1 else str(step.model_version)


def _find(config: Any, models: Models) -> Members:
    return {key: models.find(*key) for key in map(_key, config.ensemble_scheduling.step)}


def _configs(members: Members) -> dict[str, ModelConfig]:
    return {name: model.config for (name, _), model in members.items()}


def _why_not_there(config: Any, registry: Registry, namespace: str) -> ServeError:
    """What is wrong with the first member that is not loaded, in upstream's words."""
    for step in config.ensemble_scheduling.step:
        name = step.model_name
        where = f"ensemble '{config.name}' depends on '{name}'"
        key = registry.resolve(name, namespace)
        if not registry.ready_versions(key):
            entry = registry.models.get(key)
            if entry is not None and entry.reason and not entry.versions:
                return invalid(f"{where} which is not valid. Model '{name}' failed with error: {entry.reason}")
            failed = [one for one in entry.versions.values() if one.state is VersionState.UNAVAILABLE] if entry else []
            text = "".join(f"version {one.version} is at UNAVAILABLE state: {one.reason};" for one in failed)
            more = f". Model '{name}' loading failed with error: {text}" if text else ""
            return invalid(f"{where} which has no loaded version{more}")
        if step.model_version != -1 and not registry.serves(key, step.model_version):
            return version_not_loaded(config.name, step)
    return invalid(f"ensemble '{config.name}' depends on models that are not loaded")


def _labels_of_members(config: Any, members: Members) -> dict[str, list[str]]:
    """The labels that the outputs have where they are made, by output of the ensemble."""
    wanted = {output.name for output in config.output}
    labels = {}
    for step in config.ensemble_scheduling.step:
        known = members[_key(step)].signature.labels
        for name, tensor in step.output_map.items():
            if tensor in wanted and name in known:
                labels[tensor] = known[name]
    return labels
