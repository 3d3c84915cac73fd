"""`MetricFamily` and `Metric`, joined to the server's side without a socket between them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from stubserve_stub.api import metrics
from stubserve_stub.api.constants import MetricKind
from stubserve_stub.api.exceptions import TritonModelException
from stubserve_stub.api.metrics import Metric, MetricFamily

from stubserve.observability.custom_metrics import MetricRegistry, Series
from stubserve.testing.surroundings import LocalMetrics

NAMED = "Failed to process the request for model 'INST', message: "
DELETED = "Invalid metric operation as the corresponding 'MetricFamily' has been deleted."


def join(registry: MetricRegistry) -> LocalMetrics:
    """From now on metrics are made in this registry, by one more stub."""
    local = LocalMetrics("INST", registry)
    metrics.connect(local.queries)
    return local


def series(registry: MetricRegistry, name: str) -> list[Series]:
    return [one for family in registry.families() if family.name == name for one in family.series.values()]


@pytest.fixture
def registry() -> Iterator[MetricRegistry]:
    """Where the metrics of this test are made."""
    made = MetricRegistry({})
    join(made)
    yield made
    metrics.connect(None)


def test_outside_of_a_server() -> None:
    with pytest.raises(TritonModelException, match="from 'initialize' on"):
        MetricFamily("f", "d", MetricFamily.COUNTER)


def test_a_counter(registry: MetricRegistry) -> None:
    family = MetricFamily("c", "d", MetricFamily.COUNTER)
    metric = family.Metric(labels={"a": "b"})
    metric.increment(2)
    metric.increment(0.5)
    assert metric.value() == 2.5
    same = family.Metric({"a": "b"})
    same.increment(1)
    assert metric.value() == 3.5
    assert family.Metric().value() == 0


def test_a_gauge(registry: MetricRegistry) -> None:
    family = MetricFamily(name="g", description="d", kind=MetricFamily.GAUGE)
    metric = family.Metric()
    metric.set(5)
    metric.increment(-7.25)
    assert metric.value() == -2.25


def test_a_histogram(registry: MetricRegistry) -> None:
    family = MetricFamily("h", "d", MetricFamily.HISTOGRAM)
    metric = family.Metric(labels=None, buckets=[1, 2.5])
    metric.observe(2)
    (one,) = series(registry, "h")
    assert (one.counts, one.value) == ([0, 1, 0], 2)
    family.Metric(labels={"no": "buckets"}, buckets=[]).observe(1)


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        (MetricKind.COUNTER, "set"),
        (MetricKind.COUNTER, "observe"),
        (MetricKind.GAUGE, "observe"),
        (MetricKind.HISTOGRAM, "increment"),
        (MetricKind.HISTOGRAM, "set"),
        (MetricKind.HISTOGRAM, "value"),
    ],
)
def test_what_a_kind_does_not_do(registry: MetricRegistry, kind: MetricKind, method: str) -> None:
    family = MetricFamily("f", "d", kind)
    metric = family.Metric(buckets=[1] if kind == MetricKind.HISTOGRAM else None)
    with pytest.raises(TritonModelException) as raised:
        getattr(metric, method)(*([] if method == "value" else [1]))
    doing = "get" if method == "value" else method
    assert str(raised.value) == (
        f"Failed to {doing} metric value: {NAMED}TRITONSERVER_METRIC_KIND_{kind.name} does not support "
        f"{method.capitalize()}"
    )


def test_a_counter_only_goes_up(registry: MetricRegistry) -> None:
    metric = (family := MetricFamily("f", "d", MetricFamily.COUNTER)).Metric()
    with pytest.raises(TritonModelException) as raised:
        metric.increment(-1)
    assert str(raised.value) == (
        f"Failed to increment metric value: {NAMED}TRITONSERVER_METRIC_KIND_COUNTER can only be incremented "
        "monotonically by non-negative values."
    )
    assert metric.value() == 0
    del family


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"labels": {"a": 1}}, f"Error when creating Metric: {NAMED}attempt to access JSON non-string as string"),
        ({"labels": {"not a name": "x"}}, f"Error when creating Metric: {NAMED}Invalid label name"),
        ({"labels": ["a"]}, "Failed to create metric. Labels must be a dictionary."),
        ({"buckets": [1]}, "Failed to create metric. Unexpected buckets found."),
        ({"buckets": (1,)}, "Failed to create metric. Buckets must be a list."),
    ],
)
def test_metrics_that_cannot_be_made(registry: MetricRegistry, arguments: dict[str, Any], text: str) -> None:
    family = MetricFamily("f", "d", MetricFamily.GAUGE)
    with pytest.raises(TritonModelException) as raised:
        family.Metric(**arguments)
    assert str(raised.value) == text
    assert series(registry, "f") == []


@pytest.mark.parametrize(
    ("buckets", "text"),
    [
        (None, "Failed to create metric. Missing required buckets."),
        ([2, 1], f"Error when creating Metric: {NAMED}Bucket Boundaries must be strictly sorted"),
        (["x"], "Failed to create metric. Buckets must be numbers, 'x' is none."),
    ],
)
def test_buckets_that_are_none(registry: MetricRegistry, buckets: Any, text: str) -> None:
    family = MetricFamily("h", "d", MetricFamily.HISTOGRAM)
    with pytest.raises(TritonModelException) as raised:
        family.Metric(buckets=buckets)
    assert str(raised.value) == text


def test_families_that_cannot_be_made(registry: MetricRegistry) -> None:
    family = MetricFamily("f", "d", MetricFamily.GAUGE)
    with pytest.raises(TritonModelException) as raised:
        MetricFamily("f", "d", MetricFamily.COUNTER)
    assert str(raised.value) == (
        f"Error when creating MetricFamily: {NAMED}Family name already exists with different type"
    )
    with pytest.raises(TritonModelException, match=r"^Error when creating MetricFamily: .*Invalid metric name$"):
        MetricFamily("not a name", "d", MetricFamily.GAUGE)
    for arguments in ((None, "d", MetricFamily.GAUGE), ("n", None, MetricFamily.GAUGE), ("n", "d", 1)):
        with pytest.raises(TypeError, match="incompatible constructor arguments"):
            MetricFamily(*arguments)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Metric()
    for value in ("1", None, b"1", [1]):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            family.Metric().set(value)  # type: ignore[arg-type]


def test_a_family_takes_its_metrics_with_it(registry: MetricRegistry) -> None:
    family = MetricFamily("f", "d", MetricFamily.COUNTER)
    kept = family.Metric({"kept": "yes"})
    kept.increment(1)
    family.Metric({"kept": "no"})
    # The family keeps what nobody else does.
    gc.collect()
    assert len(series(registry, "f")) == 2
    del family
    assert registry.families() == []
    uses: list[tuple[str, Callable[[], Any]]] = [
        ("increment", lambda: kept.increment(1)),
        ("set", lambda: kept.set(1)),
        ("observe", lambda: kept.observe(1)),
        ("get", kept.value),
    ]
    for doing, use in uses:
        with pytest.raises(TritonModelException, match=f"^Failed to {doing} metric value: {DELETED}"):
            use()


def test_a_family_that_nobody_has_kept_is_told_as_such(registry: MetricRegistry) -> None:
    """Its model has not deleted it: it was a variable of `initialize`."""
    join(registry)

    def initialize() -> Metric:
        return MetricFamily("f", "d", MetricFamily.COUNTER).Metric(labels={})

    metric = initialize()
    with pytest.raises(
        TritonModelException, match=r"no variable refers to any more is deleted, too: keep it .*self\.fam"
    ):
        metric.increment(1)


def test_two_stubs_share_and_the_last_one_takes_the_metric_away(registry: MetricRegistry) -> None:
    stubs, families = [], []
    for _ in range(2):
        stubs.append(join(registry))
        families.append(MetricFamily("shared", "d", MetricFamily.COUNTER))
    first, second = (family.Metric({"x": "y"}) for family in families)
    first.increment(3)
    second.increment(4)
    assert first.value() == second.value() == 7
    stubs[0]._metrics.close()
    assert [one.value for one in series(registry, "shared")] == [7]
    # What it said last may come late.
    first.increment(1)
    families.pop(0)
    gc.collect()
    assert second.value() == 7
    del families[0]
    gc.collect()
    assert registry.families() == []
