"""All metrics of a server, as one text.

A server of many models has a long one: it is made in steps, model by model, so that requests go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stubserve.inference.served_model import ServedModel
from stubserve.inference.steps import Steps
from stubserve.observability import machine_metrics, model_metrics, own_metrics
from stubserve.observability.custom_metrics import GAUGE, MetricRegistry
from stubserve.observability.exposition import Exposition
from stubserve.observability.machine_metrics import MachineMetrics
from stubserve.observability.own_metrics import SharedMemory
from stubserve.settings import LatencySettings

RESERVED = {**model_metrics.FAMILIES, **own_metrics.FAMILIES, **dict.fromkeys(machine_metrics.FAMILIES, GAUGE)}


class ServerMetrics:
    """`models()` gives the models that serve; `memory` is their shared memory, `custom` the metrics that they make."""

    def __init__(
        self,
        models: Callable[[], Iterable[ServedModel]],
        options: LatencySettings,
        machine: MachineMetrics,
        custom: MetricRegistry,
        memory: SharedMemory,
    ) -> None:
        self._models = models
        self._options = options
        self._machine = machine
        self._custom = custom
        self._memory = memory

    def text(self) -> Steps[str]:
        """The metrics of this moment."""
        exposition = Exposition()
        for model in tuple(self._models()):
            model_metrics.expose(model, self._options, exposition)
            own_metrics.expose_model(model, exposition)
            yield None
        own_metrics.expose_memory(self._memory, exposition)
        self._machine.expose(exposition)
        for family in self._custom.families():
            text = exposition.family(family.name, family.kind, family.description)
            for series in family.series.values():
                if series.bounds is None:
                    text.sample(series.labels, series.value)
                else:
                    text.histogram(series.labels, series.value, series.bounds, series.counts)
        return (yield from exposition.text())
