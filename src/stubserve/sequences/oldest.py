"""The oldest strategy: the requests of an instance's sequences are batched as in the dynamic batcher.

Each instance has max_candidate_sequences slots and a dynamic batcher. The oldest request of each slot's sequence is a
candidate there, and the next one when that has been executed. So a batch holds requests of different sequences, each
sequence in order, and the places in a batch have no meaning. The dynamic batcher decides on preferred sizes, the queue
delay and which shapes may share a batch. The delay counts from when a request is a candidate.

A slot is free when the request with END becomes a candidate; the next sequence in that slot waits until that request
has been executed.

`preserve_ordering` has no effect: an instance answers its batches in their order. Unlike upstream, a late answer of a
sender does not hold back those of other sequences.
"""

# Compiled by mypyc.
from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from stubserve.inference.request import SEQUENCE_END, Request
from stubserve.inference.work import Decision, Instance, Work
from stubserve.schedulers.dynamic_batcher import DynamicBatcher
from stubserve.sequences.batcher import SequenceBatcher
from stubserve.sequences.slots import SequenceId, SequenceSlot


class OldestBatcher(SequenceBatcher):
    """Slots are candidates: max_candidate_sequences of an instance, or max_batch_size if that is 0.

    Everything is kept back until `hold_until` requests wait (`schedulers.delay`).
    """

    def __init__(self, config: Any, hold_until: int = 0) -> None:
        oldest = config.sequence_batching.oldest
        candidates: int = oldest.max_candidate_sequences
        super().__init__(config, candidates if candidates > 0 else max(1, config.max_batch_size))
        self._max_batch_size: int = config.max_batch_size
        self._preferred: Collection[int] = oldest.preferred_batch_size
        self._delay_us: int = oldest.max_queue_delay_microseconds
        self._hold_each = hold_until
        self._batchers: dict[Instance, DynamicBatcher] = {}
        # Instances with a batcher that may have a decision
        self._due: dict[Instance, None] = {}
        # Slots with a request that may become a candidate
        self._ready: dict[SequenceSlot, None] = {}
        # Candidates: their slot, the number of their sequence, and when they were queued
        self._candidates: dict[Request, tuple[SequenceSlot, int, int]] = {}

    def _filled(self, slot: SequenceSlot) -> None:
        self._ready[slot] = None

    def _joins(self, instance: Instance) -> None:
        self._batchers[instance] = DynamicBatcher(
            self._max_batch_size, self._preferred, self._delay_us, self._grouping, None, self._hold_each
        )

    def _leaves(self, instance: Instance, slots: Iterable[SequenceSlot]) -> list[tuple[Request, SequenceId, int]]:
        self._due.pop(instance, None)
        for slot in slots:
            self._ready.pop(slot, None)
        lost = []
        for request in self._batchers.pop(instance).drain():
            sequence = request.options.correlation_id
            candidate = self._candidates.pop(request, None)
            slot_sequence, number = (0, 0) if candidate is None else (candidate[0].sequence, candidate[1])
            lost.append((request, sequence or slot_sequence, number))
        return lost

    def _idles(self, instance: Instance) -> None:
        self._batchers[instance].instance_idle(instance)
        self._due[instance] = None

    def _rests(self, instance: Instance) -> None:
        self._batchers[instance].instance_idle(instance, 0)

    def _cancel_elsewhere(self, request: Request) -> None:
        if request not in self._candidates:
            return
        slot = self._candidates[request][0]
        self._batchers[slot.instance].cancel(request)
        self._due[slot.instance] = None
        self._answer_cancelled(self._take_back(request))

    def _take_back(self, request: Request) -> list[Request]:
        """Ends the sequence of a candidate that is not executed; returns the requests behind it."""
        slot, number, _ = self._candidates.pop(request)
        slot.running = None
        if slot.number != number:
            # The request was the last of its sequence. The slot may be the next one's, which may be over, too.
            if self.states is not None:
                self.states.drop(number)
            if slot.queue:
                self._filled(slot)
            elif slot.number:
                self._end(slot)
            return []
        behind = self._empty(slot)
        if not behind:
            self._end(slot)
        return behind

    def _drain_elsewhere(self) -> list[Request]:
        drained: list[Request] = []
        for batcher in self._batchers.values():
            drained += batcher.drain()
        for request in [request for request in drained if request in self._candidates]:
            drained += self._take_back(request)
        return drained

    def _at_rest(self, slot: SequenceSlot) -> bool:
        return slot.running is None

    def _run(self, now_ns: int, decision: Decision) -> None:
        while self._ready:
            ready, self._ready = self._ready, {}
            for slot in ready:
                if slot.queue and slot.running is None:
                    self._advance(slot, now_ns)
        for instance in list(self._due):
            found = self._batchers[instance].poll(now_ns)
            self._answers += found.answer
            if found.wake_at_ns is None:
                del self._due[instance]
            else:
                decision.wake_by(found.wake_at_ns)
            for _, work in found.run:
                decision.run.append((instance, self._with_controls(work)))

    def _advance(self, slot: SequenceSlot, now_ns: int) -> None:
        """Makes the oldest request of a slot a candidate."""
        request = self._queues.take(slot)
        slot.running = request
        self._candidates[request] = (slot, slot.number, request.queue_start_ns)
        self._batchers[slot.instance].enqueue(request, now_ns)
        self._due[slot.instance] = None
        if request.options.flags & SEQUENCE_END and not self._iterative:
            self._release(slot)
        elif slot.over and not slot.queue:
            self._departures.add(slot)

    def _with_controls(self, work: Work) -> Work:
        extras = []
        sequences = []
        options = []
        for request in work.requests:
            slot, number, request.queue_start_ns = self._candidates.pop(request)
            self._executing[request] = slot
            told = self._told(request, slot)
            options.append(told)
            extras.append(self._added(request, told or request.options, slot, number))
            sequences.append(number)
        work = Work.of_slots(work.requests, extras if any(extras) else None)
        work.options = options if any(options) else None
        if self.keeps_states:
            work.sequences = sequences
        return work

    @property
    def queued(self) -> int:
        return super().queued + len(self._candidates)
