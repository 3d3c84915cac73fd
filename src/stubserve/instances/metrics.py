"""The metrics that one stub's model has made, by the stub's numbers, and the changes to them.

A stub reports changes without waiting. It asks only whether a family or metric can be made, and for a metric's value.
All of it travels over the control socket in order.
"""

from __future__ import annotations

import math
from typing import Any

from stubserve.errors import ServeError
from stubserve.observability.custom_metrics import COUNTER, GAUGE, HISTOGRAM, Family, MetricRegistry, Series

# In the order of `MetricKind`
_KINDS = (COUNTER, GAUGE, HISTOGRAM)


class StubMetrics:
    """The metrics that the model of one stub has made."""

    def __init__(self, registry: MetricRegistry) -> None:
        self._registry = registry
        # By the stub's numbers; a family with the numbers of its metrics
        self._families: dict[int, tuple[Family, list[int]]] = {}
        self._series: dict[int, Series] = {}

    def on_message(self, message: dict[str, Any]) -> None:
        """Takes a message of a kind that begins with `metric`: a change, or the end of a family."""
        if message["kind"] == "metric_family_gone":
            self._close(message["family"])
            return
        series = self._series.get(message["metric"])
        if series is not None:  # else its family has just ended in another thread
            self._change(series, message["change"], message["value"])

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """The answer to a query that begins with `metric`: its "value", or the reason for none as "error"."""
        query = message["query"]
        try:
            if query == "metric_family":
                family = self._registry.open_family(message["name"], message["description"], _KINDS[message["type"]])
                self._families[message["family"]] = (family, [])
            elif query == "metric_series":
                family, members = self._families[message["family"]]
                self._series[message["metric"]] = self._registry.open_series(
                    family, message["labels"], message["buckets"]
                )
                members.append(message["metric"])
            else:
                series = self._series.get(message["metric"])
                return {"value": math.nan if series is None else series.value}
        except ServeError as refused:
            return {"error": refused.message}
        return {"value": None}

    def close(self) -> None:
        """The stub is gone. Removes the metrics that only this stub had."""
        for number in list(self._families):
            self._close(number)

    def _close(self, number: int) -> None:
        found = self._families.pop(number, None)
        if found is None:
            return
        family, members = found
        for member in members:
            self._registry.close_series(family, self._series.pop(member))
        self._registry.close_family(family)

    @staticmethod
    def _change(series: Series, change: str, value: float) -> None:
        if change == "increment":
            series.value += value
        elif change == "set":
            series.value = value
        else:
            series.observe(value)
