"""The metrics of a model that is tested without a server."""

from __future__ import annotations

from typing import Any

from stubserve_stub.api.questions import Questions

from stubserve.instances.metrics import StubMetrics
from stubserve.observability.custom_metrics import MetricRegistry


class LocalMetrics:
    """The server's side of a model's metrics, in this process: what is said is done at once."""

    def __init__(self, instance: str, registry: MetricRegistry) -> None:
        self.questions = Questions(instance, self.tell)
        self._metrics = StubMetrics(registry)

    def tell(self, kind: str, **fields: Any) -> None:
        """Takes a control message."""
        if kind == "ask":
            self.questions.on_told({"number": fields["number"], **self._metrics.answer(fields)})
        else:
            self._metrics.on_message({"kind": kind, **fields})
