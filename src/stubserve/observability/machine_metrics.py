"""The metrics about the machine. Read when somebody looks, so an idle server sleeps."""

from __future__ import annotations

import time

import psutil

from stubserve.observability.custom_metrics import GAUGE
from stubserve.observability.exposition import Exposition

FAMILIES = {
    "nv_pinned_memory_pool_total_bytes": "Pinned memory pool total memory size, in bytes",
    "nv_pinned_memory_pool_used_bytes": "Pinned memory pool used memory size, in bytes",
    "nv_cpu_utilization": "CPU utilization rate [0.0 - 1.0]",
    "nv_cpu_memory_total_bytes": "CPU total memory (RAM), in bytes",
    "nv_cpu_memory_used_bytes": "CPU used memory (RAM), in bytes",
}


class MachineMetrics:
    """`interval_s` is the shortest time that the utilization is measured over; until it is over the last one counts."""

    def __init__(self, interval_s: float, cpu: bool) -> None:
        self._interval_s = interval_s
        self._cpu = cpu
        self._measured_at = time.monotonic()
        self._times = _busy_and_total()
        self._utilization = 0.0

    def expose(self, exposition: Exposition) -> None:
        """Adds the metrics: of the pinned memory pool, which does not exist here, and of CPU and memory if wanted."""
        values: dict[str, float] = {"nv_pinned_memory_pool_total_bytes": 0, "nv_pinned_memory_pool_used_bytes": 0}
        if self._cpu:
            memory = psutil.virtual_memory()
            values["nv_cpu_utilization"] = self._measure()
            values["nv_cpu_memory_total_bytes"] = memory.total
            values["nv_cpu_memory_used_bytes"] = memory.total - memory.available
        for name, value in values.items():
            exposition.family(name, GAUGE, FAMILIES[name]).sample((), value)

    def _measure(self) -> float:
        now = time.monotonic()
        if now - self._measured_at >= self._interval_s:
            busy, total = _busy_and_total()
            if total > self._times[1]:
                self._utilization = (busy - self._times[0]) / (total - self._times[1])
            self._measured_at, self._times = now, (busy, total)
        return round(min(max(self._utilization, 0.0), 1.0), 6)


def _busy_and_total() -> tuple[float, float]:
    times = psutil.cpu_times()
    total = sum(times[:8])  # what guests use is part of `user`
    return total - times.idle - getattr(times, "iowait", 0.0), total
