"""The direct strategy: a sequence has a place in every batch of its instance, as long as it runs.

A batch has the next request of each slot, from slot 0 to the last one that has any. Slots in between that have nothing
ready, or something of other shapes where the configuration wants shapes to be equal, are empty: the model sees zeros
there, with READY false, and its answers for them go nowhere. An instance has one batch at a time.

With a max_queue_delay_microseconds and a minimum_slot_utilization a batch waits until that share of all slots is ready,
or its oldest request has waited for so long; with only one of them nothing waits.
"""

from __future__ import annotations

from math import ceil

from stubserve.inference.request import SEQUENCE_END, Request
from stubserve.inference.work import Work
from stubserve.schedulers.base import Decision, Instance
from stubserve.schedulers.grouping import Grouping
from stubserve.schedulers.sequence.batcher import SequenceBatcher
from stubserve.schedulers.sequence.controls import Controls
from stubserve.schedulers.sequence.slot import Slot


class DirectBatcher(SequenceBatcher):
    """Slots are places in the batch: `max_batch_size` of an instance, one where that is 0."""

    __slots__ = ("_controls", "_delay_ns", "_due", "_enough", "_grouping", "_idle")

    def __init__(
        self,
        model: str,
        max_batch_size: int,
        max_idle_us: int,
        controls: Controls,
        max_queue_delay_us: int = 0,
        minimum_slot_utilization: float = 0.0,
        grouping: Grouping | None = None,
        hold_until: int = 0,
    ) -> None:
        slots = max(1, max_batch_size)
        super().__init__(model, slots, max_idle_us, hold_until)
        self._controls = controls
        self._delay_ns = max_queue_delay_us * 1000
        # The configuration's number is one of 32 bits: 0.3 of ten slots are three.
        self._enough = ceil(round(minimum_slot_utilization * slots, 4))
        self._grouping = None if grouping is None or grouping.trivial else grouping
        self._idle: set[Instance] = set()
        # Idle instances of which a slot may have something
        self._due: dict[Instance, None] = {}

    def _filled(self, slot: Slot) -> None:
        if slot.instance in self._idle:
            self._due[slot.instance] = None

    def _joins(self, instance: Instance, slots: list[Slot]) -> None:
        pass

    def _leaves(self, instance: Instance, slots: list[Slot]) -> list[Request]:
        self._idle.discard(instance)
        self._due.pop(instance, None)
        return []

    def _idles(self, instance: Instance) -> None:
        self._idle.add(instance)
        self._due[instance] = None

    def _rests(self, instance: Instance) -> None:
        self._idle.discard(instance)
        self._due.pop(instance, None)

    def _cancel_elsewhere(self, request: Request) -> None:
        pass

    def _drain_elsewhere(self) -> list[Request]:
        return []

    def _run(self, now_ns: int, decision: Decision) -> None:
        for instance in list(self._due):
            slots = self._instances[instance][1]
            for slot in slots:
                if slot.queue and slot.queue[0] is None:
                    slot.queue.clear()
                    self._abandon(slot)
            ready = [slot for slot in slots if slot.queue]
            at_ns = self._waits_until_ns(ready, now_ns) if ready else None
            if at_ns is not None:
                self._wake_at(decision, at_ns)
                continue
            del self._due[instance]
            if ready:
                self._idle.discard(instance)
                decision.run.append((instance, self._batch(slots, ready)))

    def _waits_until_ns(self, ready: list[Slot], now_ns: int) -> int | None:
        """Until when slots that are ready wait for more; None if they run."""
        if not self._delay_ns or not self._enough or len(ready) >= self._enough:
            return None
        oldest_ns = min([request.queue_start_ns for slot in ready for request in (slot.queue[0],) if request])
        until_ns = oldest_ns + self._delay_ns
        return None if until_ns <= now_ns else until_ns

    def _batch(self, slots: list[Slot], ready: list[Slot]) -> Work:
        controls, grouping = self._controls, self._grouping
        first = ready[0].queue[0]
        assert first is not None
        key = None if grouping is None else grouping.key(first)
        requests: list[Request | None] = []
        extras = []
        sequences = []
        for slot in slots[: ready[-1].index + 1]:
            request = slot.queue[0] if slot.queue else None
            if request is None or (grouping is not None and grouping.key(request) != key):
                requests.append(None)
                extras.append(controls.of_empty_slot(first))
                sequences.append(0)
                continue
            slot.queue.popleft()
            del self._waiting_in[request]
            requests.append(request)
            extras.append(controls.of(request))
            sequences.append(slot.number)
            if request.flags & SEQUENCE_END:
                self._release(slot)
        work = Work.of_slots(requests, extras if any(extras) else None)
        if self.keeps_states:
            work.sequences = sequences
        return work
