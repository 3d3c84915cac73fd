"""The queue of a model: asks the scheduler what to do now, makes instances do it, and has their results passed on.

Guarantees:

- `poll` may be called from anywhere, also from within an answer that it gives: there is one round at a time, and a
  round that is requested meanwhile follows it. So the alarm always matches the latest decision, and a chain of answers
  that submit requests does not recurse;
- a request that the scheduler took is answered, even if an instance refuses its work, or the scheduler itself raises.
  The latter is a fault of the server: all queued requests are answered with an error, and idle instances are offered
  again.
"""

# Compiled by mypyc.
from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from stubserve.errors import Code, ServeError, internal
from stubserve.inference.request import CANCELLED, OTHER_FAILURE, REJECTED, Request, Response
from stubserve.inference.served_model import Waiter
from stubserve.inference.work import Work
from stubserve.instances.instance import Instance
from stubserve.instances.work import Results
from stubserve.schedulers.base import Scheduler
from stubserve.schedulers.depth import Depth
from stubserve.serving.alarm import Alarm
from stubserve.serving.delivery import Delivery
from stubserve.serving.stages import Stage
from stubserve.serving.suspects import Suspects

log = logging.getLogger("stubserve.model")

# Upstream's text for a model that reschedules a request and has a scheduler without rescheduling
RESCHEDULED_IN_VAIN = (
    "Failed to release request: Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is "
    "not configured to handle such a flag."
)


