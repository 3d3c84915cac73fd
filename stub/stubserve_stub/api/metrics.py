"""`MetricFamily` and `Metric`: what a model reports of itself on the server's metrics endpoint.

The values live in the server (`stubserve.observability.custom_metrics`). Changes are checked here, and sent without
waiting for an answer. A family keeps its metrics: the same labels give the same metric again, and `del metric` removes
nothing from the endpoint. When the family dies, its metrics go, and using one of them raises. A family may die on any
thread at any moment, see `Control.send`.
"""

from __future__ import annotations

import itertools
from typing import Any, Dict, List, Optional, Tuple

from stubserve_stub.api.arguments import as_text, incompatible
from stubserve_stub.api.constants import MetricKind
from stubserve_stub.api.exceptions import TritonModelException
from stubserve_stub.api.server_queries import ServerQueries

_NO_SERVER = "Metrics can be made and used from 'initialize' on, in a model that a server has loaded."
_FAILED = "Failed to {} metric value"
_DELETED = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should "
    "be deleted AFTER its corresponding 'Metric' objects have been deleted. A family that no variable refers to any "
    "more is deleted, too: keep it for as long as its metrics, as in self.family."
)


# The way to the server, once connected
_server: Optional[ServerQueries] = None
_numbers = itertools.count()


def connect(queries: Optional[ServerQueries]) -> None:
    """Lets the model make metrics from now on; None forbids further families."""
    global _server
    _server = queries


class _Family:
    """What a family's metrics know of the family. It lives as long as they do."""

    __slots__ = ("alive", "kind", "metrics", "number", "server")

    def __init__(self, server: ServerQueries, kind: MetricKind) -> None:
        self.server = server
        self.kind = kind
        self.number = next(_numbers)
        self.alive = True
        self.metrics: "Dict[Tuple[Tuple[str, str], ...], Metric]" = {}


class Metric:
    """One metric; a family makes it. Raises TritonModelException for what its kind does not do."""

    __slots__ = ("__weakref__", "_family", "_number")

    _family: _Family
    _number: int

    def __init__(self) -> None:
        raise TypeError("Metric: No constructor defined!")

    def increment(self, value: float) -> None:
        """Adds to a counter, which takes no negative values, or to a gauge."""
        amount = self._amount("increment", value, MetricKind.COUNTER, MetricKind.GAUGE)
        if self._family.kind == MetricKind.COUNTER and amount < 0:
            raise self._family.server.refused(
                _FAILED.format("increment"),
                "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values.",
            )
        self._change("increment", amount)

    def set(self, value: float) -> None:
        """Sets a gauge."""
        self._change("set", self._amount("set", value, MetricKind.GAUGE))

    def observe(self, value: float) -> None:
        """Counts a value of a histogram."""
        self._change("observe", self._amount("observe", value, MetricKind.HISTOGRAM))

    def value(self) -> float:
        """The value of a counter or gauge in the server, with the changes of other instances."""
        doing = _FAILED.format("get")
        self._check(doing, "Value", MetricKind.COUNTER, MetricKind.GAUGE)
        value: float = self._family.server.ask("metric_value", doing, metric=self._number)
        return value

    def _amount(self, method: str, value: Any, *kinds: MetricKind) -> float:
        """The argument of a method that metrics of these kinds have."""
        amount = _as_float(value)
        if amount is None:
            signature = "(self: c_python_backend_utils.Metric, arg0: float) -> None"
            raise incompatible(method, signature, (self, value))
        self._check(_FAILED.format(method), method.capitalize(), *kinds)
        return amount

    def _check(self, doing: str, what: str, *kinds: MetricKind) -> None:
        if not self._family.alive:
            raise TritonModelException(f"{doing}: {_DELETED}")
        if self._family.kind not in kinds:
            reason = f"TRITONSERVER_METRIC_KIND_{self._family.kind.name} does not support {what}"
            raise self._family.server.refused(doing, reason)

    def _change(self, change: str, amount: float) -> None:
        self._family.server.send("metric_change", metric=self._number, change=change, value=amount)


# The family has a method of that name.
_Metric = Metric


class MetricFamily:
    """Metrics of one name that differ by their labels. Raises TritonModelException if the server refuses the name."""

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        text, about = as_text(name), as_text(description)
        if text is None or about is None or not isinstance(kind, MetricKind):
            raise incompatible(
                "__init__",
                "c_python_backend_utils.MetricFamily(name: str, description: str, "
                "kind: c_python_backend_utils.MetricKind)",
                (name, description, kind),
            )
        if _server is None:
            raise TritonModelException(_NO_SERVER)
        family = _Family(_server, kind)
        _server.ask(
            "metric_family",
            "Error when creating MetricFamily",
            family=family.number,
            name=text,
            description=about,
            type=int(kind),
        )
        self._family = family

    def Metric(self, labels: Optional[Any] = None, buckets: Optional[Any] = None) -> _Metric:
        """The metric with these labels (a dict of texts), of a histogram with these upper bounds (a list of numbers).

        Raises TritonModelException if they are not, or the server refuses them.
        """
        family = self._family
        bounds = _bounds(family.kind, buckets)
        named = _labels(family, labels)
        key = tuple(sorted(named.items()))
        metric = family.metrics.get(key)
        if metric is None:
            metric = object.__new__(_Metric)
            metric._family = family
            metric._number = next(_numbers)
            family.server.ask(
                "metric_series",
                "Error when creating Metric",
                family=family.number,
                metric=metric._number,
                labels=named,
                buckets=bounds,
            )
            family.metrics[key] = metric
        return metric

    def __del__(self) -> None:
        family = getattr(self, "_family", None)
        if family is not None:
            family.alive = False
            family.metrics.clear()
            family.server.send("metric_family_gone", family=family.number)


def _as_float(value: Any) -> Optional[float]:
    """`value` as a number if it is one; text is none."""
    try:
        return None if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError):
        return None


def _bounds(kind: MetricKind, buckets: Optional[Any]) -> Optional[List[float]]:
    if buckets is None:
        if kind == MetricKind.HISTOGRAM:
            raise TritonModelException("Failed to create metric. Missing required buckets.")
        return None
    if not isinstance(buckets, list):
        raise TritonModelException("Failed to create metric. Buckets must be a list.")
    if kind != MetricKind.HISTOGRAM:
        raise TritonModelException("Failed to create metric. Unexpected buckets found.")
    bounds = []
    for bucket in buckets:
        bound = _as_float(bucket)
        if bound is None:
            raise TritonModelException(f"Failed to create metric. Buckets must be numbers, {bucket!r} is none.")
        bounds.append(bound)
    return bounds


def _labels(family: _Family, labels: Optional[Any]) -> Dict[str, str]:
    if labels is None:
        return {}
    if not isinstance(labels, dict):
        raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
    named = {}
    for label, value in labels.items():
        if not isinstance(value, str):
            raise family.server.refused("Error when creating Metric", "attempt to access JSON non-string as string")
        named[str(label)] = value
    return named
