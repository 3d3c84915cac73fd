"""The families of metrics that are stubserve's own: instances and their stubs, sizes of batches, shared memory.

As all metrics they are read when somebody looks. The dearest is the memory of a stub, which the kernel is asked for.
"""

from __future__ import annotations

from stubserve.inference.served_model import ServedModel
from stubserve.memory.server_memory import Memory
from stubserve.observability.custom_metrics import COUNTER, GAUGE, HISTOGRAM
from stubserve.observability.exposition import Exposition
from stubserve.observability.model_metrics import labels_of, sorted_labels

_BATCH_SIZES = "stubserve_batch_size"
# Upper bounds of the sizes of batches
_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

_SERVING = ("ready", "asleep")
_GAUGES = {
    "stubserve_instance_ready": "Whether an instance takes requests (1) or not (0); one that sleeps does",
    "stubserve_instance_failed": "Whether an instance has died too often and is not restarted (1) or not (0)",
    "stubserve_instance_memory_bytes": "Memory of an instance's stub that is its own, without libraries that are "
    "shared and without tensors",
    "stubserve_instance_arena_bytes": "Shared memory that is committed for an instance's outputs",
    "stubserve_instance_batches": "Batches that an instance's stub has, executing or next in line",
    "stubserve_instance_requests": "Requests that an instance's stub has, those included that it answers later",
    "stubserve_instance_executing_seconds": "How long an instance has been executing the batch that it executes now",
}
_RESTARTS = "stubserve_instance_restarts_total"
_SHARED = {
    "stubserve_arena_limit_bytes": "Shared memory that may be committed (--shm-limit)",
    "stubserve_arena_committed_bytes": "Shared memory that is committed, by who holds it: requests (tensors of "
    "clients), heap (texts and bodies, which are counted with it), stubs (outputs of models)",
}
_DESCRIPTIONS = {
    **_GAUGES,
    **_SHARED,
    _BATCH_SIZES: "Sizes of the batches that were executed",
    _RESTARTS: "How often an instance's stub was started again after it had died",
}

FAMILIES = {
    **dict.fromkeys((*_GAUGES, *_SHARED), GAUGE),
    _RESTARTS: COUNTER,
    _BATCH_SIZES: HISTOGRAM,
}


def expose_model(model: ServedModel, exposition: Exposition) -> None:
    """Adds the metrics of one model and its instances."""
    names = labels_of(model)
    _expose_batches(model, names, exposition)
    for facts in model.instance_facts():
        labels = sorted_labels({**names, "instance": facts.name})
        values = (
            int(facts.state in _SERVING),
            int(facts.state == "failed"),
            facts.memory,
            facts.arena,
            facts.batches,
            facts.requests,
            round(facts.executing_s, 3),
        )
        for (name, text), value in zip(_GAUGES.items(), values, strict=True):
            exposition.family(name, GAUGE, text).sample(labels, value)
        exposition.family(_RESTARTS, COUNTER, _DESCRIPTIONS[_RESTARTS]).sample(labels, facts.restarts)


def _expose_batches(model: ServedModel, names: dict[str, str], exposition: Exposition) -> None:
    counts = [0] * (len(_BOUNDS) + 1)
    total = 0
    for size, executions in model.statistics.executions.items():
        total += size * executions.count
        place = next((index for index, bound in enumerate(_BOUNDS) if size <= bound), len(_BOUNDS))
        counts[place] += executions.count
    family = exposition.family(_BATCH_SIZES, HISTOGRAM, _DESCRIPTIONS[_BATCH_SIZES])
    family.histogram(sorted_labels(names), total, _BOUNDS, counts)


def expose_memory(memory: Memory, exposition: Exposition) -> None:
    """Adds the metrics of shared memory."""
    limit, committed = _SHARED
    exposition.family(limit, GAUGE, _SHARED[limit]).sample((), memory.limit)
    family = exposition.family(committed, GAUGE, _SHARED[committed])
    for owner, nbytes in memory.held().items():
        family.sample((("owner", owner),), nbytes)