class Dispatcher(Stage):
    """The scheduler of one model version, its alarm, and the instances that serve. Lives on the event loop.

    It is the last stage in front of the instances, and the `WorkOwner` of their stubs. `when_none_serves` is called for
    a request that comes then, and raises ServeError if the request is refused. `at_stub` says whether a stub has a
    request, and equals of requests that killed their stubs are refused for `quarantine_s` seconds (`suspects`).
    """

    def __init__(
        self,
        model: str,
        scheduler: Scheduler,
        delivery: Delivery,
        clock: Callable[[], int] = time.monotonic_ns,
        alarm: Callable[[Callable[[], None]], Alarm] = Alarm,
        when_none_serves: Callable[[], None] = lambda: None,
        at_stub: Callable[[Request], bool] = lambda _: False,
        quarantine_s: float = 0.0,
    ) -> None:
        super().__init__()
        self._model = model
        self._delivery = delivery
        self._clock = clock
        self._make_alarm = alarm
        self._scheduler = scheduler
        self._depth = Depth(scheduler.plain)
        self._alarm: Alarm | None = None
        self.serving = 0
        self._when_none_serves = when_none_serves
        self.suspects = Suspects(model, scheduler.set_apart, at_stub, quarantine_s)
        # Whether the scheduler must know of responses and finished work
        self.has_slots = scheduler.has_slots
        # Whether there is nothing to decide while no request waits
        self._rests = scheduler.plain and not scheduler.has_slots
        self._closed = False
        # During a round: whether another is to follow
        self._polling = False
        self._again = False

    @property
    def queued(self) -> int:
        return self._scheduler.queued

    # Requests

    def enqueue(self, request: Request) -> None:
        now_ns = self._clock()
        try:
            if not self.serving:
                self._when_none_serves()
            if self.suspects.found:
                self.suspects.meet(request, now_ns)
            self._scheduler.enqueue(request, now_ns)
        except ServeError as refusal:
            self._delivery.refused(request, refusal)
            raise

    def take_place(self, request: Request) -> None:
        try:
            self._scheduler.take_place(request)
        except ServeError as refusal:
            self._delivery.refused(request, refusal)
            raise

    def leave_place(self, request: Request) -> bool:
        return self._scheduler.leave_place(request)

    def cancel(self, request: Request) -> None:
        self._scheduler.cancel(request)
        self.poll()

    def queue_again(self, requests: Iterable[Request]) -> None:
        """Takes back requests that were handed out, and that no stub has begun to execute."""
        for request in requests:
            request.compute_start_ns = 0
            try:
                self._scheduler.enqueue(request, request.queue_start_ns)
            except ServeError as refusal:
                self._delivery.fail((request,), refusal, REJECTED)

    def drain(self) -> list[Request]:
        return list(self._scheduler.drain())

    # Instances

    def limit(self, instance: Instance) -> None:
        """An instance is still to be started: from now on it counts for what instances share."""

    def forget(self, instance: Instance) -> None:
        """An instance is gone, or could not be started: it counts no longer."""

    def waiter_of(self, instance: Instance) -> Waiter | None:
        """The instance as the target of calls, with what it waits for itself."""
        return instance.waiter

    def join(self, instance: Instance) -> None:
        """An instance gets work from now on."""
        if self._closed:
            return
        self._depth.join(instance, instance.streams)
        self.serving = len(self._depth)
        self._offer(instance)
        self.poll()

    def leave(self, instance: Instance, finishing: bool = False) -> None:
        """An instance gets no more work, if it ever did. With `finishing` it still executes the work that it has."""
        self._depth.leave(instance)
        self.serving = len(self._depth)
        self._scheduler.instance_gone(instance)

    def close(self) -> None:
        """No instance gets work any more, and no alarm rings."""
        self._closed = True
        self._depth = Depth(False)
        self.serving = 0
        if self._alarm is not None:
            self._alarm.close()
            self._alarm = None

    # Reports of stubs

    def on_results(self, instance: Instance, results: Results) -> None:
        delivery = self._delivery
        if self.has_slots:
            for _, finished in results:
                for request, response in finished:
                    self._response_complete(request, response)
        if instance.differs:
            for _, finished in results:
                for _, response in finished:
                    response.transient = True
        # The next work first: the stub computes while the answers are written.
        self.work_done(instance, results)
        for work, finished in results:
            for request, response in finished:
                delivery.respond(request, response)
            # No client can read these before the next turn of the event loop.
            delivery.executed(work.requests, 0 if work.slots is work.requests else work.empty)

    def on_response(self, instance: Instance, request: Request, response: Response, start_ns: int) -> None:
        response.transient = instance.differs
        if response.final and self.has_slots:
            self._response_complete(request, response)
        self._delivery.respond_streamed(request, response, start_ns)

    def when_delivered(self, request: Request, act: Callable[[], None], batch: Collection[Request]) -> None:
        self._delivery.when_delivered(request, act, batch)

    def on_rescheduled(self, instance: Instance, request: Request) -> None:
        """Takes back a request that has just executed, or answers it if the scheduler has no rescheduling."""
        if not self._scheduler.reschedule(request, self._clock()):
            refusal = internal(RESCHEDULED_IN_VAIN)
            log.error("%s (model instance '%s')", refusal.message, instance.name)
            self._delivery.fail((request,), refusal, None)

    def work_done(self, instance: Instance, results: Results) -> None:
        """An instance has executed works, with these results, or is no longer full: it gets its next work at once."""
        scheduler, depth = self._scheduler, self._depth
        ripe_after_ns = 0
        try:
            for work, _ in results:
                if self.has_slots:
                    scheduler.work_done(instance, work)
                depth.done(instance, work)
            if instance.takes_work:
                open_, closed, ripe_after_ns, most = depth.room(instance)
                scheduler.instance_idle(instance, open_, closed, ripe_after_ns, most)
        except Exception:
            self._recover()
        # After most results of a lone client there is nothing to decide, and no batch that ripens.
        if not self._rests or ripe_after_ns or scheduler.queued:
            self.poll()

    def _response_complete(self, request: Request, response: Response) -> None:
        try:
            self._scheduler.response_complete(request, response)
        except Exception:
            log.exception("the scheduler of model '%s' failed at a response", self._model)

    # What to do now

    def poll(self) -> None:
        """Runs what can run now; nothing after `close`. Raises nothing."""
        if self._closed:
            return
        if self._polling:
            self._again = True
            return
        self._polling = True
        try:
            while True:
                self._again = self._poll_is_due = False
                now = self._clock()
                try:
                    decision = self._scheduler.poll(now)
                except Exception:
                    self._recover()
                    return
                if decision.wake_at_ns is not None:
                    self._wake_at(decision.wake_at_ns)
                elif self._alarm is not None:
                    self._alarm.set(None)
                if decision.ended_sequences:
                    self._drop_states(decision.ended_sequences)  # type: ignore[arg-type]
                if decision.run:
                    self._hand_out(decision.run, now)  # type: ignore[arg-type]  # the scheduler knows only instances
                for request, error in decision.answer:
                    outcome = CANCELLED if error.code is Code.CANCELLED else REJECTED
                    self._delivery.fail((request,), error, outcome)
                if not self._again:
                    return
        finally:
            self._polling = False

    def _hand_out(self, run: Sequence[tuple[Instance, Work]], now_ns: int) -> None:
        refusing: set[Instance] = set()
        last = run[0][0]
        for instance, work in run:
            if instance is not last:
                last.announce()
                last = instance
            for request in work.requests:
                request.compute_start_ns = now_ns
            try:
                self._depth.handed_out(instance, work, self._scheduler.queued)
                instance.execute(work)
                for request in work.requests:
                    if request.trace is not None:
                        request.trace.set_batch(instance.name, work.number, work.size)
            except Exception as raised:
                refusing.add(instance)
                self._on_refused(instance, work, raised)
        last.announce()
        for instance in refusing:
            if instance.takes_work:
                self._offer(instance, *self._depth.room(instance))
                # Not at once: a queue of such requests would be refused one by one without end.
                self.poll_soon()

    def _offer(
        self, instance: Instance, works: int = 1, closed: int = 0, ripe_after_ns: int = 0, most: int = 0
    ) -> None:
        """An instance has room for this much work (`Scheduler.instance_idle`)."""
        self._scheduler.instance_idle(instance, works, closed, ripe_after_ns, most)

    @staticmethod
    def _drop_states(over: Sequence[tuple[Instance, int]]) -> None:
        by_instance: dict[Instance, list[int]] = {}
        for instance, sequence in over:
            by_instance.setdefault(instance, []).append(sequence)
        for instance, sequences in by_instance.items():
            instance.drop_states(sequences)

    def _on_refused(self, instance: Instance, work: Work, raised: Exception) -> None:
        if isinstance(raised, ServeError):
            error = raised
        else:
            log.error("a batch of model '%s' could not be handed to '%s'", self._model, instance.name, exc_info=raised)
            error = internal(
                f"the request could not be handed to model instance '{instance.name}'; see the server's log"
            )
        self._scheduler.work_done(instance, work)
        self._depth.handed_back(instance, work)
        self._delivery.fail(work.requests, error, OTHER_FAILURE)

    def _recover(self) -> None:
        """The scheduler has raised: requests that it may have lost are answered."""
        log.exception("the scheduler of model '%s' failed", self._model)
        error = internal(f"unexpected error in the scheduler of model '{self._model}'; see the server's log")
        try:
            self._delivery.fail(self.drain(), error, OTHER_FAILURE)
            for instance in self._depth.idle():
                self._offer(instance)  # type: ignore[arg-type]  # the scheduler knows only instances
        except Exception:
            log.exception("the scheduler of model '%s' cannot be used any more", self._model)

    def _wake_at(self, at_ns: int) -> None:
        if self._closed:
            return
        if self._alarm is None:
            try:
                self._alarm = self._make_alarm(self.poll)
            except OSError:  # no descriptor is left; the event loop's own timers are late by up to a millisecond
                self._loop.call_later((at_ns - self._clock()) / 1e9, self.poll_soon)
                return
        self._alarm.set(at_ns)
