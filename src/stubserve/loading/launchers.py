"""Launchers of stubs: find the program of a model version, its environment and its share of the cores."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from stubserve.environments.resolve import Environments
from stubserve.instances.launcher import Launcher, Program, StubOptions
from stubserve.instances.services import Services
from stubserve.instances.threads import thread_variables, threads_per_instance
from stubserve.loading.program import check_python_parameters, environment_of, locate_program, missing_parts
from stubserve.loading.source_check import SourceProblem, misspelt_hooks
from stubserve.memory.server_memory import Memory
from stubserve.model_config.complete import instances_of, with_runtime
from stubserve.model_config.validate import validate_instance_groups
from stubserve.repository.candidate import Candidate
from stubserve.settings.groups import InstanceSettings

log = logging.getLogger("stubserve.repository")

_MAX_BATCH_SIZE = "default-max-batch-size"


class Launchers:
    """Makes the launchers of model versions, by `make`; with `hints` the log names likely mistakes in a source."""

    def __init__(
        self, settings: InstanceSettings, memory: Memory, make: Callable[..., Launcher] = Launcher, hints: bool = True
    ) -> None:
        self._settings = settings
        self._hints = hints
        self._memory = memory
        self._make = make
        self._environments = Environments(settings.environment_cache)

    async def of(self, candidate: Candidate, version: int, services: Services) -> tuple[Launcher, Any, bool]:
        """The launcher of a version, its configuration with the program's additions, and whether the program is there.

        A program that is not there fails in the stub. Raises ServeError.
        """
        name, config = candidate.folder.name, candidate.config
        files = await asyncio.to_thread(_find_files, candidate, version, self._settings.backend_directory)
        program, model_dir = files.program, files.model_dir
        program = replace(program, settings=self._settings.backend_settings(program.backend))
        if files.program_is_missing:
            # The same words as in upstream's log.
            log.info("Failed to preinitialize Python stub: Python model file not found in '%s'", program.file)
        for hint in files.hints if self._hints else ():
            log.warning("model '%s': %s:%d: %s", name, program.file, hint.line, hint.text)
        config = with_runtime(config, program.runtime)
        self._mention_batch_size(config.backend)
        for _, part in missing_parts(config):
            log.warning("model '%s': %s", name, part)
        environment = await environment_of(program, self._environments, config, model_dir)
        threads = threads_per_instance(config, len(instances_of(config)), os.environ)
        environment = replace(
            environment, variables={**environment.variables, **thread_variables(config, threads, os.environ)}
        )
        environment = services.confinement.around(environment, model_dir, name)
        if threads:
            log.debug("'%s' version %d: %d threads per instance", name, version, threads)
        options = StubOptions(
            self._settings.gives_terminal(name),
            threads,
            self._settings.execute_timeout_secs,
            self._settings.check_outputs,
            max(candidate.gpus.numbers, default=-1) + 1,
        )
        launcher = self._make(self._memory, environment, model_dir, files.version_dir, program, services, options)
        return launcher, config, not files.program_is_missing

    def _mention_batch_size(self, backend: str) -> None:
        """Logs a backend's setting of batch sizes, in upstream's words; it has no other effect with Python models."""
        size = self._settings.backend_setting(backend, _MAX_BATCH_SIZE)
        if size is None:
            log.debug("Adding default backend config setting: %s,4", _MAX_BATCH_SIZE)
        else:
            log.debug("Found overwritten default setting: %s,%s", _MAX_BATCH_SIZE, size)


class _Files(NamedTuple):
    """The program and folders of a version's stubs, without links.

    `hints` name likely mistakes in a source that loads.
    """

    program: Program
    program_is_missing: bool
    model_dir: Path
    version_dir: Path
    hints: Sequence[SourceProblem]


def _find_files(candidate: Candidate, version: int, backend_directory: Path) -> _Files:
    """Finds them, in a thread, as disks may be slow. Raises ServeError, for the fault that upstream reports first."""
    folder, config = candidate.folder, candidate.config
    model_dir = folder.path.resolve()
    program = locate_program(config, model_dir, version, backend_directory)
    validate_instance_groups(config, candidate.gpus)
    check_python_parameters(config)
    missing = program.file is not None and not program.file.is_file()
    hints = [] if program.file is None or missing else misspelt_hooks(program.file)
    return _Files(program, missing, model_dir, folder.version_path(version).resolve(), hints)
