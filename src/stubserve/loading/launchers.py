"""Launchers of stubs: find the program of a model version, its environment and its share of the cores.

**The share** is the number of threads that numeric libraries of one instance may start. OpenMP, MKL and OpenBLAS (and
with them numpy, scipy and torch) start one thread per core in every process, and onnxruntime does the same in every
session. Four instances on eight cores then run thirty-two threads and are slower than with eight. A container that may
use two cores of sixty-four is slowed down most: the libraries count all cores.

Nothing is set if it would change nothing: for one instance that may use all cores. Explicit settings go first, in this
order: the model's parameter THREADS_PER_INSTANCE (0 for no limit); variables in the server's own environment. Other
models are not counted: they may be idle.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stubserve_stub.backends.card import ALONE, TOGETHER
from stubserve_stub.backends.cards import card_of

from stubserve.environments.resolve import Environments
from stubserve.errors import ServeError, invalid
from stubserve.instances.launcher import Launcher, Program
from stubserve.instances.services import Services
from stubserve.instances.stub_devices import GpuMemory
from stubserve.loading.program import check_python_parameters, environment_of, locate_program
from stubserve.loading.source_check import SourceProblem, misspelt_hooks
from stubserve.memory.server_memory import Memory
from stubserve.model_config.complete import instances_of, with_runtime
from stubserve.model_config.validate import validate_instance_groups
from stubserve.repository.candidate import Candidate
from stubserve.settings.groups import InstanceSettings

log = logging.getLogger("stubserve.repository")

_MAX_BATCH_SIZE = "default-max-batch-size"

# The limit of threads, as a model's own
PARAMETER = "THREADS_PER_INSTANCE"

# How many instances a stub may have, as a model's own and as a setting of its backend
INSTANCES = "INSTANCES_PER_STUB"
_INSTANCES_SETTING = "instances-per-stub"

# MKL and OpenBLAS use OMP_NUM_THREADS if their own variable is missing.
_GENERAL = "OMP_NUM_THREADS"
_VARIABLES = (_GENERAL, "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


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

    async def create(self, candidate: Candidate, version: int, services: Services) -> tuple[Launcher, Any, bool]:
        """The launcher of a version, its configuration with the program's additions, and whether the program is there.

        A program that is not there fails in the stub. Raises ServeError.
        """
        name, config = candidate.folder.name, candidate.config
        settings = self._settings
        program, missing, hints, model_dir, version_dir = await asyncio.to_thread(
            _find_files, candidate, version, settings.backend_directory
        )
        program = replace(program, settings=settings.backend_settings(program.backend))
        if missing:
            # The same words as in upstream's log.
            log.info("Failed to preinitialize Python stub: Python model file not found in '%s'", program.file)
        for hint in hints if self._hints else ():
            log.warning("model '%s': %s:%d: %s", name, program.file, hint.line, hint.text)
        config = with_runtime(config, program.runtime)
        # A backend's setting of batch sizes has no effect with Python models. The words are upstream's.
        size = settings.backend_setting(config.backend, _MAX_BATCH_SIZE)
        if size is None:
            log.debug("Adding default backend config setting: %s,4", _MAX_BATCH_SIZE)
        else:
            log.debug("Found overwritten default setting: %s,%s", _MAX_BATCH_SIZE, size)
        environment = await environment_of(program, self._environments, config, model_dir)
        instances = len(instances_of(config))
        threads = threads_per_instance(config, instances, os.environ)
        shared = instances_per_stub(config, program.settings)
        own = {name: value for name, value in card_of(program.backend).variables if name not in os.environ}
        environment = replace(
            environment, variables={**own, **environment.variables, **thread_variables(config, threads, os.environ)}
        )
        environment = services.confinement.confine(environment, model_dir, name)
        if threads:
            log.debug("'%s' version %d: %d threads per instance", name, version, threads)
        launcher = self._make(
            self._memory,
            environment,
            model_dir,
            version_dir,
            program,
            services,
            settings.gives_terminal(name),
            # Threads that a pool has for all instances of a stub
            1 + (threads - 1) * min(shared["CPU"], instances) if threads else 0,
            settings.execute_timeout_secs,
            settings.check_outputs,
            GpuMemory(
                max(candidate.gpus.numbers, default=-1) + 1,
                {gpu: nbytes for gpu, nbytes in settings.gpu_pools if nbytes},
                settings.peer_access,
                settings.pinned_memory if config.optimization.output_pinned_memory.enable else 0,
                dict(settings.gpu_load_limits),
            ),
            shared,
        )
        return launcher, config, not missing


def _find_files(
    candidate: Candidate, version: int, backend_directory: Path
) -> tuple[Program, bool, Sequence[SourceProblem], Path, Path]:
    """The program, whether its file is missing, likely mistakes in it, and the folders of model and version.

    Folders are without links. In a thread, as disks may be slow. Raises ServeError, for the fault that upstream reports
    first.
    """
    folder, config = candidate.folder, candidate.config
    model_dir = folder.path.resolve()
    program = locate_program(config, model_dir, version, backend_directory)
    validate_instance_groups(config, candidate.gpus)
    check_python_parameters(config)
    missing = program.file is not None and not program.file.is_file()
    hints = [] if program.file is None or missing else misspelt_hooks(program.file)
    return program, missing, hints, model_dir, folder.version_path(version).resolve()


def visible_cores() -> int:
    """The cores that a process sees; the libraries use this number."""
    return len(os.sched_getaffinity(0))


def allowed_cores(cpu_max: Path = _CPU_MAX) -> int:
    """The cores that this process gets time of: the visible ones, or the container's share if that is less."""
    cores = visible_cores()
    try:
        quota, period = cpu_max.read_text().split()
        if quota != "max":
            cores = min(cores, max(math.ceil(int(quota) / int(period)), 1))
    except (OSError, ValueError, ZeroDivisionError):
        pass  # no such limit here
    return cores


