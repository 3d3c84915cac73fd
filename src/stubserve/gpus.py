"""The GPUs of this machine that models may run on.

The server loads no driver of GPUs, since a driver takes memory and may crash. A process of its own asks the driver,
once, when the first model is read; and only where the system has a driver's device. So other machines pay nothing.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import subprocess
import sys
import threading
from typing import NamedTuple

log = logging.getLogger("stubserve.gpus")

# What NVIDIA's driver has on Linux, and on Windows' Linux; or the variable that names another library in its place, or
# that says by an empty name that there is none.
_DEVICES = ("/dev/nvidiactl", "/dev/dxg")
DRIVER_VARIABLE = "STUBSERVE_CUDA_DRIVER"
_PATIENCE_S = 60.0

# Upstream's default for --min-supported-compute-capability
LEAST_CAPABILITY = 7.5

_asking = threading.Lock()


class Gpus(NamedTuple):
    """The numbers, as the driver counts, of the GPUs that have at least this compute capability."""

    numbers: tuple[int, ...] = ()
    least_capability: float = LEAST_CAPABILITY


NO_GPUS = Gpus()


def supported(least_capability: float = LEAST_CAPABILITY) -> Gpus:
    """The GPUs that may run models. May take seconds the first time, so it is not for the event loop."""
    with _asking:
        capabilities = found()
    return Gpus(tuple(n for n, one in capabilities.items() if one >= least_capability), least_capability)


def there_is_a_driver() -> bool:
    """Whether this machine may have GPUs. The driver is not asked."""
    named = os.environ.get(DRIVER_VARIABLE)
    return any(map(os.path.exists, _DEVICES)) if named is None else bool(named)


@functools.cache
def found() -> dict[int, float]:
    """The compute capability of each GPU, by number; none where there is no driver, or it does not work."""
    if not there_is_a_driver():
        return {}
    command = [sys.executable, "-m", "stubserve_stub.device"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S)
        told = json.loads(done.stdout) if done.returncode == 0 else {}
        problem = told.get("problem", done.stderr.strip()[-500:] or f"its process ended with {done.returncode}")
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        told, problem = {}, str(error)
    if "devices" not in told:
        log.warning("no model can run on a GPU: %s", problem)
        return {}
    for device in told["devices"]:
        log.info("GPU %d: %s, %d MiB, compute capability %s", *(device[key] for key in _SHOWN))
    return {device["number"]: float(device["compute_capability"]) for device in told["devices"]}


_SHOWN = ("number", "name", "mib", "compute_capability")
