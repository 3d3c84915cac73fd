"""All metrics of a server, as one text.

A server of many models has a long one: it is made in steps, model by model, so that requests go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stubserve.inference.long_work import LongWork
from stubserve.inference.served_model import ServedModel
from stubserve.memory.server_memory import Memory
from stubserve.observability import cache_metrics, machine_metrics, model_metrics, own_metrics, server_metrics
from stubserve.observability.custom_metrics import GAUGE, MetricRegistry
from stubserve.observability.exposition import Exposition
from stubserve.observability.machine_metrics import MachineMetrics
from stubserve.observability.server_metrics import Readings
from stubserve.response_cache.store import ResponseCache
from stubserve.settings.groups import LatencySettings

RESERVED = {
    **model_metrics.FAMILIES,
    **own_metrics.FAMILIES,
    **server_metrics.FAMILIES,
    **dict.fromkeys((*machine_metrics.FAMILIES, *cache_metrics.FAMILIES), GAUGE),
}


class ServerMetrics:
    """`models()` gives the models that serve; `memory` is their shared memory, `custom` the metrics that they make.

    `cache` is the response cache where there is one, `readings` read what is counted of the server as a whole.
    """

    def __init__(
        self,
        models: Callable[[], Iterable[ServedModel]],
        options: LatencySettings,
        machine: MachineMetrics,
        custom: MetricRegistry,
        memory: Memory,
        readings: Readings,
        cache: ResponseCache | None = None,
    ) -> None:
        self._readings = readings
        self._models = models
        self._options = options
        self._machine = machine
        self._custom = custom
        self._memory = memory
        self._cache = cache

    def text(self) -> LongWork[str]:
        """The metrics of this moment."""
        exposition = Exposition()
        for model in tuple(self._models()):
            model_metrics.expose(model, self._options, exposition)
            own_metrics.expose_model(model, exposition)
            yield None
        if self._cache is not None and self._cache.local is not None and self._options.counter_latencies:
            cache_metrics.expose(self._cache.local, exposition)
        own_metrics.expose_memory(self._memory, exposition)
        server_metrics.expose(self._readings, exposition)
        self._machine.expose(exposition)
        for family in self._custom.families():
            text = exposition.family(family.name, family.kind, family.description)
            for series in family.series.values():
                if series.bounds is None:
                    text.sample(series.labels, series.value)
                else:
                    text.histogram(series.labels, series.value, series.bounds, series.counts)
        return (yield from exposition.text())
