"""The data of the status page, as JSON: models, instances and their state, memory by owner, the last errors.

It is made on request, in steps, as metrics are. Totals are kept from one request to the next, at most once a second. So
throughput before the first request is unknown, a page that is opened again finds the earlier totals, and a server whose
page nobody opens does no work for it.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import orjson

from stubserve.inference.long_work import LongWork
from stubserve.inference.served_model import ServedModel
from stubserve.inference.token_counts import TokenCounts
from stubserve.instances.stub_process import own_memory
from stubserve.memory.server_memory import Memory
from stubserve.observability.logs import LastErrors
from stubserve.repository.registry import ModelEntry, VersionEntry

_SAMPLES = 300
_SPACING_S = 1.0
# The errors that are shown, the newest first. Each model has up to eight, of up to 2,000 characters.
_ERRORS = 100


class ServerStatus:
    """The status of one server. `models()` are all its models; it `began` at that Unix time."""

    def __init__(
        self,
        name: str,
        version: str,
        models: Callable[[], Iterable[ModelEntry]],
        memory: Memory,
        errors: LastErrors,
        began: float,
    ) -> None:
        self._name = name
        self._version = version
        self._models = models
        self._memory = memory
        self._errors = errors
        self._began = began
        # (Unix time, answered, failed, nanoseconds of those that were answered, waiting)
        self._history: deque[tuple[float, int, int, int, int]] = deque(maxlen=_SAMPLES)

    def json(self) -> LongWork[bytes]:
        """The current status."""
        now = time.time()
        rows: list[dict[str, Any]] = []
        answers: list[dict[str, float | str]] = []
        for entry in tuple(self._models()):
            if not entry.versions:
                rows.append({"name": entry.name, "version": "", "state": "UNAVAILABLE", "reason": entry.reason})
            for version in tuple(entry.versions.values()):
                rows.append(_row(entry, version))
                if version.model is not None:
                    answers += _error_answers(version.model)
                yield None
        totals = [sum(row[key] for row in rows if "answered" in row) for key in ("answered", "failed", "ns", "queued")]
        if not self._history or now - self._history[-1][0] >= _SPACING_S:
            self._history.append((round(now, 3), totals[0], totals[1], totals[2], totals[3]))
        parent = own_memory(os.getpid())
        stubs = sum(one["memory"] for row in rows for one in row.get("instances", ()))
        held = self._memory.held()
        errors = sorted([*self._errors.newest_first(), *answers], key=lambda one: -float(one["time"]))
        return _dumps(
            {
                "name": self._name,
                "version": self._version,
                "pid": os.getpid(),
                "time": now,
                "uptime_s": now - self._began,
                "models": rows,
                "memory": {
                    "limit": self._memory.limit,
                    "owners": {
                        "server process": parent,
                        "stub processes": stubs,
                        "tensors of requests": held["requests"],
                        "texts and bodies": held["heap"],
                        "outputs of models": held["stubs"],
                    },
                },
                "errors": errors[:_ERRORS],
                "history": list(self._history),
            }
        )


def _dumps(status: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(status, default=str)
    except orjson.JSONEncodeError:
        # An error quotes a request with bytes that are not UTF-8: here they are escaped.
        return json.dumps(status, default=str).encode()


def _row(entry: ModelEntry, version: VersionEntry) -> dict[str, Any]:
    model = version.model
    row: dict[str, Any] = {
        "name": entry.name,
        "version": str(version.version),
        "state": version.state.value,
        "reason": version.reason,
        "on_disk": entry.on_disk,
    }
    if model is None:
        return row
    statistics = model.statistics
    instances = [facts._asdict() for facts in model.instance_facts()]
    why = model.why_not_ready()
    return {
        **row,
        "reason": row["reason"] or why,
        "ready": not why,
        "asleep": bool(instances) and all(one["state"] == "asleep" for one in instances),
        "answered": statistics.success_count,
        "failed": statistics.fail_count,
        "ns": statistics.success_ns,
        "queue_ns": statistics.queue_ns,
        "executions": statistics.execution_count,
        "inferences": statistics.inference_count,
        "batches": {str(size): one.count for size, one in sorted(statistics.executions.items())},
        "queued": model.queued,
        "under_way": model.under_way,
        "load_s": model.load_seconds,
        "tokens": _tokens_row(statistics.tokens),
        "instances": instances,
    }


def _error_answers(model: ServedModel) -> Iterator[dict[str, float | str]]:
    """The last answer with each code of an error, in the form of the log's errors."""
    for code, answers in model.statistics.errors.items():
        text = f"model '{model.name}' version {model.version} answered {code.name}: {answers.text}"
        yield {"time": answers.last_s, "text": text, "count": answers.count}


def _tokens_row(tokens: TokenCounts | None) -> dict[str, Any] | None:
    """Numbers of tokens, and the mean times in seconds; None for a model that told none."""
    if tokens is None or not (sum(tokens.first.counts) or tokens.prompt):
        return None
    times = {name: getattr(tokens, name) for name in ("first", "between")}
    means = {f"{name}_s": one.total / count for name, one in times.items() if (count := sum(one.counts))}
    return {"prompt": tokens.prompt, "generation": tokens.generation, "cached": tokens.cached, **means}
