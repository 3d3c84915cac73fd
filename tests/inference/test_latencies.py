"""Histograms and quantiles of latencies."""

from __future__ import annotations

import math
import random

from stubserve.errors import internal
from stubserve.inference.latencies import Histogram, Latencies, Summary
from stubserve.inference.request import BACKEND_FAILURE, Request, Response


def test_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram([100, 500])
    for value in (0, 100, 101, 500, 501, 9999):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 2]
    assert histogram.total == 11201


def test_quantiles_are_close() -> None:
    summary = Summary()
    values = [random.Random(1).lognormvariate(7, 1.5) for _ in range(1)] + [
        random.Random(seed).lognormvariate(7, 1.5) for seed in range(5000)
    ]
    for value in values:
        summary.observe(int(value), 100.0)
    wanted = (0.5, 0.9, 0.99, 0.999)
    for quantile, found in zip(wanted, summary.quantiles(wanted, 100.0), strict=True):
        exact = sorted(int(value) for value in values)[math.ceil(quantile * len(values)) - 1]
        assert abs(found - exact) <= 0.011 * exact + 1
    assert summary.count == len(values)
    assert summary.total == sum(int(value) for value in values)


def test_quantiles_forget_after_a_minute_and_counts_do_not() -> None:
    summary = Summary()
    summary.observe(1000, 0.0)
    summary.observe(0, 30.0)
    assert summary.quantiles((0.1, 1.0), 31.0)[0] == 0
    assert summary.quantiles((1.0,), 59.0)[0] > 900
    assert summary.quantiles((1.0,), 60.0) == [0]
    (empty,) = summary.quantiles((0.5,), 1000.0)
    assert math.isnan(empty)
    assert summary.count == 2
    # However long it goes on, a summary keeps only the last minute.
    for second in range(1000, 2000):
        summary.observe(7, float(second))
    assert len(summary._spans) == 5


def test_what_counts() -> None:
    latencies = Latencies([100.0], summaries=True)
    good, bad = (Request([]) for _ in range(2))
    for request in (good, bad):
        request.request_start_ns = 1_000_000
        request.queue_start_ns = 2_000_000
        request.compute_start_ns = 5_000_000
        request.compute_input_end_ns = 6_000_000
        request.compute_infer_end_ns = 16_000_000
        request.compute_end_ns = 18_000_000
    bad.outcome = BACKEND_FAILURE
    latencies.on_batch([good, bad])
    totals = {name: (summary.count, summary.total) for name, summary in latencies.summaries.items()}
    assert totals == {
        "request": (1, 17000),
        "queue": (1, 3000),
        "compute_input": (1, 1000),
        "compute_infer": (1, 10000),
        "compute_output": (1, 2000),
    }
    first = latencies.first_response
    assert first is not None
    latencies.on_response(good, Response())
    latencies.on_response(bad, Response(empty=True))
    assert sum(first.counts) == 1


def test_only_the_first_response_of_a_stream_counts() -> None:
    """Also if the last one is an error, and whoever counts the responses otherwise."""
    latencies = Latencies([100.0], summaries=False)
    first = latencies.first_response
    assert first is not None
    for responses in (0, 3):
        request = Request([])
        for _ in range(responses):
            latencies.on_response(request, Response(final=False))
        latencies.on_response(request, Response(error=internal("no")))
        latencies.on_response(request, Response(empty=True))
    assert sum(first.counts) == 2
