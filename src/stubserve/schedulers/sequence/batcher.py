"""The sequence batcher: requests with the same correlation id run one after the other, on the same instance.

A request with START begins a sequence and gets it a slot: the free one with the lowest index, of any instance, so that
sequences spread. All further requests up to the one with END follow it there. Where no slot is free the whole sequence
waits in the backlog, first come first served. What a slot means, and which requests share a batch, is the strategy's:
`direct` or `oldest`. The rules are upstream's:

- END frees the slot when its request is handed out; the next sequence of the backlog has it from then on.
- A START in a sequence that runs is taken into the same slot, behind what is queued there, and logged as a conflict.
- A sequence of which no request has come for max_sequence_idle_microseconds is over, whatever of it is still queued or
  executes: that runs to its end, and the slot is free behind it. Its next request needs a START.
- A request whose time runs out in the backlog rejects all that waits there with it.
- A request that is cancelled while it waits ends its sequence: it and all behind it are answered with CANCELLED. In the
  backlog that is the whole sequence.

Unlike upstream, the time in the backlog does not count as idle: a client that waits there for its first answer would
find its sequence gone. And a sequence is told how it ended: when its instance dies, what it has queued is answered
with an error, and so is its next request, until it begins anew or would have been idle for too long.

Costs. Everything but a batch costs the same however many sequences live or wait: dictionaries for who is where, a heap
for free slots, and an ordered dictionary by last request in which only the front is looked at.
"""

from __future__ import annotations

import abc
import heapq
import itertools
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable

from stubserve.errors import ServeError, invalid, unavailable
from stubserve.inference.request import SEQUENCE_END, SEQUENCE_START, Request
from stubserve.schedulers.base import Decision, Instance, Scheduler
from stubserve.schedulers.fifo_queue import cancellation
from stubserve.schedulers.sequence.backlog import Backlog
from stubserve.schedulers.sequence.slot import SequenceId, Slot

log = logging.getLogger("stubserve.scheduler")

EXPIRED = "timeout of the corresponding sequence has been expired"


