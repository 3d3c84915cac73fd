"""The scheduler of `sequence_batching { iterative_sequence: true }`: requests that execute many times.

Each request is a sequence of its own. It takes one of max_batch_size slots of an instance and keeps it until the model
lets it go; as long as the model reschedules it (TRITONSERVER_REQUEST_RELEASE_RESCHEDULE), it is part of every batch of
that instance, where the model keeps its state. New requests join the batches that are under way as slots become free,
in the order in which they came, at the instance with the most free slots. The first execution has the flag START and a
correlation id from the scheduler; later ones have no flag.

A sequence of several requests, with a correlation id of the client's, is refused.
"""

from __future__ import annotations

import itertools

from stubserve.errors import ServeError, invalid, unavailable, unsupported
from stubserve.inference.request import SEQUENCE_START, Request
from stubserve.inference.work import Work
from stubserve.schedulers.base import Decision, Instance, Scheduler
from stubserve.schedulers.fifo_queue import FifoQueue, cancellation


class IterativeScheduler(Scheduler):
    """Runs requests of `model` again and again, at most `max_batch_size` (0 means 1) at a time on an instance."""

    __slots__ = ("_answers", "_correlation_ids", "_idle", "_model", "_queue", "_ready", "_running", "_slots")

    has_slots = True

    def __init__(self, model: str, max_batch_size: int) -> None:
        self._model = model
        self._slots = max(1, max_batch_size)
        self._correlation_ids = itertools.count(1)
        self._queue = FifoQueue()
        # By instance: requests that execute, and rescheduled ones that wait; both take slots
        self._running: dict[Instance, dict[Request, None]] = {}
        self._ready: dict[Instance, dict[Request, None]] = {}
        self._idle: set[Instance] = set()
        self._answers: list[tuple[Request, ServeError]] = []

    def enqueue(self, request: Request, now_ns: int) -> None:
        """As the interface. Raises ServeError for what is no iterative request."""
        if request.correlation_id:
            raise unsupported(
                f"model '{self._model}' has iterative_sequence: sequences of several requests are not offered yet"
            )
        if request.batch_size > 1:
            raise invalid(
                f"inference request to model '{self._model}' must specify batch-size 1 due to requirements of sequence "
                "batcher"
            )
        request.queue_start_ns = now_ns
        if request.cancelled:
            self._answers.append((request, cancellation(request)))
            return
        request.correlation_id = next(self._correlation_ids)
        request.flags = SEQUENCE_START
        self._queue.push(request)

    def reschedule(self, request: Request, now_ns: int) -> bool:
        for instance, running in self._running.items():
            if request in running:
                del running[request]
                request.queue_start_ns = now_ns
                request.flags = 0
                if request.cancelled:
                    self._answers.append((request, cancellation(request)))
                else:
                    self._ready[instance][request] = None
                return True
        return False

    def cancel(self, request: Request) -> None:
        request.cancelled = True
        waited = self._queue.remove(request)
        for ready in self._ready.values():
            if request in ready:
                del ready[request]
                waited = True
        if waited:
            self._answers.append((request, cancellation(request)))

    def work_done(self, instance: Instance, work: Work) -> None:
        # What has executed and was not rescheduled has given up its slot.
        self._running[instance] = {}

    def instance_idle(self, instance: Instance, works: int = 1, closed: int = 0, ripe_after_ns: int = 0) -> None:
        self._ready.setdefault(instance, {})
        if works:
            self._idle.add(instance)
        else:
            self._idle.discard(instance)

    def instance_gone(self, instance: Instance) -> None:
        self._idle.discard(instance)
        self._running.pop(instance, None)
        for request in self._ready.pop(instance, ()):
            self._answers.append((request, unavailable("the model instance that ran this sequence is gone")))

    def poll(self, now_ns: int) -> Decision:
        decision = Decision()
        decision.answer, self._answers = self._answers, []
        # The emptiest first, so that new requests spread.
        for instance in sorted(self._idle, key=lambda instance: len(self._ready[instance])):
            batch = [*self._ready[instance], *self._queue.take(self._free(instance))]
            if batch:
                self._ready[instance] = {}
                self._running[instance] = dict.fromkeys(batch)
                self._idle.discard(instance)
                decision.run.append((instance, Work(batch)))
        return decision

    def _free(self, instance: Instance) -> int:
        return min(self._slots - len(self._ready[instance]), len(self._queue))

    def drain(self) -> list[Request]:
        drained = [request for ready in self._ready.values() for request in ready]
        drained += self._queue.take(len(self._queue))
        drained += [request for request, _ in self._answers]
        self._ready = {instance: {} for instance in self._ready}
        self._answers = []
        return drained

    @property
    def plain(self) -> bool:
        return False

    @property
    def queued(self) -> int:
        return len(self._queue) + sum(map(len, self._ready.values())) + len(self._answers)
