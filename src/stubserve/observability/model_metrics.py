"""The families of upstream's metrics about models (`nv_inference_*`), read from what is counted anyway.

Nothing here runs while requests do: a scrape reads each model's statistics. Only the distributions are counted for
their own sake, where `--metrics-config` wants them (`inference.latencies`).
"""

from __future__ import annotations

import time

from stubserve.inference.latencies import FIRST_RESPONSE, HIT, MISS, TIMES
from stubserve.inference.served_model import ServedModel
from stubserve.inference.statistics import FAILURE_REASONS
from stubserve.observability.custom_metrics import COUNTER, GAUGE, HISTOGRAM, Labels
from stubserve.observability.exposition import SUMMARY, Exposition
from stubserve.settings.groups import LatencySettings

_COUNTS = (
    ("nv_inference_request_success", "success_count", "Number of successful inference requests, all batch sizes"),
    ("nv_inference_count", "inference_count", "Number of inferences performed (does not include cached requests)"),
    (
        "nv_inference_exec_count",
        "execution_count",
        "Number of model executions performed (does not include cached requests)",
    ),
)
_FAILURES = ("nv_inference_request_failure", "Number of failed inference requests, all batch sizes")
_DURATIONS = (
    (
        "nv_inference_request_duration_us",
        "success_ns",
        "Cumulative inference request duration in microseconds (includes cached requests)",
    ),
    (
        "nv_inference_queue_duration_us",
        "queue_ns",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
    ),
    (
        "nv_inference_compute_input_duration_us",
        "compute_input_ns",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "compute_infer_ns",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
    ),
    (
        "nv_inference_compute_output_duration_us",
        "compute_output_ns",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
    ),
)
# Of models that use the response cache
_CACHE_COUNTS = (
    ("nv_cache_num_hits_per_model", "cache_hit_count", "Number of cache hits per model"),
    ("nv_cache_num_misses_per_model", "cache_miss_count", "Number of cache misses per model"),
)
_CACHE_DURATIONS = (
    ("nv_cache_hit_duration_per_model", "cache_hit_ns", "Total cache hit duration per model, in microseconds"),
    (
        "nv_cache_miss_duration_per_model",
        "cache_miss_ns",
        "Total cache miss (insert+lookup) duration per model, in microseconds",
    ),
)
_CACHE_SUMMARIES = {
    HIT: ("nv_cache_hit_summary_per_model", "Summary of cache hit counts/durations per model, in microseconds."),
    MISS: ("nv_cache_miss_summary_per_model", "Summary of cache miss counts/durations per model, in microseconds."),
}
_PENDING = (
    "nv_inference_pending_request_count",
    "Instantaneous number of pending requests awaiting execution per-model.",
)
_LOAD = ("nv_model_load_duration_secs", "Model load time in seconds")
_FIRST_RESPONSE_TEXT = "Duration from request to first response in milliseconds"
_SUMMARY_TEXTS = {
    "request": "Summary of inference request duration in microseconds (includes cached requests)",
    "queue": "Summary of inference queuing duration in microseconds (includes cached requests)",
    "compute_input": "Cumulative compute input duration in microseconds (does not include cached requests)",
    "compute_infer": "Cumulative compute inference duration in microseconds (does not include cached requests)",
    "compute_output": "Cumulative inference compute output duration in microseconds (does not include cached requests)",
}

# Names that models cannot take for metrics of another kind
FAMILIES = {
    **{name: COUNTER for name, _, _ in (*_COUNTS, *_DURATIONS, *_CACHE_COUNTS, *_CACHE_DURATIONS)},
    **{name: SUMMARY for name, _ in _CACHE_SUMMARIES.values()},
    _FAILURES[0]: COUNTER,
    _PENDING[0]: GAUGE,
    _LOAD[0]: GAUGE,
    FIRST_RESPONSE: HISTOGRAM,
    **{f"nv_inference_{name}_summary_us": SUMMARY for name in TIMES},
}


def labels_of(model: ServedModel) -> dict[str, str]:
    """The labels of a model's metrics: its name and version, its namespace, and the configuration's `metric_tags`."""
    tags = {f"_{key}": value for key, value in model.config.metric_tags.items()}
    place = {"namespace": model.namespace} if model.namespace else {}
    return {**tags, **place, "model": model.name, "version": str(model.version)}


def expose(model: ServedModel, options: LatencySettings, exposition: Exposition) -> None:
    """Adds the metrics of one model."""
    names = labels_of(model)
    labels = sorted_labels(names)
    statistics = model.statistics
    (name, attribute, text), *others = _COUNTS
    exposition.family(name, COUNTER, text).sample(labels, getattr(statistics, attribute))
    failures = exposition.family(_FAILURES[0], COUNTER, _FAILURES[1])
    for outcome, reason in FAILURE_REASONS.items():
        failures.sample(sorted_labels({**names, "reason": reason}), statistics.failures[outcome])
    for name, attribute, text in others:
        exposition.family(name, COUNTER, text).sample(labels, getattr(statistics, attribute))
    if options.counter_latencies:
        for name, attribute, text in _DURATIONS:
            exposition.family(name, COUNTER, text).sample(labels, getattr(statistics, attribute) // 1000)
        if statistics.cached:
            # As upstream, all of the cache's goes with the latencies.
            for name, attribute, text in _CACHE_COUNTS:
                exposition.family(name, COUNTER, text).sample(labels, getattr(statistics, attribute))
            for name, attribute, text in _CACHE_DURATIONS:
                exposition.family(name, COUNTER, text).sample(labels, getattr(statistics, attribute) // 1000)
    exposition.family(_PENDING[0], GAUGE, _PENDING[1]).sample(labels, model.queued)
    exposition.family(_LOAD[0], GAUGE, _LOAD[1]).sample(labels, model.load_seconds)
    latencies = model.latencies
    if latencies is None:
        return
    first = latencies.first_response
    if first is not None:
        exposition.family(FIRST_RESPONSE, HISTOGRAM, _FIRST_RESPONSE_TEXT).histogram(
            labels, first.total, first.bounds, first.counts
        )
    now_s = time.monotonic()
    summaries = [
        (f"nv_inference_{name}_summary_us", _SUMMARY_TEXTS[name], summary)
        for name, summary in latencies.summaries.items()
    ]
    summaries += [(*_CACHE_SUMMARIES[name], summary) for name, summary in latencies.cache_summaries.items()]
    for family, text, summary in summaries:
        values = summary.quantiles(options.quantiles, now_s)
        exposition.family(family, SUMMARY, text).summary(
            labels, summary.count, summary.total, zip(options.quantiles, values, strict=True)
        )


def sorted_labels(labels: dict[str, str]) -> Labels:
    """Labels in the order in which upstream prints them."""
    return tuple(sorted(labels.items()))
