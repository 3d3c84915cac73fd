"""What stubs need of the server that they work for."""

from __future__ import annotations

from dataclasses import dataclass

from stubserve.instances.bls import Models
from stubserve.observability.custom_metrics import MetricRegistry
from stubserve.observability.logs import LogSettings


@dataclass(frozen=True)
class Services:
    """`models` are those that a stub's model may call, `metrics` where the metrics that it makes live."""

    models: Models
    log_settings: LogSettings
    metrics: MetricRegistry
