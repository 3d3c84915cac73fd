"""All metrics of a server, as one text."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stubserve.inference.served_model import ServedModel
from stubserve.observability import cache_metrics, machine_metrics, model_metrics
from stubserve.observability.custom_metrics import GAUGE, MetricRegistry
from stubserve.observability.exposition import Exposition
from stubserve.observability.machine_metrics import MachineMetrics
from stubserve.response_cache.store import ResponseCache
from stubserve.settings import LatencySettings

RESERVED = {**model_metrics.FAMILIES, **dict.fromkeys((*machine_metrics.FAMILIES, *cache_metrics.FAMILIES), GAUGE)}


class ServerMetrics:
    """`models()` gives the models that serve; `custom` are the metrics that models make, `cache` the response
    cache where there is one.
    """

    def __init__(
        self,
        models: Callable[[], Iterable[ServedModel]],
        options: LatencySettings,
        machine: MachineMetrics,
        custom: MetricRegistry,
        cache: ResponseCache | None = None,
    ) -> None:
        self._models = models
        self._options = options
        self._machine = machine
        self._custom = custom
        self._cache = cache

    def text(self) -> str:
        """The metrics of this moment."""
        exposition = Exposition()
        model_metrics.expose(self._models(), self._options, exposition)
        if self._cache is not None and self._cache.local is not None and self._options.counter_latencies:
            cache_metrics.expose(self._cache.local, exposition)
        self._machine.expose(exposition)
        for family in self._custom.families():
            text = exposition.family(family.name, family.kind, family.description)
            for series in family.series.values():
                if series.bounds is None:
                    text.sample(series.labels, series.value)
                else:
                    text.histogram(series.labels, series.value, series.bounds, series.counts)
        return exposition.text()
