"""How much work arrives, in replicas that it would fill: what a fleet is scaled by.

For each model, between two readings of its metrics that are t seconds apart:

    batch_s  = compute time / requests answered     seconds that an execution takes (each request counts its batch's)
    busy     = executions / t * batch_s             instances that were at work, on average
    fill     = rows / executions / max_batch_size   how full batches were; 1 where requests are executed one by one
    arrivals = answered + refused for want of room + what the queue grew by
    demand   = busy * fill * arrivals / answered / instances

A queue's length or a wait says that replicas are missing, and not how many. The demand says how many: a replica that is
full and gets three times what it can do has a demand of 3, however long its queue is. The replicas that are needed are
the sum of all demands over `AIM`; what is above the sum works off the queue that has grown meanwhile.

An instance that is always busy with small batches is not full: more requests make larger batches, which take less time
for each. So a fleet grows when batches are filled, and not before. Where requests do not fit into one batch (shapes,
parameters), batches stay small however many wait: a queue of a batch for each instance, or a refusal, says that all is
full.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

# How full replicas shall be
AIM = 0.7

_SAMPLE = re.compile(r"^(nv_inference_\w+|stubserve_instance_batch_limit)\{(.*)\} ([0-9.e+]+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:\\.|[^"\\])*)"')
_COMPUTE = tuple(f"nv_inference_compute_{part}_duration_us" for part in ("input", "infer", "output"))
_COUNTS = ("request_success", "request_failure", "count", "exec_count", "pending_request_count")

# Namespace, model and version
Which = tuple[str, str, str]


@dataclass(frozen=True)
class Capacity:
    """What a replica has for a model: instances, and the rows that their batches may have; 1 without a batcher."""

    instances: int = 1
    batch: float = 1


@dataclass(frozen=True)
class ModelCounters:
    """Counters of one version of a model: requests, rows, executions, µs of compute, and requests that wait now."""

    answered: float
    refused: float
    rows: float
    executions: float
    compute_us: float
    waiting: float


def read_counters(metrics: str) -> dict[Which, tuple[ModelCounters, Capacity]]:
    """The counters of models that have instances, from the text of the metrics port."""
    values: dict[Which, dict[str, float]] = {}
    limits: dict[Which, list[float]] = {}
    for name, text, value in _SAMPLE.findall(metrics):
        labels = dict(_LABEL.findall(text))
        which = (labels.get("namespace", ""), labels["model"], labels["version"])
        if name == "stubserve_instance_batch_limit":
            limits.setdefault(which, []).append(float(value))
        elif labels.get("reason", "REJECTED") == "REJECTED":
            values.setdefault(which, {})[name] = float(value)
    found = {}
    for which, batches in limits.items():
        of = values.get(which, {})
        answered, refused, rows, executions, waiting = (of.get(f"nv_inference_{name}", 0.0) for name in _COUNTS)
        compute_us = sum(of.get(name, 0.0) for name in _COMPUTE)
        reading = ModelCounters(answered, refused, rows, executions, compute_us, waiting)
        found[which] = reading, Capacity(len(batches), max(batches))
    return found


def demand(before: ModelCounters, after: ModelCounters, seconds: float, capacity: Capacity) -> float | None:
    """The demand of one model at one replica; None if nothing ended in these seconds although requests wait."""
    answered, executions = after.answered - before.answered, after.executions - before.executions
    if answered <= 0:
        return None if after.waiting else 0.0
    refused = after.refused - before.refused
    fill = (after.rows - before.rows) / max(executions, 1) / capacity.batch
    if capacity.batch == 1 or refused or after.waiting >= capacity.batch * capacity.instances:
        fill = 1.0
    busy = executions / seconds * (after.compute_us - before.compute_us) / answered / 1e6
    arrivals = answered + refused + (after.waiting - before.waiting)
    return max(busy * min(fill, 1.0) * arrivals / answered / capacity.instances, 0.0)


class Demand:
    """The demand of one replica, from one reading to the next: that of the model that needs most."""

    def __init__(self) -> None:
        self._before: dict[Which, ModelCounters] = {}
        self._at_s = 0.0
        self._told: dict[Which, float] = {}

    def update(self, metrics: str, at_s: float) -> float:
        """`at_s` is when the metrics were read."""
        found = read_counters(metrics)
        for which, (after, capacity) in found.items() if at_s > self._at_s else ():
            before = self._before.get(which)
            # A model that was loaded anew counts from 0.
            if before is not None and before.answered <= after.answered:
                told = demand(before, after, at_s - self._at_s, capacity)
                # Executions may be longer than the time between readings: what was told last holds, and it is full.
                self._told[which] = max(1.0, self._told.get(which, 0.0)) if told is None else told
        self._before, self._at_s = {which: reading for which, (reading, _) in found.items()}, at_s
        self._told = {which: told for which, told in self._told.items() if which in found}
        return max(self._told.values(), default=0.0)


def replicas_needed(demands: float) -> int:
    """How many replicas a sum of demands needs; at least 1."""
    return max(1, math.ceil(demands / AIM - 1e-9))


def replicas_for_demand(context: Any) -> tuple[int, dict[str, Any]]:
    """The policy of autoscaling for Ray (`policy_function`); `context` is its AutoscalingContext."""
    told = (context.aggregated_metrics or {}).get("demand") or {}
    if not told:
        return context.target_num_replicas, {}
    return replicas_needed(sum(told.values())), {}
