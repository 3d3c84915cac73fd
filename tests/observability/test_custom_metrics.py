"""The registry of the metrics that models make."""

from __future__ import annotations

import math

import pytest

from stubserve.errors import ServeError
from stubserve.observability.custom_metrics import COUNTER, GAUGE, HISTOGRAM, MetricRegistry


def test_a_family_is_shared_and_lives_as_long_as_one_owner() -> None:
    registry = MetricRegistry({})
    one = registry.open_family("f", "first", COUNTER)
    assert registry.open_family("f", "second", COUNTER) is one
    assert one.description == "first"
    registry.close_family(one)
    assert registry.families() == [one]
    registry.close_family(one)
    assert registry.families() == []
    assert registry.open_family("f", "third", GAUGE).description == "third"


def test_a_series_is_shared_whatever_the_order_of_its_labels() -> None:
    registry = MetricRegistry({})
    family = registry.open_family("f", "", COUNTER)
    one = registry.open_series(family, {"b": "2", "a": "1"}, None)
    assert registry.open_series(family, {"a": "1", "b": "2"}, None) is one
    assert one.labels == (("a", "1"), ("b", "2"))
    other = registry.open_series(family, {}, None)
    assert other is not one
    registry.close_series(family, one)
    assert list(family.series.values()) == [one, other]
    registry.close_series(family, one)
    assert list(family.series.values()) == [other]


@pytest.mark.parametrize("name", ["", "1x", "not a name", "__reserved", "é", "a-b", "a\n"])
def test_bad_names(name: str) -> None:
    registry = MetricRegistry({})
    with pytest.raises(ServeError, match=r"^Invalid metric name$"):
        registry.open_family(name, "", GAUGE)
    family = registry.open_family("ok:name", "", GAUGE)
    with pytest.raises(ServeError, match=r"^Invalid label name$"):
        registry.open_series(family, {name: "x"}, None)
    assert not family.series


def test_names_of_another_kind_are_refused() -> None:
    registry = MetricRegistry({"nv_inference_count": COUNTER})
    registry.open_family("f", "", HISTOGRAM)
    for name in ("f", "nv_inference_count"):
        with pytest.raises(ServeError, match=r"^Family name already exists with different type$"):
            registry.open_family(name, "", GAUGE)
    assert registry.open_family("nv_inference_count", "", COUNTER).kind == COUNTER


def test_histograms() -> None:
    registry = MetricRegistry({})
    family = registry.open_family("h", "", HISTOGRAM)
    for bounds in ([2.0, 1.0], [1.0, 1.0], [1.0, math.nan]):
        with pytest.raises(ServeError, match=r"^Bucket Boundaries must be strictly sorted$"):
            registry.open_series(family, {}, bounds)
    with pytest.raises(ServeError, match=r"^Invalid label name$"):
        registry.open_series(family, {"le": "1"}, [])
    series = registry.open_series(family, {}, [0.1, 1.0])
    for value in (0.1, 0.5, 1.0, 7.0, -2.0):
        series.observe(value)
    assert series.counts == [2, 2, 1]
    assert series.value == pytest.approx(6.6)
    assert registry.open_series(family, {}, [5.0]) is series


def test_sources_are_asked_before_the_families_are_read() -> None:
    registry = MetricRegistry({})
    registry.sources.add(lambda: registry.open_family("late", "", GAUGE) and None)
    assert [family.name for family in registry.families()] == ["late"]
