"""The sequence batcher: requests with the same correlation id run one after the other, on the same instance.

A request with START begins a sequence and gets it a slot: the free one with the lowest index, of any instance, so that
sequences spread. All further requests up to the one with END follow it there. If no slot is free the whole sequence
waits in the backlog, first come first served. The strategy, `direct` or `oldest`, defines the meaning of a slot and
which requests share a batch. The rules are upstream's:

- END frees the slot when its request is handed out; the next sequence of the backlog has it from then on.
- A START in a sequence that runs is taken into the same slot, behind what is queued there, and logged as a conflict.
- A sequence without a request for max_sequence_idle_microseconds is over. Requests that are still queued or executing
  run to their end, and then the slot is free. The sequence's next request needs a START.
- A request that expires in the backlog rejects its whole sequence there.
- A request that is cancelled while it waits ends its sequence: it and all behind it are answered with CANCELLED. In the
  backlog that is the whole sequence.
- With `iterative_sequence` a request is a sequence by itself; the batcher gives it an id if it has none. It executes
  until the model no longer reschedules it, and keeps its slot meanwhile. Only its first execution has flags.

Unlike upstream, the time in the backlog does not count as idle: a client that waits there for its first answer would
lose its sequence. And the loss of a sequence is reported: when its instance dies, its queued requests are answered with
an error. So is its next request, until it begins again or would have been idle for too long. But where the server keeps
the states of sequences (`states`), nothing is lost: such a sequence goes before the backlog, with what was queued.
"""

# Compiled by mypyc.
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from stubserve_stub.backends.cards import card_of
from stubserve_stub.wire.options import RequestOptions

from stubserve.errors import ServeError
from stubserve.inference.request import SEQUENCE_END, SEQUENCE_START, Request, Response
from stubserve.inference.tensor import Tensor
from stubserve.inference.work import Decision, Grouping, Instance, Work
from stubserve.schedulers.base import cancellation
from stubserve.schedulers.delay import SchedulerDelay
from stubserve.sequences.active import ActiveSequences
from stubserve.sequences.backlog import Backlog
from stubserve.sequences.controls import Controls
from stubserve.sequences.refusals import Refusals
from stubserve.sequences.slots import Departures, SequenceId, SequenceSlot, SlotQueues, Slots
from stubserve.sequences.states import SequenceStates
from stubserve.sequences.strategy import Strategy


