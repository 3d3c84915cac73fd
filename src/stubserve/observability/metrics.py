"""All metrics of a server, as one text.

Nothing here runs with requests: a scrape reads values that are counted anyway, so an idle server sleeps. Only
distributions are counted for metrics alone, if `--metrics-config` wants them (`inference.latencies`). With many models
the text is long: it is made in steps, model by model, so that requests go on meanwhile. The most expensive step asks
the kernel for a stub's memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from stubserve.errors import Code
from stubserve.inference.latencies import FIRST_RESPONSE, Latencies
from stubserve.inference.long_work import LongWork
from stubserve.inference.served_model import ServedModel
from stubserve.inference.statistics import FAILURE_REASONS
from stubserve.inference.token_counts import TokenCounts
from stubserve.memory.server_memory import Memory
from stubserve.observability.custom_metrics import Labels, MetricRegistry
from stubserve.observability.exposition import Exposition, FamilyText
from stubserve.observability.families import FAMILIES
from stubserve.parts import Sample
from stubserve.settings.groups import LatencySettings

# Metrics from a model's statistics; nanoseconds become microseconds.
_COUNTS = {
    "nv_inference_count": "inference_count",
    "nv_inference_exec_count": "execution_count",
}
_DURATIONS = {
    "nv_inference_request_duration_us": "success_ns",
    "nv_inference_queue_duration_us": "queue_ns",
    "nv_inference_compute_input_duration_us": "compute_input_ns",
    "nv_inference_compute_infer_duration_us": "compute_infer_ns",
    "nv_inference_compute_output_duration_us": "compute_output_ns",
}
_CACHE_COUNTS = {
    "nv_cache_num_hits_per_model": "cache_hit_count",
    "nv_cache_num_misses_per_model": "cache_miss_count",
    "nv_cache_hit_duration_per_model": "cache_hit_ns",
    "nv_cache_miss_duration_per_model": "cache_miss_ns",
}

# Upper bounds of the sizes of batches
_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_SERVING = ("ready", "asleep")


class ServerMetrics:
    """`models()` gives the models that serve; `memory` is their shared memory, `custom` the metrics that they make.

    `samples()` gives what is counted for the server as a whole.
    """

    def __init__(
        self,
        models: Callable[[], Iterable[ServedModel]],
        options: LatencySettings,
        machine: MachineMetrics,
        custom: MetricRegistry,
        memory: Memory,
        samples: Callable[[], Iterable[Sample]],
    ) -> None:
        self._samples = samples
        self._models = models
        self._options = options
        self._machine = machine
        self._custom = custom
        self._memory = memory

    def text(self) -> LongWork[str]:
        exposition = Exposition()
        for model in tuple(self._models()):
            self._expose_model(model, exposition)
            _expose_instances(model, exposition)
            yield None
        _family(exposition, "stubserve_arena_limit_bytes").sample((), self._memory.limit)
        committed = _family(exposition, "stubserve_arena_committed_bytes")
        for owner, nbytes in self._memory.held().items():
            committed.sample((("owner", owner),), nbytes)
        for name, labels, value in self._samples():
            _family(exposition, name).sample(labels, value)
        self._machine.expose(exposition)
        for family in self._custom.families():
            text = exposition.family(family.name, family.kind, family.description)
            for series in family.series.values():
                if series.bounds is None:
                    text.sample(series.labels, series.value)
                else:
                    text.histogram(series.labels, series.value, series.bounds, series.counts)
        return (yield from exposition.text())

    def _expose_model(self, model: ServedModel, exposition: Exposition) -> None:
        names = _labels_of(model)
        labels = _sorted(names)
        statistics = model.statistics
        _family(exposition, "nv_inference_request_success").sample(labels, statistics.success_count)
        failures = _family(exposition, "nv_inference_request_failure")
        for outcome, reason in FAILURE_REASONS.items():
            failures.sample(_sorted({**names, "reason": reason}), statistics.failures[outcome])
        errors = _family(exposition, "stubserve_response_errors_total")
        for code in Code:
            if code <= Code.CANCELLED:
                answers = statistics.errors.get(code)
                count = 0 if answers is None else answers.count
                errors.sample(_sorted({**names, "code": code.name}), count)
        wanted = dict(_COUNTS)
        if self._options.counter_latencies:
            # As in upstream, all metrics of the cache go with the latencies.
            wanted |= {**_DURATIONS, **_CACHE_COUNTS} if statistics.cached else _DURATIONS
        for name, attribute in wanted.items():
            value = getattr(statistics, attribute)
            _family(exposition, name).sample(labels, value // 1000 if attribute.endswith("_ns") else value)
        _family(exposition, "nv_inference_pending_request_count").sample(labels, model.queued)
        _family(exposition, "nv_model_load_duration_secs").sample(labels, model.load_seconds)
        if model.latencies is not None:
            self._expose_latencies(model.latencies, labels, exposition)
        if statistics.tokens is not None:
            _expose_tokens(model, statistics.tokens, exposition)

    def _expose_latencies(self, latencies: Latencies, labels: Labels, exposition: Exposition) -> None:
        first = latencies.first_response
        if first is not None:
            _family(exposition, FIRST_RESPONSE).histogram(labels, first.total, first.bounds, first.counts)
        quantiles, now_s = self._options.quantiles, time.monotonic()
        summaries = {f"nv_inference_{name}_summary_us": summary for name, summary in latencies.summaries.items()}
        summaries |= {f"nv_cache_{name}_summary_per_model": one for name, one in latencies.cache_summaries.items()}
        for name, summary in summaries.items():
            values = zip(quantiles, summary.quantiles(quantiles, now_s), strict=True)
            _family(exposition, name).summary(labels, summary.count, summary.total, values)


def _family(exposition: Exposition, name: str) -> FamilyText:
    return exposition.family(name, *FAMILIES[name])


def _labels_of(model: ServedModel) -> dict[str, str]:
    """The labels of a model's metrics: its name and version, its namespace, and the configuration's `metric_tags`."""
    tags = {f"_{key}": value for key, value in model.config.metric_tags.items()}
    place = {"namespace": model.namespace} if model.namespace else {}
    return {**tags, **place, "model": model.name, "version": str(model.version)}


def _sorted(labels: dict[str, str]) -> Labels:
    return tuple(sorted(labels.items()))


def _expose_tokens(model: ServedModel, tokens: TokenCounts, exposition: Exposition) -> None:
    """Adds what vLLM has of a model, with its label for the model's name."""
    names = _labels_of(model)
    names["model_name"] = names.pop("model")
    labels = _sorted(names)
    waiting = model.queued
    values = {
        "prompt_tokens_total": tokens.prompt,
        "generation_tokens_total": tokens.generation,
        "num_requests_running": max(model.under_way - waiting, 0),
        "num_requests_waiting": waiting,
    }
    if tokens.cached is not None:
        values |= {"prefix_cache_queries_total": tokens.prompt, "prefix_cache_hits_total": tokens.cached}
    for name, value in values.items():
        _family(exposition, f"vllm:{name}").sample(labels, value)
    times = {
        "time_to_first_token": tokens.first,
        "inter_token_latency": tokens.between,
        "e2e_request_latency": tokens.whole,
    }
    for name, times_s in times.items():
        family = _family(exposition, f"vllm:{name}_seconds")
        family.histogram(labels, times_s.total, times_s.bounds, times_s.counts)


