"""Loading: from a model's folder to versions that serve.

The first stub of a version imports the model and tells whether its class completes configurations. If so, it runs
`auto_complete_config` and ends, and fresh stubs serve, so nothing that the completion did to its process is seen later.
If not, as with most models, the same stub goes on and becomes the first instance: no process is started in vain.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from stubserve.environments.resolve import Environments, mention_stub_program
from stubserve.errors import ServeError, internal, invalid, unsupported
from stubserve.inference.latencies import DEFAULT_BOUNDS_MS, FIRST_RESPONSE, Latencies
from stubserve.instances.instance import Instance
from stubserve.instances.launcher import Launcher
from stubserve.instances.memory import Memory
from stubserve.instances.restart import RestartPolicy
from stubserve.instances.services import Services
from stubserve.instances.stub import Stub
from stubserve.instances.threads import thread_variables, threads_per_instance
from stubserve.model_config.complete import InstanceSpec, instances_of, normalise, with_runtime
from stubserve.model_config.proto import ModelConfig
from stubserve.model_config.render import conclude_auto_complete, render_json, to_json_dict
from stubserve.model_config.validate import (
    validate,
    validate_directory_name,
    validate_instance_groups,
    validate_model,
)
from stubserve.repository.folder import (
    DUPLICATE_REASON,
    ModelFolder,
    available_versions,
    read_config,
    read_labels,
    survey,
)
from stubserve.repository.model import Model
from stubserve.repository.program import find_program, missing_parts
from stubserve.repository.registry import Registry, State
from stubserve.settings import Settings

log = logging.getLogger("stubserve.repository")

_FAILED_LOAD_GRACE_S = 1.0


class Loader:
    """Loads models into a registry."""

    def __init__(self, settings: Settings, memory: Memory, registry: Registry, services: Services) -> None:
        self._settings = settings
        self._memory = memory
        self._registry = registry
        self._services = services
        self._environments = Environments(settings.environment_cache)
        self._slots = asyncio.Semaphore(max(settings.model_load_thread_count, 1))

    async def load_all(self) -> bool:
        """Loads every model of the repositories; whether all of them could be loaded. Failures are in the registry.

        Raises ServeError if a repository cannot be read.
        """
        for repository in self._settings.model_repository:
            if not repository.is_dir():
                raise internal(f"failed to stat file {repository}: repository path is not a valid directory")
        found = survey(self._settings.model_repository)
        for name in found.duplicates:
            self._registry.entry(name).reason = DUPLICATE_REASON
        for name in found.models:
            self._registry.entry(name)
        loaded = await asyncio.gather(*(self._load_model(folder) for folder in found.models.values()))
        return all(loaded) and not found.duplicates

    async def _load_model(self, folder: ModelFolder) -> bool:
        try:
            written = read_config(folder, self._settings.model_config_name)
            config = normalise(written if written is not None else ModelConfig(), folder.name, folder.path)
            validate_directory_name(config, folder.name)
            versions = available_versions(folder, config)
            if not versions:
                raise invalid(
                    f"at least one version must be available under the version policy of model '{folder.name}'"
                )
        except Exception as raised:
            error = _as_load_error(raised)
            log.error("Poll failed for model directory '%s': %s", folder.name, error)
            self._registry.entry(folder.name).reason = error.message
            return False
        mention_stub_program(folder.path)
        loaded = await asyncio.gather(
            *(self._load_version(folder, version, config, written is not None) for version in versions)
        )
        if all(loaded):
            log.info("successfully loaded '%s'", folder.name)
            return True
        await self._unload_rest(folder.name)
        return False

    async def _unload_rest(self, name: str) -> None:
        """Takes down the versions of a model of which another failed: all are served or none is, as upstream."""
        for version, entry in list(self._registry.entry(name).versions.items()):
            if entry.model is not None:
                self._registry.set_version(name, version, State.UNAVAILABLE, "unloaded")
                await entry.model.stop(self._settings.exit_timeout_secs)

    async def _load_version(self, folder: ModelFolder, version: int, config: Any, has_config_file: bool) -> bool:
        self._registry.set_version(folder.name, version, State.LOADING)
        async with self._slots:
            log.info("loading: %s:%d", folder.name, version)
            began = time.monotonic()
            try:
                model = await self._start_version(folder, version, config, has_config_file)
            except Exception as raised:
                error = _as_load_error(raised)
                log.error("failed to load '%s' version %d: %s", folder.name, version, error.status_text)
                self._registry.set_version(folder.name, version, State.UNAVAILABLE, error.status_text)
                return False
        model.load_seconds = time.monotonic() - began
        self._registry.set_version(folder.name, version, State.READY, model=model)
        return True

    async def _start_version(self, folder: ModelFolder, version: int, config: Any, has_config_file: bool) -> Model:
        name = folder.name
        validate_model(config)
        validate_instance_groups(config)
        if config.platform == "ensemble":
            raise unsupported(f"model '{name}' is an ensemble, which stubserve does not offer yet")
        program = find_program(config, folder.path.resolve(), version, self._settings.backend_directory)
        config = with_runtime(config, program.runtime)
        for _, part in missing_parts(config):
            log.warning("model '%s': %s", name, part)
        version_dir = folder.version_path(version)
        environment = await self._environments.of_model(config, folder.path.resolve(), program.default_environment)
        specs = instances_of(config)
        threads = threads_per_instance(config, len(specs), os.environ)
        environment = replace(
            environment, variables={**environment.variables, **thread_variables(config, threads, os.environ)}
        )
        if threads:
            log.debug("'%s' version %d: %d threads per instance", name, version, threads)
        terminal = name in self._settings.debug_model
        launcher = Launcher(
            self._memory,
            environment,
            folder.path.resolve(),
            version_dir.resolve(),
            program,
            self._services,
            terminal,
            threads,
        )
        first: Stub | None = None
        config_json = render_json(config)
        if not self._settings.disable_auto_complete_config:
            first, config, config_json = await self._complete(launcher, specs[0].name, config, has_config_file)
            specs = instances_of(config)
        try:
            validate(config)
            labels = read_labels(folder, config)
            model = Model(name, version, config, to_json_dict(config), labels)
            model.latencies = self._latencies(config)
        except BaseException:
            if first is not None:
                await first.kill()
            raise
        await self._start_instances(model, launcher, specs, first, config_json)
        return model

    def _latencies(self, config: Any) -> Latencies | None:
        """Where the model's latencies are counted, None if nobody wants them."""
        options = self._settings.metrics_options
        if not self._settings.allow_metrics or not (options.histogram_latencies or options.summary_latencies):
            return None
        bounds: list[float] | None = None
        if options.histogram_latencies:
            bounds = list(DEFAULT_BOUNDS_MS)
            for control in config.model_metrics.metric_control:
                if control.metric_identifier.family == FIRST_RESPONSE:
                    bounds = list(control.histogram_options.buckets)
                else:
                    log.warning(
                        "model '%s': 'model_metrics' has no effect on %s, which is no histogram of the server's",
                        config.name,
                        control.metric_identifier.family,
                    )
        return Latencies(bounds, options.summary_latencies)

    async def _complete(
        self, launcher: Launcher, instance: str, config: Any, has_config_file: bool
    ) -> tuple[Stub | None, Any, str]:
        """The configuration as the model wants it: (a stub that may serve or None, configuration, its JSON)."""
        stub = launcher.boot(instance)
        try:
            if not await stub.handshake.imported():
                return stub, config, render_json(config)
            returned = await stub.handshake.complete(config.name, render_json(config))
        except BaseException:
            await stub.kill()
            raise
        await stub.kill()
        adopted, config_json, wrong = conclude_auto_complete(config, returned, has_config_file=has_config_file)
        if wrong is not None:
            log.warning("what auto_complete_config of model '%s' returned cannot be used: %s", config.name, wrong)
        return None, adopted, config_json

    async def _start_instances(
        self, model: Model, launcher: Launcher, specs: list[InstanceSpec], first: Stub | None, config_json: str
    ) -> None:
        ready_stubs = {id(specs[0]): first} if first is not None else {}

        def launch_for(spec: InstanceSpec) -> Callable[[Instance], Any]:
            async def launch(_: Instance) -> Stub:
                stub = ready_stubs.pop(id(spec), None)
                try:
                    if stub is None:
                        stub = launcher.boot(spec.name)
                        await stub.handshake.imported()
                    await launcher.initialize(stub, spec, model.config, config_json)
                except BaseException:
                    if stub is not None:
                        await stub.kill()
                    raise
                return stub

            return launch

        model.instances = [
            Instance(spec.name, launch_for(spec), model, RestartPolicy(self._settings.stub_restart_limit), spec.passive)
            for spec in specs
        ]
        starting = [asyncio.ensure_future(one.start()) for one in model.instances]
        try:
            await asyncio.gather(*starting)
        except BaseException:
            for start in starting:
                start.cancel()
            await asyncio.gather(*starting, return_exceptions=True)
            await model.stop(_FAILED_LOAD_GRACE_S)
            raise


def _as_load_error(raised: Exception) -> ServeError:
    """What failed a load, for the index; a fault of the server's own is kept from ending it, and goes to the log."""
    if isinstance(raised, ServeError):
        return raised
    log.error("unexpected error while a model was loaded", exc_info=raised)
    return internal(f"unexpected error: {raised!r}")
