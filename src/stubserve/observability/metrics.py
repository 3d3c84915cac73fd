"""All metrics of a server, as one text."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stubserve.inference.served_model import ServedModel
from stubserve.observability import machine_metrics, model_metrics
from stubserve.observability.custom_metrics import GAUGE, MetricRegistry
from stubserve.observability.exposition import Exposition
from stubserve.observability.machine_metrics import MachineMetrics
from stubserve.settings import LatencySettings

RESERVED = {**model_metrics.FAMILIES, **dict.fromkeys(machine_metrics.FAMILIES, GAUGE)}


class ServerMetrics:
    """`models()` gives the models that serve; `custom` are the metrics that models make."""

    def __init__(
        self,
        models: Callable[[], Iterable[ServedModel]],
        options: LatencySettings,
        machine: MachineMetrics,
        custom: MetricRegistry,
    ) -> None:
        self._models = models
        self._options = options
        self._machine = machine
        self._custom = custom

    def text(self) -> str:
        """The metrics of this moment."""
        exposition = Exposition()
        model_metrics.expose(self._models(), self._options, exposition)
        self._machine.expose(exposition)
        for family in self._custom.families():
            text = exposition.family(family.name, family.kind, family.description)
            for series in family.series.values():
                if series.bounds is None:
                    text.sample(series.labels, series.value)
                else:
                    text.histogram(series.labels, series.value, series.bounds, series.counts)
        return exposition.text()