def _expose_instances(model: ServedModel, exposition: Exposition) -> None:
    names = _labels_of(model)
    counts = [0] * (len(_BOUNDS) + 1)
    total = 0
    for size, executions in model.statistics.executions.items():
        total += size * executions.count
        place = next((index for index, bound in enumerate(_BOUNDS) if size <= bound), len(_BOUNDS))
        counts[place] += executions.count
    _family(exposition, "stubserve_batch_size").histogram(_sorted(names), total, _BOUNDS, counts)
    batched = model.config.HasField("dynamic_batching") or model.config.HasField("sequence_batching")
    batch_limit = model.config.max_batch_size if batched else 1
    for facts in model.instance_facts():
        values = {
            "ready": int(facts.state in _SERVING),
            "failed": int(facts.state == "failed"),
            "batch_limit": max(batch_limit, 1),
            "memory_bytes": facts.memory,
            "arena_bytes": facts.arena,
            "batches": facts.batches,
            "requests": facts.requests,
            "executing_seconds": round(facts.executing_s, 3),
            "restarts_total": facts.restarts,
        }
        for name, value in values.items():
            _family(exposition, f"stubserve_instance_{name}").sample(_sorted({**names, "instance": facts.name}), value)


class MachineMetrics:
    """`interval_s` is the shortest time over which utilization is measured; until it is over the last value counts.

    `cpu` says whether those of CPU and memory are wanted.
    """

    def __init__(self, interval_s: float, cpu: bool) -> None:
        self._interval_s = interval_s
        self._cpu = cpu
        self._measured_at = time.monotonic()
        self._times = _busy_and_total()
        self._utilization = 0.0

    def expose(self, exposition: Exposition) -> None:
        """Adds the metrics of the machine that are wanted, and of the pinned memory pool, which does not exist here."""
        values: dict[str, float] = {"nv_pinned_memory_pool_total_bytes": 0, "nv_pinned_memory_pool_used_bytes": 0}
        if self._cpu:
            total, available = _memory()
            values["nv_cpu_utilization"] = self._measure()
            values["nv_cpu_memory_total_bytes"] = total
            values["nv_cpu_memory_used_bytes"] = total - available
        for name, value in values.items():
            _family(exposition, name).sample((), value)

    def _measure(self) -> float:
        now = time.monotonic()
        if now - self._measured_at >= self._interval_s:
            busy, total = _busy_and_total()
            if total > self._times[1]:
                self._utilization = (busy - self._times[0]) / (total - self._times[1])
            self._measured_at, self._times = now, (busy, total)
        return round(min(max(self._utilization, 0.0), 1.0), 6)


def _busy_and_total() -> tuple[int, int]:
    """In the kernel's ticks, of all processors together."""
    with open("/proc/stat") as file:
        times = [int(word) for word in file.readline().split()[1:9]]  # `user` includes the time of guests, which follow
    total = sum(times)
    return total - sum(times[3:5]), total  # idle, and idle while a disk works


def _memory() -> tuple[int, int]:
    """How many bytes the machine has, and how many a program could get now."""
    with open("/proc/meminfo") as file:
        kilobytes = {name: int(text.split()[0]) for name, _, text in (line.partition(":") for line in file)}
    return kilobytes["MemTotal"] << 10, kilobytes["MemAvailable"] << 10