class SequenceBatcher(Strategy):
    """The common part of the strategies. An instance of the model that `config` describes has `slots_each` slots."""

    has_slots = True

    def __init__(self, config: Any, slots_each: int, hold: SchedulerDelay | None = None) -> None:
        batching = config.sequence_batching
        self._refusals = Refusals(config.name)
        self._controls = Controls(config)
        self._grouping = Grouping.from_config(config) if config.max_batch_size > 1 else None
        self._iterative: bool = batching.iterative_sequence
        self._hold = hold or SchedulerDelay()
        # The implicit states of its sequences, where the server keeps them
        self.states: SequenceStates | None = None
        # Whether the stubs keep such states: then work names its sequences
        self.keeps_states = bool(batching.state)
        self._auto_ids = itertools.count(1)
        # A request that executes many times is never idle.
        self._active = ActiveSequences(None if self._iterative else batching.max_sequence_idle_microseconds * 1000)
        self._backlog = Backlog()
        self._slots = Slots(slots_each)
        self._queues = SlotQueues()
        self._departures = Departures()
        if self.keeps_states and card_of(config.backend).server_keeps_states:
            self.keeps_states = False
            self.states = SequenceStates(config, self._active, self._backlog)
        # With implicit states by sequence: those that ended without an END, to be reported
        self._over: list[tuple[Instance, int]] = []
        # Requests that execute, with the slots that wait for them
        self._executing: dict[Request, SequenceSlot] = {}
        self._answers: list[tuple[Request, ServeError]] = []
        self._now_ns = 0
        # Called when a poll has left no sequence that may get further requests
        self.when_quiet: Callable[[], None] | None = None
        # Called with each closed instance when its last sequence has ended
        self.when_vacant: Callable[[Instance], None] | None = None

    def enqueue(self, request: Request, now_ns: int) -> None:
        """As the interface. Raises INVALID_ARG for a request outside of sequences, UNAVAILABLE for a lost one."""
        self._now_ns = request.queue_start_ns = now_ns
        if request.batch_size > 1:
            raise self._refusals.rows()
        sequence, flags = request.options.correlation_id, request.options.flags
        if not sequence:
            if not self._iterative:
                raise self._refusals.no_id()
            sequence, flags = next(id for id in self._auto_ids if not self.holds(id)), SEQUENCE_START
        slot = self._active.slot_of(sequence)
        if slot is not None and self.states is not None and self._slots.is_closing(slot.instance):
            states = self.part_with(sequence)
            if states is not None:
                self.states.adopt(sequence, states)
                slot = None
        if flags & SEQUENCE_START or slot is None:
            slot = self._begin(sequence, flags, slot)
        is_last = bool(flags & SEQUENCE_END) and not self._iterative
        if slot is None:
            self._backlog.add(sequence, request, now_ns, is_last)
        else:
            slot.last_ns = now_ns
            if is_last:
                self._active.end(slot)
            self._queues.add(slot, (request,))
            if slot.running is None:
                self._filled(slot)
        if request.cancelled:
            self.cancel(request)

    def _told(self, request: Request, slot: SequenceSlot) -> RequestOptions | None:
        """The options that replace a request's own for the model: only the first execution has flags."""
        if not self._iterative or (request.options.correlation_id and slot.again is not request):
            return None
        flags = 0 if slot.again is request else SEQUENCE_START
        return request.options._replace(correlation_id=slot.sequence, flags=flags)

    def _added(self, request: Request, told: RequestOptions, slot: SequenceSlot, number: int) -> Sequence[Tensor]:
        """The inputs of a request besides its own: controls by the options that the model is `told`, then states."""
        controls = self._controls.of(told, slot)
        if self.states is None:
            return controls
        return [*controls, *self.states.give(request, number, slot.instance)]

    def _begin(self, sequence: SequenceId, flags: int, slot: SequenceSlot | None) -> SequenceSlot | None:
        """The slot of a request that has START or an unknown sequence; None for the backlog."""
        known = slot is not None or self._backlog.collects(sequence)
        if not flags & SEQUENCE_START:
            if not known:
                raise self._refusals.not_begun(sequence, self._active.lost_with(sequence, self._now_ns))
        elif known:
            self._refusals.log_conflict(sequence)
        else:
            self._active.forget(sequence)
            if not self._backlog:
                slot = self._slots.take()
                if slot is not None:
                    self._active.begin(sequence, slot, self._now_ns)
        return slot

    def reschedule(self, request: Request, now_ns: int) -> bool:
        slot = self._executing.pop(request, None) if self._iterative else None
        if slot is None:
            return False
        request.queue_start_ns = slot.last_ns = now_ns
        slot.again = request
        slot.running = None
        self._queues.put_back(slot, request)
        self._filled(slot)
        if request.cancelled:
            self.cancel(request)
        return True

    def response_complete(self, request: Request, response: Response) -> None:
        if self.states is not None:
            self.states.take(request, response)

    def work_done(self, instance: Instance, work: Work) -> None:
        if self.states is not None:
            self.states.done(work.requests)
        executing = self._executing
        if executing:
            for request in work.requests:
                slot = executing.pop(request, None)
                if slot is not None:
                    slot.running = slot.again = None
                    if slot.queue:
                        self._filled(slot)
                    elif self._iterative:
                        self._end(slot)

    def cancel(self, request: Request) -> None:
        request.cancelled = True
        waiting = self._backlog.take_with(request)
        if waiting is not None:
            self._answer_cancelled(waiting.requests)
            if self.states is not None:
                self.states.drop(waiting.number)
            return
        slot = self._queues.slot_of(request)
        if slot is None:
            self._cancel_elsewhere(request)
            return
        self._answer_cancelled(self._queues.cut(slot, request))
        self._end(slot)

    def _answer_cancelled(self, requests: Iterable[Request]) -> None:
        self._answers += [(request, cancellation(request)) for request in requests]

    # Sequences and slots

    def part_with(self, sequence: SequenceId) -> Sequence[Tensor] | None:
        """The states of a sequence that goes on elsewhere (`SequenceStates.adopt`); it ends here.

        None if a request of it is under way, or the server does not keep its states.
        """
        if self.states is None:
            return None
        slot = self._active.slot_of(sequence)
        if slot is None:
            return self.states.part_with_waiting(sequence)
        if slot.queue or not self._at_rest(slot):
            return None
        states = self.states.part_with(slot.number)
        self._end(slot)
        return states

    def _end(self, slot: SequenceSlot) -> None:
        """Ends the sequence of a slot behind its present queue."""
        if self._iterative and (slot.queue or slot.running is not None):
            return  # the sequence ends when the last of them is not rescheduled
        self._active.end(slot)
        if not slot.queue:
            self._departures.add(slot)

    def _release(self, slot: SequenceSlot) -> None:
        """A slot is free: the backlog's next sequence gets it. Only within a poll, which knows the time."""
        if self._slots.is_closing(slot.instance):
            self._departures.add(slot)  # its last request may still be about to execute
            return
        waiting = self._backlog.take()
        if waiting is None:
            self._slots.give_back(slot)
            return
        self._active.begin(waiting.sequence, slot, self._now_ns, waiting.number, waiting.complete)
        self._queues.add(slot, waiting.requests)
        if slot.running is None:
            self._filled(slot)

    def _empty(self, slot: SequenceSlot) -> list[Request]:
        """Removes all requests of a slot's queue; the sequence is over if there were any."""
        queued = self._queues.clear(slot)
        if queued:
            self._end(slot)
        return queued

    @property
    def sequences(self) -> int:
        """How many sequences may get further requests."""
        return len(self._active) + self._backlog.sequences

    def holds(self, sequence: SequenceId) -> bool:
        """Whether a request without START would be accepted."""
        return sequence in self._active or self._backlog.collects(sequence)

    # Instances

    def instance_idle(
        self, instance: Instance, works: int = 1, closed: int = 0, ripe_after_ns: int = 0, most: int = 0
    ) -> None:
        if not works:
            if instance in self._slots:
                self._rests(instance)
            return
        if self._slots.join(instance):
            self._joins(instance)
        self._idles(instance)

    def close_instance(self, instance: Instance) -> bool:
        """Begins no new sequence on this instance; the present ones go on. Returns whether there are any."""
        return self._slots.close(instance)

    def instance_gone(self, instance: Instance) -> None:
        slots = self._slots.leave(instance)
        if slots is None:
            return
        name = getattr(instance, "name", str(instance))
        lost = self._leaves(instance, slots)
        for slot in slots:
            if slot.running is not None:
                self._executing.pop(slot.running, None)
                slot.running = None
            lost += [(request, slot.sequence, slot.number) for request in self._queues.clear(slot)]
            if self.states is None:
                self._active.lose(slot, name)
        if self.states is not None:
            self.states.move(instance, slots, lost)
            lost = []
        self._active.tidy(self._now_ns)
        self._answers += [(request, self._refusals.lost(sequence, name)) for request, sequence, _ in lost]

    # What to do now

    def poll(self, now_ns: int) -> Decision:
        self._now_ns = now_ns
        decision = Decision()
        backlog = self._backlog
        for waiting in backlog.take_expired(now_ns):
            self._answers += [(request, self._refusals.expired()) for request in waiting.requests]
            if self.states is not None:
                self.states.emptied(waiting)
        for slot in self._active.take_idle(now_ns):
            self._refusals.log_idle(slot.sequence)
            self._end(slot)
        for slot in self._departures.take(self._at_rest):
            if self.keeps_states:
                self._over.append((slot.instance, slot.number))
            elif self.states is not None:
                self.states.drop(slot.number)
            self._slots.give_back(slot)
        for instance in self._slots.take_vacant():
            if self.when_vacant is not None:
                self.when_vacant(instance)
        while backlog and (free := self._slots.take()) is not None:
            self._release(free)
        if self.states is not None:
            for slot in self.states.make_room(self._slots, self._at_rest) if backlog else ():
                self._release(slot)
            decision.wake_by(self.states.end_idle(now_ns, self._refusals.log_idle))
        if not self._hold.holds(len(self._queues), len(backlog), now_ns):
            self._run(now_ns, decision)
        decision.wake_by(self._hold.until_ns)
        decision.answer, self._answers = self._answers, []
        if self._over:
            decision.ended_sequences, self._over = self._over, []
        if self.when_quiet is not None and not self.sequences:
            self.when_quiet()
        decision.wake_by(backlog.next_deadline_ns())
        decision.wake_by(self._active.next_check_ns())
        return decision

    def drain(self) -> list[Request]:
        drained = [*(request for request, _ in self._answers), *self._drain_elsewhere()]
        self._answers = []
        for slot in self._slots.used():
            drained += self._empty(slot)
        for waiting in self._backlog.take_all():
            drained += waiting.requests
            if self.states is not None:
                self.states.emptied(waiting)
        return drained

    @property
    def plain(self) -> bool:
        return False

    @property
    def queued(self) -> int:
        return len(self._queues) + len(self._backlog) + len(self._answers)
