"""The start of an ensemble: it is checked against its members, made, and warmed up.

Its samples are requests that go through all its steps, and count with them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stubserve.ensembles.model import EnsembleModel
from stubserve.ensembles.problems import is_decoupled, member_problems
from stubserve.errors import ServeError, invalid, raise_first
from stubserve.inference.call import Call
from stubserve.inference.request import Request, Response
from stubserve.inference.served_model import ModelFinder, ServedModel
from stubserve.memory.server_memory import Memory
from stubserve.model_config.complete import copy_of
from stubserve.model_config.proto import ModelConfig
from stubserve.model_config.validate import validate
from stubserve.repository.candidate import Candidate
from stubserve.repository.folder import read_labels
from stubserve.repository.registry import Registry, VersionState
from stubserve.serving.answering import StageMaker
from stubserve.serving.warm_up import placed, run_samples
from stubserve.serving.warm_up_samples import Sample

# By name, and version as `find` takes it
Members = Mapping[tuple[str, str], ServedModel]
# From configuration, version and what stands for the files to a model's identity, and its stages in front of the queue
Caching = Callable[[Any, int, bytes], tuple[bytes, Sequence[StageMaker]]]


def version_not_loaded(ensemble: str, step: Any) -> ServeError:
    """The refusal of a step with a model that lacks the version; upstream takes a missing version for 0."""
    where = f"ensemble '{ensemble}' depends on '{step.model_name}'"
    hint = "" if step.model_version else " (model_version: -1 means the latest)"
    return invalid(f"{where} whose required version {step.model_version} is not loaded.{hint}")


async def start_ensemble(
    candidate: Candidate, version: int, models: ModelFinder, max_queue_size: int, caching: Caching
) -> EnsembleModel:
    """A version of an ensemble that is ready.

    Raises ServeError with upstream's texts. `max_queue_size` is the server's limit. `caching` gives its identity and
    its stages in front of the queue.
    """
    folder, config = candidate.folder, candidate.config
    validate(config)
    labels = await asyncio.to_thread(read_labels, folder, config)
    # Nothing is awaited from here on: the checked members are the served ones.
    members = _find(config, models)
    configs = _configs(members)
    raise_first(member_problems(config, configs))
    completed = copy_of(config)
    # As upstream, whatever the configuration itself says
    completed.model_transaction_policy.decoupled = is_decoupled(config, configs)
    identity, front = caching(completed, version, b"".join([one.identity for one in members.values()]))
    model = EnsembleModel(folder.name, version, completed, models, members, time.monotonic_ns, max_queue_size, front)
    model.identity = identity
    model.signature.labels = {**_labels_of_members(config, members), **labels}
    return model


def check_members(config: Any, registry: Registry, namespace: str) -> None:
    """Raises ServeError INVALID_ARG if an ensemble cannot be served with the loaded models."""
    try:
        members = _find(config, registry.in_namespace(namespace))
    except ServeError:
        raise _why_not_there(config, registry, namespace) from None
    raise_first(member_problems(config, _configs(members)))


def _key(step: Any) -> tuple[str, str]:
    return step.model_name, "" if step.model_version == -1 else str(step.model_version)


def _find(config: Any, models: ModelFinder) -> Members:
    return {key: models.find(*key) for key in map(_key, config.ensemble_scheduling.step)}


def _configs(members: Members) -> dict[str, ModelConfig]:
    return {name: model.config for (name, _), model in members.items()}


def _why_not_there(config: Any, registry: Registry, namespace: str) -> ServeError:
    """The fault of the first member that is not loaded, in upstream's words."""
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
    """The labels from the members that make the outputs, by output of the ensemble."""
    wanted = {output.name for output in config.output}
    labels = {}
    for step in config.ensemble_scheduling.step:
        known = members[_key(step)].signature.labels
        for name, tensor in step.output_map.items():
            if tensor in wanted and name in known:
                labels[tensor] = known[name]
    return labels


async def warm_up_ensemble(model: EnsembleModel, samples: Sequence[Sample], memory: Memory) -> None:
    """Sends samples through an ensemble when its members are ready. Raises ServeError for the first that fails."""

    async def execute(sample: Sample) -> list[str]:
        name, max_batch_size = model.signature.model, model.signature.max_batch_size
        if sample.is_too_large(max_batch_size):
            raise sample.too_large(name, max_batch_size)
        calls: list[_SampleCall] = []
        try:
            for _ in range(sample.requests):
                request = Request(placed(sample.inputs, memory))
                request.admitted = True  # as it was read
                request.request_start_ns = time.monotonic_ns()
                calls.append(_SampleCall(model))
                calls[-1].submit(request)
            return [error for call in calls for error in await call.errors]
        finally:
            for call in calls:
                call.cancel()

    await run_samples(f"ensemble '{model.signature.model}'", samples, execute)


class _SampleCall(Call):
    """One request of an ensemble's sample. `errors` is done with its final response."""

    __slots__ = ("_ensemble", "_found", "errors")

    def __init__(self, ensemble: EnsembleModel) -> None:
        super().__init__(ensemble)
        self._ensemble = ensemble
        self.errors: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._found: list[str] = []

    def submit(self, request: Request, together: bool = False) -> None:
        self.request = request
        request.on_response = self.on_response
        try:
            self._ensemble.try_out(request)
        except ServeError as refusal:
            raise self._refused(request, refusal) from None

    def respond(self, request: Request, response: Response) -> None:
        if response.error is not None:
            self._found.append(response.error.message)
        if response.final and not self.errors.done():
            self.errors.set_result(self._found)
