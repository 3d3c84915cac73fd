"""The metrics of GPUs, as the driver's library for management (NVML) tells them to a process of its own.

The library belongs to the driver, which may hang or crash, so the server does not load it. Run as a program, this
module asks it every so often, and prints a line of JSON each time. Without GPUs no process is started. A value that a
GPU does not have is left out. If the process ends, the log says why, and the metrics are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

log = logging.getLogger("stubserve.gpus")

Values = dict[str, float]


class GpuMetrics:
    """The metrics of each GPU by its UUID, while the process runs. For the event loop."""

    def __init__(self, interval_s: float) -> None:
        self.values: dict[str, Values] = {}
        self._interval_s = interval_s
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        command = [sys.executable, "-m", __name__, str(self._interval_s)]
        pipe = subprocess.PIPE
        # In a session of its own: a ctrl-C for the server is none for it, which ends when its input does.
        self._process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        self._reading = asyncio.create_task(self._read(self._process))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        async for line in process.stdout:
            if line.endswith(b"\n"):  # not the rest that a crash leaves
                self.values = json.loads(line)
        self.values = {}
        said = (await process.stderr.read()).decode(errors="replace").strip()
        ended = await process.wait()
        log.warning("there are no metrics of GPUs: %s", said[-500:] or f"their process ended with {ended}")

    async def stop(self) -> None:
        if self._process is None or self._reading is None:
            return
        self._reading.cancel()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


def _tell(interval_s: float) -> None:
    """Prints the values of all GPUs every `interval_s` until the server is gone."""
    try:
        import pynvml
    except ImportError:
        sys.exit("nvidia-ml-py is not installed; pip install 'stubserve[gpu-metrics]'")
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
        uuids = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
    except pynvml.NVMLError as error:
        sys.exit(f"NVML: {error}")
    # Not before: a thread that reads is in the way of an exit with a reason.
    gone = threading.Event()
    threading.Thread(target=_wait_for_end_of_input, args=[gone], daemon=True).start()
    energies: dict[str, float] = {}
    while not gone.is_set():
        told = {uuid: _values(pynvml, handle) for uuid, handle in zip(uuids, handles, strict=True)}
        for uuid, values in told.items():
            if "nv_energy_consumption" in values:
                # Since the server's start, as upstream; the library counts since the driver's.
                values["nv_energy_consumption"] -= energies.setdefault(uuid, values["nv_energy_consumption"])
        print(json.dumps(told), flush=True)
        gone.wait(interval_s)


def _wait_for_end_of_input(gone: threading.Event) -> None:
    sys.stdin.buffer.read()
    gone.set()


def _values(nvml: Any, handle: Any) -> Values:
    """The metrics of one GPU, under Triton's names and in its units: ratios, bytes, watts and joules."""
    asked: list[tuple[Callable[[Any], Any], Callable[[Any], Values]]] = [
        (nvml.nvmlDeviceGetUtilizationRates, lambda rates: {"nv_gpu_utilization": rates.gpu / 100}),
        (
            nvml.nvmlDeviceGetMemoryInfo,
            lambda memory: {"nv_gpu_memory_total_bytes": memory.total, "nv_gpu_memory_used_bytes": memory.used},
        ),
        (nvml.nvmlDeviceGetPowerUsage, lambda milliwatts: {"nv_gpu_power_usage": milliwatts / 1000}),
        (nvml.nvmlDeviceGetPowerManagementLimit, lambda milliwatts: {"nv_gpu_power_limit": milliwatts / 1000}),
        (nvml.nvmlDeviceGetTotalEnergyConsumption, lambda millijoules: {"nv_energy_consumption": millijoules / 1000}),
    ]
    found: Values = {}
    for ask, values in asked:
        with contextlib.suppress(nvml.NVMLError):
            found |= values(ask(handle))
    return found


if __name__ == "__main__":
    _tell(float(sys.argv[1]))
