"""The metrics of GPUs as a part of the server; on where there are a driver and metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from stubserve.gpus import there_is_a_driver
from stubserve.parts import Part, Sample

if TYPE_CHECKING:
    from stubserve.observability.gpu_metrics.program import GpuMetrics


class GpuPart(Part):
    _metrics: GpuMetrics | None = None

    async def start(self) -> None:
        wanted = self.settings.metrics
        if wanted.allow and wanted.allow_gpu and there_is_a_driver():
            from stubserve.observability.gpu_metrics.program import GpuMetrics

            self._metrics = GpuMetrics(wanted.interval_ms / 1000)
            await self._metrics.start()

    async def close(self) -> None:
        if self._metrics is not None:
            await self._metrics.stop()

    def samples(self) -> Iterable[Sample]:
        values = {} if self._metrics is None else self._metrics.values
        for uuid, of_gpu in values.items():
            for family, value in of_gpu.items():
                yield family, (("gpu_uuid", uuid),), value


PART = GpuPart