def threads_per_instance(
    config: Any, instances: int, environ: Mapping[str, str], *, allowed: int | None = None, visible: int | None = None
) -> int:
    """The limit for each of `instances` instances of a model, 0 for none. Raises ServeError INVALID_ARG."""
    if PARAMETER in config.parameters:
        text = config.parameters[PARAMETER].string_value
        if not (text.isascii() and text.isdigit()):
            raise invalid(
                f"parameter '{PARAMETER}' of model '{config.name}' must be a number of threads, or 0 for no limit. "
                f"Got '{text}'"
            ).at("parameters", PARAMETER)
        return int(text)
    if _GENERAL in environ:
        return 0
    share = max((allowed_cores() if allowed is None else allowed) // max(instances, 1), 1)
    return share if share < (visible_cores() if visible is None else visible) else 0


def instances_per_stub(config: Any, settings: Mapping[str, str]) -> dict[str, int]:
    """How many instances of a group on a device a stub may have, by the kind of instance.

    `settings` are those of its backend. Raises ServeError INVALID_ARG.
    """
    card = card_of(config.backend)
    parameters = config.parameters
    text, said = settings.get(_INSTANCES_SETTING, ""), f"--backend-config={config.backend},{_INSTANCES_SETTING}"
    if INSTANCES in parameters:
        text, said = parameters[INSTANCES].string_value, f"parameter '{INSTANCES}' of model '{config.name}'"
    asked = card.shares_with in parameters and parameters[card.shares_with].string_value.lower() in ("1", "true")
    if not text:
        most = sys.maxsize if card.shares == TOGETHER or asked else 1
        return {"CPU": most, "MODEL": most, "GPU": most if card.shares_on_gpus else 1}
    if text != "all" and not (text.isascii() and text.isdecimal() and int(text)):
        raise _refuse_sharing(config, f"{said} must be 'all' or a number from 1 on. Got '{text}'")
    most = sys.maxsize if text == "all" else int(text)
    if most > 1 and card.shares == ALONE:
        raise _refuse_sharing(
            config,
            f"{said} is '{text}', but each instance of the backend '{config.backend}' needs a stub of its own: what it "
            "keeps in a process is for one instance. Leave it out, or write 1",
        )
    if most > 1 and not card.shares_on_gpus and any(one.kind == "GPU" for one in instances_of(config)):
        raise _refuse_sharing(
            config,
            f"{said} is '{text}', but each instance of the backend '{config.backend}' on a GPU needs a stub of its "
            "own. Leave it out, or write 1",
        )
    return dict.fromkeys(("CPU", "MODEL", "GPU"), most)


def _refuse_sharing(config: Any, text: str) -> ServeError:
    refusal = invalid(text)
    return refusal.at("parameters", INSTANCES) if INSTANCES in config.parameters else refusal


def thread_variables(config: Any, threads: int, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment variables for the libraries. Existing ones stay, unless the model's parameter is set."""
    if not threads:
        return {}
    forced = PARAMETER in config.parameters
    return {name: str(threads) for name in _VARIABLES if forced or name not in environ}
