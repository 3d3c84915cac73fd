"""Prometheus' text, as real Triton writes it."""

from __future__ import annotations

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stubserve.inference.long_work import finish
from stubserve.observability.exposition import Exposition, number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (2023.0, "2023"),
        (-0.0, "-0"),
        (2.5, "2.5"),
        (1 / 3, "0.3333333333333333"),
        (1e-7, "1e-07"),
        (1e15, "1000000000000000"),
        (1e16, "1e+16"),
        (12345678901234567890, "1.234567890123457e+19"),
        (math.nan, "Nan"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
    ],
)
def test_numbers_look_like_upstreams(value: float, text: str) -> None:
    assert number(value) == text


def test_families_come_by_kind_and_labels_as_given() -> None:
    exposition = Exposition()
    exposition.family("late", "histogram", "third").histogram((("k", "v"),), 98.5, (0.1, 1.0), (2, 0, 3))
    exposition.family("gauge", "gauge", "second").sample((), -7.25)
    exposition.family("count", "counter", "first").sample((("a", 'quote" back\\ line\n é'), ("b", "")), 3)
    exposition.family("count", "counter", "another text").sample((), 1)
    exposition.family("empty", "gauge", "nothing to say")
    exposition.family("times", "summary", "last").summary((), 2, 30, [(0.5, 10), (0.99, math.nan)])
    assert finish(exposition.text()) == (
        "# HELP count first\n"
        "# TYPE count counter\n"
        'count{a="quote\\" back\\\\ line\\n é",b=""} 3\n'
        "count 1\n"
        "# HELP gauge second\n"
        "# TYPE gauge gauge\n"
        "gauge -7.25\n"
        "# HELP late third\n"
        "# TYPE late histogram\n"
        'late_count{k="v"} 5\n'
        'late_sum{k="v"} 98.5\n'
        'late_bucket{k="v",le="0.1"} 2\n'
        'late_bucket{k="v",le="1"} 2\n'
        'late_bucket{k="v",le="+Inf"} 5\n'
        "# HELP times last\n"
        "# TYPE times summary\n"
        "times_count 2\n"
        "times_sum 30\n"
        'times{quantile="0.5"} 10\n'
        'times{quantile="0.99"} Nan\n'
    )


def test_prometheus_understands_it() -> None:
    exposition = Exposition()
    strange = 'quote" back\\ line\n {comma="x"},é'
    exposition.family("gauge", "gauge", "two\nlines \\ back").sample((("label", strange),), math.inf)
    (family,) = text_string_to_metric_families(finish(exposition.text()))
    assert family.documentation == "two\nlines \\ back"
    (sample,) = family.samples
    assert sample.labels == {"label": strange}
    assert sample.value == math.inf
