"""Distributions of the times of one model's requests, where they are switched on (`--metrics-config`).

A summary's quantiles cover the last minute. They come from counts in buckets that are 2 % wide: exact in rank, within 1
% in value. A few hundred counters suffice at any load.
"""

# Compiled by mypyc.
from __future__ import annotations

import bisect
import math
import time
from collections import Counter, deque
from collections.abc import Sequence

from stubserve.inference.request import SUCCESS, Request, Response

FIRST_RESPONSE = "nv_inference_first_response_histogram_ms"
DEFAULT_BOUNDS_MS = (100.0, 500.0, 2000.0, 5000.0)

# The times of a request that summaries are made of, and the times of a look-up in the response cache
TIMES = ("request", "queue", "compute_input", "compute_infer", "compute_output")
HIT, MISS = "hit", "miss"

_LOG_WIDTH = math.log(1.02)
_SPAN_S = 12.0
_SPANS = 5


class Histogram:
    """Counts by upper bounds. A bound belongs to its bucket; the last count is for values above all bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value


class Summary:
    """Count and sum of all values (not negative), and the quantiles of the values of the last minute."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        # (when it began, counts by bucket), the newest last
        self._spans: deque[tuple[float, Counter[int]]] = deque(maxlen=_SPANS)

    def observe(self, value: int, now_s: float) -> None:
        self.count += 1
        self.total += value
        if not self._spans or now_s - self._spans[-1][0] >= _SPAN_S:
            self._spans.append((now_s, Counter()))
        self._spans[-1][1][int(math.log(value) / _LOG_WIDTH) if value >= 1 else -1] += 1

    def quantiles(self, wanted: Sequence[float], now_s: float) -> list[float]:
        """The values at these quantiles, NaN if there were no values."""
        counts: dict[int, int] = {}
        for began, span in self._spans:
            if now_s - began < _SPAN_S * _SPANS:
                for bucket, count in span.items():
                    counts[bucket] = counts.get(bucket, 0) + count
        buckets = sorted(counts)
        ranks = []
        below = 0
        for bucket in buckets:
            below += counts[bucket]
            ranks.append(below)
        if not below:
            return [math.nan] * len(wanted)
        return [
            _middle(buckets[min(bisect.bisect_left(ranks, quantile * below), len(buckets) - 1)]) for quantile in wanted
        ]


def _middle(bucket: int) -> float:
    return 0.0 if bucket < 0 else float(round(math.exp((bucket + 0.5) * _LOG_WIDTH)))


class Latencies:
    """The distributions of one model: `first_response` in milliseconds, `summaries` in microseconds, by TIMES."""

    def __init__(self, bounds_ms: Sequence[float] | None, summaries: bool) -> None:
        self.first_response = Histogram(bounds_ms) if bounds_ms is not None else None
        self.summaries = {name: Summary() for name in TIMES} if summaries else {}
        # Only for a model that uses the response cache
        self.cache_summaries: dict[str, Summary] = {}

    def uses_cache(self) -> None:
        """The model uses the response cache.

        As upstream, its requests' times are then not summed up. Before the first request.
        """
        if self.summaries:
            del self.summaries["request"]
            self.cache_summaries = {HIT: Summary(), MISS: Summary()}

    def on_hit(self, queue_ns: int, took_ns: int) -> None:
        """Counts a request that the cache has answered."""
        if self.cache_summaries:
            now_s = time.monotonic()
            self.summaries["queue"].observe(queue_ns // 1000, now_s)
            self.cache_summaries[HIT].observe(took_ns // 1000, now_s)

    def on_miss(self, took_ns: int) -> None:
        """Counts looking up and inserting for a request that was computed."""
        if self.cache_summaries:
            self.cache_summaries[MISS].observe(took_ns // 1000, time.monotonic())

    def on_response(self, request: Request, response: Response) -> None:
        """Counts a request's first response, or its error; a response that is only the final flag does not count."""
        if self.first_response is not None and not response.empty:
            if request.stream is not None or not response.final:
                stream = request.streamed()
                if stream.answered:
                    return
                stream.answered = True
            self.first_response.observe((time.monotonic_ns() - request.request_start_ns) // 1_000_000)

    def on_batch(self, requests: Sequence[Request]) -> None:
        """Counts requests that were executed and did not fail, once all their timestamps are set."""
        if not self.summaries:
            return
        now_s = time.monotonic()
        for request in requests:
            if request.outcome is not None and request.outcome != SUCCESS:
                continue
            times = (
                request.compute_end_ns - request.request_start_ns,
                request.compute_start_ns - request.queue_start_ns,
                request.compute_input_end_ns - request.compute_start_ns,
                request.compute_infer_end_ns - request.compute_input_end_ns,
                request.compute_end_ns - request.compute_infer_end_ns,
            )
            for name, nanoseconds in zip(TIMES, times, strict=True):
                summary = self.summaries.get(name)
                if summary is not None:
                    summary.observe(max(nanoseconds, 0) // 1000, now_s)
