"""Starts model versions, or other instances for a serving one: from a checked configuration to ready instances.

The first stub of a version imports the model and reports whether its class completes configurations. If so, it runs
`auto_complete_config` and ends, and fresh stubs serve, so side effects of the completion are not seen later. If not, as
with most models, the same stub goes on and becomes the first instance: no process is started in vain.

When the instances of a serving version change (`update`), an instance stays, as upstream, if the new configuration has
one of the same kind, device and other properties. It keeps its name, even if its group has another name now. If fewer
are wanted the last ones stay; upstream keeps those that were ready last. New instances are started out of the
scheduler's sight, so a failed start changes nothing. Then one step of the event loop changes all: the new ones join,
and those that are left over get no more batches, finish their work, finalize and end. Queued requests, statistics and
the order of answers belong to the version and are not affected. A serving version keeps its completed configuration;
instances that stay also keep their limit of threads, which is part of their environment.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stubserve.inference.latencies import DEFAULT_BOUNDS_MS, FIRST_RESPONSE, Latencies
from stubserve.inference.served_model import ServedModel
from stubserve.instances.instance import Instance, InstanceState
from stubserve.instances.keeper import seated
from stubserve.instances.launcher import Launcher
from stubserve.instances.seat import Seat
from stubserve.instances.services import Services
from stubserve.instances.stub import Stub
from stubserve.loading.identity import differs, digest_of, identity_of
from stubserve.loading.launchers import Launchers
from stubserve.loading.program import idle_parts
from stubserve.memory.server_memory import Memory
from stubserve.model_config.complete import InstanceSpec, instances_of, with_instances
from stubserve.model_config.proto import ENSEMBLE_PLATFORM
from stubserve.model_config.render import conclude_auto_complete, render_json
from stubserve.model_config.validate import validate
from stubserve.model_config.validate_io import repeated_tensors
from stubserve.repository.candidate import Candidate
from stubserve.repository.folder import read_labels
from stubserve.serving.answering import StageMaker
from stubserve.serving.dispatcher import Dispatcher
from stubserve.serving.instance_model import InstanceModel, instance_model
from stubserve.settings.groups import InstanceSettings, LatencySettings

if TYPE_CHECKING:
    # A server without ensembles, a cache or a rate limiter does not load them.
    from stubserve.ensembles.model import EnsembleModel
    from stubserve.rate_limiter.limiter import RateLimiter
    from stubserve.response_cache.store import ResponseCache
    from stubserve.serving.warm_up import WarmUp


def assign(instances: Sequence[Instance], specs: Sequence[InstanceSpec]) -> list[Instance | InstanceSpec]:
    """For each of `specs` an instance that may stay for it, else the spec itself. Only ready instances stay."""
    spare: dict[Any, list[Instance]] = {}
    for instance in instances:
        if instance.state is InstanceState.READY:
            spare.setdefault(instance.spec.traits, []).append(instance)
    return [spare[spec.traits].pop() if spare.get(spec.traits) else spec for spec in specs]


@dataclass(frozen=True, eq=False)
class InstanceUpdate:
    """The change of `model` to `instances`, with `config`; those in `started` are new and ready."""

    model: InstanceModel
    instances: list[Instance]
    started: list[Instance]
    config: Any


async def no_step(model: ServedModel, folder: Path) -> None:
    """For a loader that no parts of a server concern."""


log = logging.getLogger("stubserve.repository")

_FAILED_LOAD_GRACE_S = 1.0


class Loader:
    """Starts model versions.

    Models complete their configurations if `completes` is set. `latencies` are the distributions to measure, None if
    they cannot be read. `cache` is the server's response cache, if any; `limiter` lets instances share resources.
    Without `hints` another part names likely mistakes in sources. `step` is what parts of the server do at each load.
    """

    def __init__(
        self,
        settings: InstanceSettings,
        memory: Memory,
        completes: bool,
        latencies: LatencySettings | None,
        make_launcher: Callable[..., Launcher] = Launcher,
        cache: ResponseCache | None = None,
        limiter: RateLimiter | None = None,
        hints: bool = True,
        step: Callable[[ServedModel, Path], Awaitable[None]] = no_step,
    ) -> None:
        self._settings = settings
        self._memory = memory
        self._completes = completes
        self._measured = latencies
        self._step = step
        self._cache = cache
        self._limiter = limiter
        self._launchers = Launchers(settings, memory, make_launcher, hints)
        self._booting = asyncio.Lock()

    async def start(self, candidate: Candidate, version: int, services: Services) -> ServedModel:
        """One version with all its instances ready. Raises ServeError; then nothing of the version is left."""
        folder, config = candidate.folder, candidate.config
        for wrong in repeated_tensors(config):
            log.warning("model '%s': %s", folder.name, wrong.message)
        self._tell_what_is_idle(config)
        if config.platform == ENSEMBLE_PLATFORM:
            return await self._start_ensemble(candidate, version, services)
        name = folder.name
        launcher, config, has_program = await self._launchers.create(candidate, version, services)
        # Before any stub reads them: a stub that has read older ones is then found out (`differs`).
        is_shared = self._cache is not None and self._cache.is_shared
        files = await asyncio.to_thread(digest_of, launcher.version_dir, launcher.program.file) if is_shared else b""
        specs = instances_of(config)
        first: Stub | None = None
        model: InstanceModel | None = None
        config_json = render_json(config)
        # The first request starts the model, if the configuration needs no completion by the model.
        complete = candidate.has_config and bool(config.input) and bool(config.output)
        asleep = self._settings.start_asleep and has_program and complete
        if self._completes and not asleep:
            first, config, config_json = await self._complete(launcher, specs[0].name, config, candidate.has_config)
            specs = instances_of(config)
        try:
            validate(config, candidate.gpus)
            if config.sequence_batching.state:
                from stubserve.sequences.problems import check_initial_states

                await asyncio.to_thread(check_initial_states, config, folder.path)
            labels = await asyncio.to_thread(read_labels, folder, config)
            settings = self._settings
            limits = (settings.max_queue_size, settings.restart_wait_secs, settings.quarantine_secs)
            identity, front = self._caching(config, version, files)
            model = instance_model(name, version, config, self._make_queue(), *limits, self._memory.heap, front)
            model.signature.labels = labels
            model.identity = identity
            model.latencies = self._latencies(config)
            await self._step(model, folder.path)
            warm_up = await self._warm_up(model, folder.path)
            instances = self._instances(model, launcher, specs, config_json, warm_up, first)
            self._check_limits(config, specs)
            model.begin_with(instances)
            if asleep:
                for instance in instances:
                    instance.begin_asleep()
            else:
                await _start_all(instances)
            model.sleep_after(self._settings.sleep_after_secs, asleep)
        except BaseException:
            if first is not None:
                await first.kill()  # its instance may not have taken it over
            if model is not None:
                model.unlimit(model.instances)
            raise
        return model

    async def _start_ensemble(self, candidate: Candidate, version: int, services: Services) -> EnsembleModel:
        from stubserve.ensembles.start import start_ensemble, warm_up_ensemble

        config, folder = candidate.config, candidate.folder.path
        model = await start_ensemble(candidate, version, services.models, self._settings.max_queue_size, self._caching)
        if config.model_warmup and not self._settings.start_asleep:  # a sample would wake its members
            from stubserve.serving.warm_up_samples import read_samples

            samples = await asyncio.to_thread(read_samples, config, model.signature, folder)
            await warm_up_ensemble(model, samples, self._memory)
        model.latencies = self._latencies(config)
        await self._step(model, folder)
        return model

    async def update(self, model: InstanceModel, candidate: Candidate, services: Services) -> InstanceUpdate:
        """The change of a serving version's instances to those of `candidate`, which has no other difference.

        Missing instances are started. Raises ServeError; then nothing is left of them.
        """
        self._tell_what_is_idle(candidate.config)
        launcher, _, _ = await self._launchers.create(candidate, model.version, services)
        config = with_instances(model.config, candidate.config)
        assigned = assign(model.instances, instances_of(config))
        missing = [one for one in assigned if isinstance(one, InstanceSpec)]
        warm_up = await self._warm_up(model, candidate.folder.path)
        started = self._instances(model, launcher, missing, render_json(config), warm_up)
        self._check_limits(config, missing)
        model.limit(started)
        try:
            await _start_all(started)
        except BaseException:
            model.unlimit(started)
            raise
        new = iter(started)
        instances = [next(new) if isinstance(one, InstanceSpec) else one for one in assigned]
        return InstanceUpdate(model, instances, started, config)

    async def _warm_up(self, model: InstanceModel, folder: Path) -> WarmUp | None:
        """The samples to execute before instances are ready, from files, so in a thread. Raises ServeError."""
        if not model.config.model_warmup:
            return None
        from stubserve.serving.warm_up import WarmUp
        from stubserve.serving.warm_up_samples import read_samples

        samples = await asyncio.to_thread(read_samples, model.config, model.signature, folder)
        return WarmUp(model, samples, self._memory)

    def _tell_what_is_idle(self, config: Any) -> None:
        for _, text in idle_parts(config, limits=self._limiter is not None, caches=self._cache is not None):
            log.warning("model '%s': %s", config.name, text)

    def _check_limits(self, config: Any, specs: Sequence[InstanceSpec]) -> None:
        """Raises ServeError INVALID_ARG if an instance asks for more of a resource than there is."""
        if self._limiter is not None:
            self._limiter.check([(spec.resources, spec.device_id) for spec in specs])

    def _make_queue(self) -> Callable[..., Dispatcher]:
        if self._limiter is None:
            return Dispatcher
        from stubserve.rate_limiter.dispatcher import LimitedDispatcher

        return partial(LimitedDispatcher, self._limiter)

    def _caching(self, config: Any, version: int, files: bytes) -> tuple[bytes, Sequence[StageMaker]]:
        """A model's identity, if a cache is shared, and the stages that the cache is for its requests.

        `files` stands for the model's files, or for the members of an ensemble.
        """
        cache = self._cache
        if cache is None:
            return b"", ()
        identity = identity_of(config, version, files) if cache.is_shared else b""
        if not config.response_cache.enable:
            return identity, ()
        if config.model_transaction_policy.decoupled:
            # Only an ensemble gets here: it is decoupled because a member is.
            log.warning("model '%s': 'response_cache' has no effect, as its members are decoupled", config.name)
            return identity, ()
        from stubserve.response_cache.stage import CacheStage

        return identity, (partial(CacheStage, cache, identity or secrets.token_bytes(32)),)

    def _latencies(self, config: Any) -> Latencies | None:
        """The counts of the model's latencies, None if they are switched off."""
        measured = self._measured
        if measured is None:
            return None
        bounds = list(DEFAULT_BOUNDS_MS)
        for control in config.model_metrics.metric_control:
            if control.metric_identifier.family == FIRST_RESPONSE:
                bounds = list(control.histogram_options.buckets)
        if not measured.histogram_latencies and not measured.summary_latencies:
            return None
        return Latencies(bounds if measured.histogram_latencies else None, measured.summary_latencies)

    async def _complete(
        self, launcher: Launcher, instance: str, config: Any, has_config_file: bool
    ) -> tuple[Stub | None, Any, str]:
        """The configuration as completed by the model: (a stub that may serve or None, configuration, its JSON)."""
        stub = launcher.boot(instance)
        try:
            if not await stub.handshake.imported():
                return stub, config, render_json(config)
            returned = await stub.handshake.complete(config.name, render_json(config))
            adopted, config_json, wrong = conclude_auto_complete(config, returned, has_config_file=has_config_file)
        except BaseException:
            await stub.kill()
            raise
        if wrong is not None:
            log.warning("what auto_complete_config of model '%s' returned cannot be used: %s", config.name, wrong)
        if stub.handshake.serves_after_completion:
            return stub, adopted, config_json
        await stub.kill()
        return None, adopted, config_json

    def _instances(
        self,
        model: InstanceModel,
        launcher: Launcher,
        specs: Sequence[InstanceSpec],
        config_json: str,
        warm_up: WarmUp | None,
        first: Stub | None = None,
    ) -> list[Instance]:
        """Instances that are still to be started; `first` is a stub for the first, with the model imported.

        Those of a group on a device share stubs as the model wants it, also those that there are.
        """
        ready_stubs = [first] if first is not None else []

        async def launch(instances: Sequence[Instance], shared: Stub | None) -> tuple[Stub, Sequence[Seat]]:
            stub = shared or (ready_stubs.pop() if ready_stubs and instances[0].spec is specs[0] else None)
            seats: list[Seat] = []
            there = () if shared is None else tuple(shared.seats)
            try:
                if stub is None:
                    async with self._booting:
                        stub = launcher.boot(instances[0].name)
                        # The start of a process stops the event loop for some milliseconds. Requests go first.
                        await asyncio.sleep(0)
                    await stub.handshake.imported()
                for instance in instances:
                    seats.append(await launcher.initialize(stub, instance.spec, model.config, config_json))
                    instance.differs = await differs(model, launcher, instance.name)
                    if warm_up is not None and not instance.passive:
                        await warm_up.run(seats[-1], instance.name)
            except BaseException:
                if shared is not None:
                    # Also the one that is being initialized
                    begun = [seat for number, seat in shared.seats.items() if number not in there]
                    await asyncio.gather(*(seat.stop(_FAILED_LOAD_GRACE_S) for seat in begun))
                elif stub is not None:
                    await stub.kill()
                raise
            return stub, seats

        return seated(specs, model.instances, model, launch, self._settings.restart_limit, launcher.instances_per_stub)


async def _start_all(instances: Sequence[Instance]) -> None:
    """Returns when all are ready; if one fails, all are ended."""
    starting = [asyncio.ensure_future(one.start()) for one in instances]
    try:
        await asyncio.gather(*starting)
    except BaseException:
        for start in starting:
            start.cancel()
        await asyncio.gather(*starting, return_exceptions=True)
        await asyncio.gather(*(one.stop(_FAILED_LOAD_GRACE_S) for one in instances))
        raise
