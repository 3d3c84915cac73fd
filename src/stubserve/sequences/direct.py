"""The direct strategy: a sequence has a place in every batch of its instance, as long as it runs.

A batch has the next request of each slot, from slot 0 to the last slot with a request. A slot in between is empty if it
has nothing ready, or a request of other shapes where the configuration demands equal shapes. For an empty slot the
model sees zeros, with READY false, and its answers are dropped. An instance has one batch at a time.

With a max_queue_delay_microseconds and a minimum_slot_utilization a batch waits until that share of all slots is ready,
or until its oldest request has waited that long; with only one of the two nothing waits.
"""

# Compiled by mypyc.
from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from operator import attrgetter
from typing import Any

from stubserve_stub.wire.options import RequestOptions

from stubserve.inference.request import SEQUENCE_END, Request
from stubserve.inference.tensor import Tensor
from stubserve.inference.work import Decision, Instance, Work
from stubserve.schedulers.delay import SchedulerDelay
from stubserve.sequences.batcher import SequenceBatcher
from stubserve.sequences.slots import SequenceId, SequenceSlot

_BY_INDEX = attrgetter("index")


class DirectBatcher(SequenceBatcher):
    """Slots are places in the batch: max_batch_size of an instance, one if that is 0."""

    def __init__(self, config: Any, hold: SchedulerDelay | None = None) -> None:
        slots = max(1, config.max_batch_size)
        super().__init__(config, slots, hold)
        direct = config.sequence_batching.direct
        self._delay_ns: int = direct.max_queue_delay_microseconds * 1000
        # The configured number has 32 bits: 0.3 of ten slots must give three.
        self._enough = ceil(round(direct.minimum_slot_utilization * slots, 4))
        if self._grouping is not None and self._grouping.trivial:
            self._grouping = None
        self._idle: set[Instance] = set()
        # For each instance, the slots that may have a request to run
        self._ready: dict[Instance, dict[SequenceSlot, None]] = {}
        # Idle instances with a slot that may have a request
        self._due: dict[Instance, None] = {}

    def _filled(self, slot: SequenceSlot) -> None:
        instance = slot.instance
        self._ready[instance][slot] = None
        if instance in self._idle:
            self._due[instance] = None

    def _joins(self, instance: Instance) -> None:
        self._ready[instance] = {}

    def _leaves(self, instance: Instance, slots: Iterable[SequenceSlot]) -> list[tuple[Request, SequenceId, int]]:
        self._idle.discard(instance)
        self._due.pop(instance, None)
        del self._ready[instance]
        return []

    def _idles(self, instance: Instance) -> None:
        self._idle.add(instance)
        self._due[instance] = None

    def _rests(self, instance: Instance) -> None:
        self._idle.discard(instance)
        self._due.pop(instance, None)

    def _at_rest(self, slot: SequenceSlot) -> bool:
        return slot.instance in self._idle

    def _run(self, now_ns: int, decision: Decision) -> None:
        for instance in list(self._due):
            ready = [slot for slot in sorted(self._ready[instance], key=_BY_INDEX) if slot.queue]
            if ready and self._delay_ns and self._enough > len(ready):
                until_ns = min([slot.queue[0].queue_start_ns for slot in ready]) + self._delay_ns
                if until_ns > now_ns:
                    decision.wake_by(until_ns)
                    continue
            del self._due[instance]
            if ready:
                self._idle.discard(instance)
                self._ready[instance] = {}
                decision.run.append((instance, self._batch(ready)))

    def _batch(self, ready: list[SequenceSlot]) -> Work:
        controls, grouping = self._controls, self._grouping
        first = ready[0].queue[0]
        key = None if grouping is None else grouping.key(first)
        requests: list[Request | None] = []
        extras: list[Sequence[Tensor]] = []
        options: list[RequestOptions | None] = []
        sequences: list[int] = []
        # All empty places of a batch look the same.
        nothing: Sequence[Tensor] | None = None
        for slot in ready:
            request = slot.queue[0]
            fits = grouping is None or grouping.key(request) == key
            empty = slot.index - len(requests) + (not fits)
            if empty:
                if nothing is None:
                    nothing = controls.of_empty_slot(first)
                requests += [None] * empty
                extras += [nothing] * empty
                options += [None] * empty
                sequences += [0] * empty
            if fits:
                self._queues.take(slot)
                requests.append(request)
                told = self._told(request, slot)
                options.append(told)
                extras.append(self._added(request, told or request.options, slot, slot.number))
                sequences.append(slot.number)
                if self._iterative:
                    slot.running = request
                    self._executing[request] = slot
                elif request.options.flags & SEQUENCE_END:
                    self._release(slot)
                elif slot.over and not slot.queue:
                    self._departures.add(slot)
            if slot.queue and slot.running is None:
                self._filled(slot)
        work = Work.of_slots(requests, extras if any(extras) else None)
        work.options = options if any(options) else None
        if self.keeps_states:
            work.sequences = sequences
        return work
