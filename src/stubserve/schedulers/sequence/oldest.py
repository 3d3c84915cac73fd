"""The oldest strategy: the requests of an instance's sequences are batched as the dynamic batcher would.

Each sequence that has a slot (max_candidate_sequences of them on an instance) has its oldest request with the dynamic
batcher of its instance, and the next one there when that has been executed. So a batch holds requests of as many
sequences, each in the order in which they came, and no place in it means anything. Preferred sizes, the queue delay and
which shapes may share a batch are the dynamic batcher's. The delay counts from when a request is a candidate.

A slot is free when the request with END becomes a candidate; the next sequence that gets it waits until that has been
executed.

`preserve_ordering` has nothing to do: an instance answers its batches in their order. Unlike upstream, an answer that
a sender gives late does not hold back those of other sequences.
"""

from __future__ import annotations

from collections.abc import Collection

from stubserve.inference.request import SEQUENCE_END, Request
from stubserve.inference.work import Work
from stubserve.schedulers.base import Decision, Instance
from stubserve.schedulers.dynamic_batcher import DynamicBatcher
from stubserve.schedulers.grouping import Grouping
from stubserve.schedulers.sequence.batcher import SequenceBatcher
from stubserve.schedulers.sequence.controls import Controls
from stubserve.schedulers.sequence.slot import Slot


class OldestBatcher(SequenceBatcher):
    """Slots are candidates: `candidates` sequences of an instance, as many as max_batch_size where that is 0."""

    __slots__ = (
        "_batchers",
        "_candidates",
        "_controls",
        "_delay_us",
        "_due",
        "_executing",
        "_grouping",
        "_hold_each",
        "_max_batch_size",
        "_preferred",
        "_ready",
    )

    def __init__(
        self,
        model: str,
        max_batch_size: int,
        max_idle_us: int,
        controls: Controls,
        candidates: int = 0,
        preferred_batch_sizes: Collection[int] = (),
        max_queue_delay_us: int = 0,
        grouping: Grouping | None = None,
        hold_until: int = 0,
    ) -> None:
        super().__init__(model, candidates if candidates > 0 else max(1, max_batch_size), max_idle_us)
        self._max_batch_size = max_batch_size
        self._controls = controls
        self._preferred = preferred_batch_sizes
        self._delay_us = max_queue_delay_us
        self._grouping = grouping
        self._hold_each = hold_until
        self._batchers: dict[Instance, DynamicBatcher] = {}
        # Instances whose batcher may have something to say
        self._due: dict[Instance, None] = {}
        # Slots of which a request may become a candidate
        self._ready: dict[Slot, None] = {}
        # Candidates: their slot, when they were queued, and the number of their sequence
        self._candidates: dict[Request, tuple[Slot, int, int]] = {}
        self._executing: dict[Request, Slot] = {}

    def _filled(self, slot: Slot) -> None:
        if slot.running is None:
            self._ready[slot] = None

    def _joins(self, instance: Instance, slots: list[Slot]) -> None:
        self._batchers[instance] = DynamicBatcher(
            self._max_batch_size, self._preferred, self._delay_us, self._grouping, None, self._hold_each
        )

    def _leaves(self, instance: Instance, slots: list[Slot]) -> list[Request]:
        self._due.pop(instance, None)
        for slot in slots:
            self._ready.pop(slot, None)
            if slot.running is not None:
                self._executing.pop(slot.running, None)
        candidates = self._batchers.pop(instance).drain()
        for request in candidates:
            self._candidates.pop(request, None)
        return candidates

    def _idles(self, instance: Instance) -> None:
        self._batchers[instance].instance_idle(instance)
        self._due[instance] = None

    def _rests(self, instance: Instance) -> None:
        self._batchers[instance].instance_idle(instance, 0)

    def _cancel_elsewhere(self, request: Request) -> None:
        if request not in self._candidates:
            return
        slot, _, _ = self._candidates.pop(request)
        self._batchers[slot.instance].cancel(request)
        self._due[slot.instance] = None
        if self._take_back(request, slot):
            behind = self._empty(slot)
            self._answer_cancelled(behind)

    def _take_back(self, request: Request, slot: Slot) -> bool:
        """A candidate is not executed; whether what its slot has now is its own sequence, which is then over."""
        slot.running = None
        if request.flags & SEQUENCE_END:
            # The slot is the next sequence's already.
            self._filled(slot)
            return False
        if not slot.queue:
            self._end(slot)
        return True

    def _drain_elsewhere(self) -> list[Request]:
        drained: list[Request] = []
        for batcher in self._batchers.values():
            drained += batcher.drain()
        for request in drained:
            if request in self._candidates:
                slot, _, _ = self._candidates.pop(request)
                self._take_back(request, slot)
        return drained

    def work_done(self, instance: Instance, work: Work) -> None:
        for request in work.requests:
            slot = self._executing.pop(request, None)
            if slot is not None:
                slot.running = None
                self._filled(slot)

    def _run(self, now_ns: int, decision: Decision) -> None:
        while self._ready:
            ready, self._ready = self._ready, {}
            for slot in ready:
                self._advance(slot, now_ns)
        for instance in list(self._due):
            found = self._batchers[instance].poll(now_ns)
            self._answers += found.answer
            if found.wake_at_ns is None:
                del self._due[instance]
            else:
                self._wake_at(decision, found.wake_at_ns)
            for _, work in found.run:
                decision.run.append((instance, self._with_controls(work)))

    def _advance(self, slot: Slot, now_ns: int) -> None:
        """Makes the oldest request of a slot a candidate, if it has one and none is on its way."""
        while slot.queue and slot.running is None:
            request = slot.queue.popleft()
            if request is None:
                self._abandon(slot)
                continue
            del self._waiting_in[request]
            slot.running = request
            self._candidates[request] = (slot, request.queue_start_ns, slot.number)
            self._batchers[slot.instance].enqueue(request, now_ns)
            self._due[slot.instance] = None
            if request.flags & SEQUENCE_END:
                self._release(slot)

    def _with_controls(self, work: Work) -> Work:
        sequences = []
        for request in work.requests:
            slot, request.queue_start_ns, number = self._candidates.pop(request)
            self._executing[request] = slot
            sequences.append(number)
        extras = [self._controls.of(request) for request in work.requests]
        work = Work.of_slots(work.requests, extras if any(extras) else None)
        if self.keeps_states:
            work.sequences = sequences
        return work

    @property
    def queued(self) -> int:
        return super().queued + len(self._candidates)
