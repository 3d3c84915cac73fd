"""The number of threads that numeric libraries of one instance may start, so that they do not compete for the cores.

OpenMP, MKL and OpenBLAS (and with them numpy, scipy and torch) start one thread per core in every process, and
onnxruntime does the same in every session. Four instances on eight cores then run thirty-two threads and are slower
than with eight. A container that may use two cores of sixty-four is slowed down most: the libraries count all cores.

Nothing is set if it would change nothing: for one instance that may use all cores. Explicit settings go first, in this
order: the model's parameter THREADS_PER_INSTANCE (0 for no limit); variables in the server's own environment. Other
models are not counted: they may be idle.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stubserve.errors import invalid

PARAMETER = "THREADS_PER_INSTANCE"

# MKL and OpenBLAS use OMP_NUM_THREADS if their own variable is missing.
_GENERAL = "OMP_NUM_THREADS"
_VARIABLES = (_GENERAL, "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


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


def thread_variables(config: Any, threads: int, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment variables for the libraries. Existing ones stay, unless the model's parameter is set."""
    if not threads:
        return {}
    forced = PARAMETER in config.parameters
    return {name: str(threads) for name in _VARIABLES if forced or name not in environ}