class SequenceBatcher(Scheduler):
    """What the strategies have in common: who has which slot, who waits for one, who is over.

    `model` is for texts; an instance has `slots_each` slots; a sequence may be idle for `max_idle_us`. `hold_until`
    keeps everything back until that many requests wait in slots, once (TRITONSERVER_DELAY_SCHEDULER).
    """

    __slots__ = (
        "_active",
        "_answers",
        "_backlog",
        "_free",
        "_fresh",
        "_hold_until",
        "_idle_ns",
        "_instances",
        "_joined",
        "_lost",
        "_max_idle_ns",
        "_model",
        "_now_ns",
        "_numbers",
        "_over",
        "_slots_each",
        "_waiting_in",
        "keeps_states",
        "when_quiet",
    )

    has_slots = True

    def __init__(self, model: str, slots_each: int, max_idle_us: int, hold_until: int = 0) -> None:
        # Whether sequences have implicit states: then work says which sequences it is of
        self.keeps_states = False
        self._model = model
        self._slots_each = slots_each
        self._max_idle_ns = max_idle_us * 1000
        self._hold_until = hold_until
        # Sequences to which further requests may come: which slot they have
        self._active: dict[SequenceId, Slot] = {}
        # When the last request came, of those that are active or lost; the longest idle first
        self._idle_ns: OrderedDict[SequenceId, int] = OrderedDict()
        # Sequences whose instance is gone: its name
        self._lost: dict[SequenceId, str] = {}
        self._backlog = Backlog()
        # A heap of (index, when its instance joined, slot); slots that are gone may be in it
        self._free: list[tuple[int, int, Slot]] = []
        # Slots of instances that have joined since the last poll, which gives them to who waits
        self._fresh: list[Slot] = []
        self._joined = 0
        self._instances: dict[Instance, tuple[int, list[Slot]]] = {}
        # Where each request waits that has a slot
        self._waiting_in: dict[Request, Slot] = {}
        self._answers: list[tuple[Request, ServeError]] = []
        self._now_ns = 0
        # Where implicit state is kept by sequence: those that are over without an END, to be told
        self._over: list[tuple[Instance, int]] = []
        self._numbers = itertools.count(1)
        # Called when a poll has left no sequence that further requests belong to
        self.when_quiet: Callable[[], None] | None = None

    # The strategy

    @abc.abstractmethod
    def _filled(self, slot: Slot) -> None:
        """A slot has something in its queue that it had not before."""

    @abc.abstractmethod
    def _joins(self, instance: Instance, slots: list[Slot]) -> None:
        """A new instance has these slots."""

    @abc.abstractmethod
    def _leaves(self, instance: Instance, slots: list[Slot]) -> list[Request]:
        """An instance is gone; returns requests of it that wait elsewhere than in the queues of slots."""

    @abc.abstractmethod
    def _idles(self, instance: Instance) -> None:
        """An instance can be given work."""

    @abc.abstractmethod
    def _rests(self, instance: Instance) -> None:
        """An instance can be given no work for now."""

    @abc.abstractmethod
    def _run(self, now_ns: int, decision: Decision) -> None:
        """Forms batches for instances that are idle; sets when to look again."""

    @abc.abstractmethod
    def _cancel_elsewhere(self, request: Request) -> None:
        """A request is cancelled that waits neither in the queue of a slot nor in the backlog, if at all."""

    @abc.abstractmethod
    def _drain_elsewhere(self) -> list[Request]:
        """Takes back all that waits elsewhere, and ends the sequences of it."""

    # Requests

    def enqueue(self, request: Request, now_ns: int) -> None:
        """As the interface. Raises ServeError INVALID_ARG for what is no request of a sequence.

        Raises UNAVAILABLE for the next one of a sequence whose instance is gone.
        """
        self._now_ns = now_ns
        request.queue_start_ns = now_ns
        if request.batch_size > 1:
            raise invalid(
                f"inference request to model '{self._model}' must specify batch-size 1 due to requirements of sequence "
                "batcher"
            )
        sequence = request.correlation_id
        if not sequence:
            raise invalid(
                f"inference request to model '{self._model}' must specify a non-zero or non-empty correlation ID"
            )
        slot = self._active.get(sequence)
        known = slot is not None or self._backlog.collects(sequence)
        if not request.flags & SEQUENCE_START:
            if not known:
                raise self._not_begun(sequence)
        elif known:
            log.warning(
                "sequence %s for model '%s' has a conflict. The previous sequence did not end before this sequence "
                "start. Previous sequence will be terminated early.",
                sequence,
                self._model,
            )
        else:
            self._lost.pop(sequence, None)
            self._idle_ns.pop(sequence, None)
            slot = self._take_free_slot()
            if slot is not None:
                self._give(slot, sequence)
        if slot is None:
            self._backlog.add(request, now_ns)
        else:
            if request.flags & SEQUENCE_END:
                self._forget(sequence)
            else:
                self._idle_ns[sequence] = now_ns
                self._idle_ns.move_to_end(sequence)
            slot.queue.append(request)
            self._waiting_in[request] = slot
            self._filled(slot)
        if request.cancelled:
            self.cancel(request)

    def cancel(self, request: Request) -> None:
        request.cancelled = True
        waiting = self._backlog.take_with(request)
        if waiting is not None:
            self._answer_cancelled(waiting.requests)
            return
        slot = self._waiting_in.get(request)
        if slot is None:
            self._cancel_elsewhere(request)
            return
        ahead: deque[Request | None] = deque()
        while slot.queue[0] is not request:
            ahead.append(slot.queue.popleft())
        behind = [one for one in slot.queue if one is not None]
        slot.queue = ahead
        self._out_of_slots(behind)
        self._answer_cancelled(behind)
        self._end(slot)

    def _not_begun(self, sequence: SequenceId) -> ServeError:
        instance = self._lost.get(sequence)
        if instance is not None:
            return self._loss(sequence, instance)
        return invalid(
            f"inference request for sequence {sequence} to model '{self._model}' must specify the START flag on the "
            "first request of the sequence"
        )

    def _loss(self, sequence: SequenceId, instance: str) -> ServeError:
        return unavailable(
            f"sequence {sequence} of model '{self._model}' has ended because its instance '{instance}' is gone, and "
            "its state with it; begin it anew with the START flag"
        )

    def _answer_cancelled(self, requests: Iterable[Request]) -> None:
        self._answers += [(request, cancellation(request)) for request in requests]

    def _out_of_slots(self, requests: Iterable[Request]) -> None:
        for request in requests:
            del self._waiting_in[request]

    # Sequences and slots

    def _take_free_slot(self) -> Slot | None:
        while self._free:
            slot = heapq.heappop(self._free)[2]
            if not slot.gone:
                return slot
        return None

    def _give(self, slot: Slot, sequence: SequenceId) -> None:
        self._begin(slot, sequence)
        self._active[sequence] = slot

    def _begin(self, slot: Slot, sequence: SequenceId) -> None:
        slot.sequence = sequence
        slot.number = next(self._numbers)

    def _forget(self, sequence: SequenceId) -> None:
        """No further request of this sequence comes to its slot."""
        del self._active[sequence]
        self._idle_ns.pop(sequence, None)

    def _end(self, slot: Slot) -> None:
        """The sequence of a slot is over when what its queue has now has run."""
        if self._active.get(slot.sequence) is slot:
            self._forget(slot.sequence)
        slot.queue.append(None)
        self._filled(slot)

    def _abandon(self, slot: Slot) -> None:
        """As `_release`, by a sequence that has ended without a request that says so."""
        if self.keeps_states:
            self._over.append((slot.instance, slot.number))
        self._release(slot)

    def _release(self, slot: Slot) -> None:
        """The sequence that had a slot has left it: the backlog's next gets it, whose requests are queued there.

        Only within a poll, which knows the time.
        """
        waiting = self._backlog.take()
        if waiting is None:
            heapq.heappush(self._free, (slot.index, self._instances[slot.instance][0], slot))
            return
        self._begin(slot, waiting.sequence)
        if not waiting.complete:
            self._active[waiting.sequence] = slot
            self._idle_ns[waiting.sequence] = self._now_ns
            self._idle_ns.move_to_end(waiting.sequence)
        for request in waiting.requests:
            slot.queue.append(request)
            self._waiting_in[request] = slot
        self._filled(slot)

    def _empty(self, slot: Slot) -> list[Request]:
        """Takes everything out of a slot's queue; the sequence is over if there was anything."""
        if not slot.queue:
            return []
        queued = [request for request in slot.queue if request is not None]
        self._out_of_slots(queued)
        slot.queue.clear()
        self._end(slot)
        return queued

    def _end_idle(self, now_ns: int) -> None:
        while self._idle_ns:
            sequence, last_ns = next(iter(self._idle_ns.items()))
            if now_ns - last_ns < self._max_idle_ns:
                return
            slot = self._active.get(sequence)
            if slot is None:
                del self._idle_ns[sequence]
                self._lost.pop(sequence, None)
            else:
                log.debug("sequence %s of model '%s' has been idle for too long", sequence, self._model)
                self._end(slot)

    @property
    def sequences(self) -> int:
        """How many sequences further requests may come to."""
        return len(self._active) + self._backlog.sequences

    def holds(self, sequence: SequenceId) -> bool:
        """Whether a request without START would be taken."""
        return sequence in self._active or self._backlog.collects(sequence)

    # Instances

    def instance_idle(self, instance: Instance, works: int = 1, closed: int = 0, ripe_after_ns: int = 0) -> None:
        if not works:
            if instance in self._instances:
                self._rests(instance)
            return
        if instance not in self._instances:
            slots = [Slot(instance, index) for index in range(self._slots_each)]
            self._joined += 1
            self._instances[instance] = (self._joined, slots)
            self._joins(instance, slots)
            self._fresh += slots
        self._idles(instance)

    def instance_gone(self, instance: Instance) -> None:
        if instance not in self._instances:
            return
        _, slots = self._instances.pop(instance)
        name = getattr(instance, "name", str(instance))
        lost = self._leaves(instance, slots)
        for slot in slots:
            slot.gone = True
            queued = [request for request in slot.queue if request is not None]
            self._out_of_slots(queued)
            lost += queued
            if self._active.get(slot.sequence) is slot:
                del self._active[slot.sequence]
                self._lost[slot.sequence] = name
            slot.queue.clear()
            slot.running = None
        self._answers += [(request, self._loss(request.correlation_id, name)) for request in lost]

    # What to do now

    def poll(self, now_ns: int) -> Decision:
        self._now_ns = now_ns
        decision = Decision()
        for waiting in self._backlog.take_expired(now_ns):
            self._answers += [(request, unavailable(EXPIRED)) for request in waiting.requests]
        self._end_idle(now_ns)
        fresh, self._fresh = sorted(self._fresh, key=lambda slot: slot.index), []
        for slot in fresh:
            if not slot.gone:
                self._release(slot)
        if self._hold_until and len(self._waiting_in) >= self._hold_until:
            self._hold_until = 0
        if not self._hold_until:
            self._run(now_ns, decision)
        decision.answer, self._answers = self._answers, []
        if self._over:
            decision.over, self._over = self._over, []
        if self.when_quiet is not None and not self.sequences:
            self.when_quiet()
        self._wake_at(decision, self._backlog.next_deadline_ns())
        if self._idle_ns:
            self._wake_at(decision, next(iter(self._idle_ns.values())) + self._max_idle_ns)
        return decision

    @staticmethod
    def _wake_at(decision: Decision, at_ns: int | None) -> None:
        if at_ns is not None and (decision.wake_at_ns is None or at_ns < decision.wake_at_ns):
            decision.wake_at_ns = at_ns

    def drain(self) -> list[Request]:
        drained = [request for request, _ in self._answers]
        self._answers = []
        drained += self._drain_elsewhere()
        for _, slots in self._instances.values():
            for slot in slots:
                drained += self._empty(slot)
        while True:
            waiting = self._backlog.take()
            if waiting is None:
                return drained
            drained += waiting.requests

    @property
    def plain(self) -> bool:
        return False

    @property
    def queued(self) -> int:
        return len(self._waiting_in) + len(self._backlog) + len(self._answers)
