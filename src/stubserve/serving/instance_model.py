"""One loaded version of a model with instances, as the rest of the server sees it.

A request comes in by `submit`, waits in the dispatcher's scheduler, is executed by an instance, and its answer goes out
by the delivery. This module joins these parts, and gives them the instances' reports.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from stubserve.errors import Code, ServeError, unavailable
from stubserve.inference.request import BACKEND_FAILURE, OTHER_FAILURE, REJECTED, Request, Response
from stubserve.inference.served_model import Waiter
from stubserve.inference.statistics import ModelStatistics
from stubserve.instances.instance import Instance, InstanceState
from stubserve.instances.stub_requests import Left
from stubserve.instances.work import Results
from stubserve.memory.heap_account import HeapAccount
from stubserve.schedulers.base import Scheduler
from stubserve.schedulers.factory import create_scheduler
from stubserve.serving.delivery import Delivery
from stubserve.serving.dispatcher import Dispatcher
from stubserve.serving.model_instances import ModelInstances
from stubserve.serving.suspects import Suspects

if TYPE_CHECKING:
    # A server without a rate limiter, or without sequences, does not load them.
    from stubserve.schedulers.rate_limiter import RateLimiter
    from stubserve.serving.limited_dispatcher import LimitedDispatcher

log = logging.getLogger("stubserve.model")


class InstanceModel(ModelInstances):
    """A `ServedModel` of instances, and their `InstanceOwner`. Lives on the event loop.

    `scheduler` is by default the one that the configuration demands. `limiter` lets instances share resources, None for
    no limits. While no instance serves and one is restarted, requests wait in the queue for `restart_wait_s` seconds
    after the last death; then they are refused. Requests that were being executed at several deaths are refused for
    `quarantine_s` seconds (`suspects`).
    """

    needs: Collection[str] = ()

    def __init__(
        self,
        name: str,
        version: int,
        config: Any,
        scheduler: Scheduler | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        limiter: RateLimiter | None = None,
        restart_wait_s: float = 0.0,
        quarantine_s: float = 0.0,
    ) -> None:
        # While the model is loaded, only the instances and the version policy in its configuration change.
        super().__init__(name, version, config, clock)
        self.statistics = ModelStatistics(self._memory_usage)
        keep_order = config.dynamic_batching.preserve_ordering
        self._delivery = Delivery(self.signature, self.statistics, keep_order)
        scheduler = scheduler or create_scheduler(config)
        # The dispatcher, if its instances share resources with other models
        self._limits: LimitedDispatcher | None = None
        self._dispatcher: Dispatcher
        if limiter is None:
            self._dispatcher = Dispatcher(name, scheduler, self._delivery, clock)
        else:
            from stubserve.serving.limited_dispatcher import LimitedDispatcher

            self._dispatcher = self._limits = LimitedDispatcher(name, scheduler, self._delivery, limiter, clock)
        self.poll = self._run = self._dispatcher.poll
        self._poll_soon = self._dispatcher.poll_soon
        self._leave_place = self._dispatcher.leave_place
        self._restart_wait_s = restart_wait_s
        self._suspects = Suspects(name, scheduler.set_apart, self._at_stub, quarantine_s)
        self._enqueue = self._dispatcher.enqueue
        # While no instance serves and requests wait for a restart: the timer that ends the wait
        self._outage: asyncio.TimerHandle | None = None

    # Requests

    def _queue(self, request: Request, runs: bool = True) -> None:
        dispatcher = self._dispatcher
        try:
            if not runs:
                dispatcher.take_place(request)
                return
            if not dispatcher.serving:
                if self.down():
                    raise self._unavailable()
                self._wake()
            dispatcher.enqueue(request, self._clock())
        except ServeError as error:
            # As upstream: a request that does not fit this model is not counted.
            if error.code is not Code.INVALID_ARG:
                request.outcome = REJECTED
                self.statistics.record_failure(request)
            raise

    def _meet(self, request: Request, now_ns: int) -> None:
        """Queues a request while there are suspects. Raises ServeError as the queue does."""
        self._suspects.meet(request, now_ns)
        if not self._suspects:
            self._dispatcher.enqueue = self._enqueue
        self._enqueue(request, now_ns)

    def _at_stub(self, request: Request) -> bool:
        return any(one.stub is not None and one.stub.work.has(request) for one in self._everyone)

    def cancel(self, request: Request) -> None:
        request.cancelled = True
        request.resume()
        self._delivery.cancelled(request)
        if self._cache is not None:
            self._cache.cancel(request)
        self._dispatcher.cancel(request)
        for instance in self._everyone:
            instance.cancel(request)

    @property
    def queued(self) -> int:
        return self._dispatcher.queued

    # Reports of instances

    def on_ready(self, instance: Instance) -> None:
        if not instance.passive and instance in self.instances:
            self._end_outage()
            self._dispatcher.join(instance)

    def on_results(self, instance: Instance, results: Results) -> None:
        dispatcher, delivery = self._dispatcher, self._delivery
        if dispatcher.has_slots:
            for _, finished in results:
                for request, response in finished:
                    dispatcher.response_complete(request, response)
        # The next work first: the stub computes while the answers are written.
        dispatcher.work_done(instance, results)
        for work, finished in results:
            for request, response in finished:
                delivery.respond(request, response)
            # No client can read these before the next turn of the event loop.
            delivery.executed(work.requests, 0 if work.slots is work.requests else work.empty)

    def on_response(self, request: Request, response: Response, start_ns: int) -> None:
        if response.final and self._dispatcher.has_slots:
            self._dispatcher.response_complete(request, response)
        self._delivery.respond_streamed(request, response, start_ns)

    def when_passed_on(self, request: Request, act: Callable[[], None], batch: Collection[Request]) -> None:
        self._delivery.when_passed_on(request, act, batch)

    def on_rescheduled(self, instance: Instance, request: Request) -> None:
        self._dispatcher.reschedule(instance, request)

    def on_death(self, instance: Instance, error: ServeError, left: Left) -> None:
        if instance.passive:
            return
        if instance.state is not InstanceState.STOPPED:  # then the server itself has killed what did not end
            self._suspects.on_death(instance.name, (*left.executing, *reversed(left.open)), self._clock())
        if self._suspects:
            self._dispatcher.enqueue = self._meet
        self._dispatcher.leave(instance)
        self._delivery.fail(left.executing, error, BACKEND_FAILURE)
        self._delivery.fail(left.open, error, None)  # their execution has been counted
        self._delivery.end_traces()
        self._dispatcher.queue_again(left.waiting)
        # First the scheduler's answers to requests that were bound to this instance
        self.poll()
        if self.down() and self._restart_wait_s and self._restarting():
            loop = asyncio.get_running_loop()
            self._outage = loop.call_later(self._restart_wait_s, self._on_outage_too_long)
        self._refuse_if_down()

    def on_given_up(self) -> None:
        if self._outage is not None and not self._restarting():
            self._end_outage()
            self._refuse_if_down()

    def _on_outage_too_long(self) -> None:
        """Requests have waited for an instance long enough. New ones are refused until an instance serves again."""
        self._outage = None
        self._refuse_if_down()

    def _end_outage(self) -> None:
        if self._outage is not None:
            self._outage.cancel()
            self._outage = None

    def count_executed(self, requests: Sequence[Request]) -> None:
        """Counts a batch that warmed an instance up, which was executed without having been submitted."""
        self._delivery.executed(requests)

    def _refuse_if_down(self) -> None:
        if self.down():
            self._delivery.fail(self._dispatcher.drain(), self._unavailable(), OTHER_FAILURE)

    # Its instances

    def begin_with(self, instances: Sequence[Instance]) -> None:
        """Sets its first instances, which are still to be started."""
        self.instances = instances
        self.limit(instances)

    def limit(self, instances: Sequence[Instance]) -> None:
        """Makes instances that are still to be started share resources. Their demands have been checked."""
        if self._limits is not None:
            for instance in instances:
                spec = instance.spec
                self._limits.limit(instance, spec.resources, spec.device_id, spec.priority)

    def unlimit(self, instances: Sequence[Instance]) -> None:
        """Instances are gone, or could not be started: their demands no longer count."""
        if self._limits is not None:
            for instance in instances:
                self._limits.forget(instance)

    def change_instances(
        self, instances: Sequence[Instance], config: Any, stop_timeout_s: float
    ) -> list[asyncio.Task[None]]:
        """Replaces the instances: new ones join, and those left out are retired.

        The returned tasks are done when the retired instances are gone that a load waits for.
        """
        self.config = config
        before, self.instances = self.instances, instances
        for instance in instances:
            if instance not in before and instance.state is InstanceState.READY:
                self.on_ready(instance)
        leaving = [instance for instance in before if instance not in instances]
        tasks = [task for instance in leaving for task in self._let_go(instance, stop_timeout_s)]
        self._wake()
        self._refuse_if_down()
        return tasks

    def _let_go(self, instance: Instance, stop_timeout_s: float) -> Sequence[asyncio.Task[None]]:
        """Retires an instance that serves. The tasks, if any, are done when it is gone."""
        self._dispatcher.leave(instance, finishing=True)
        return (self.retire(instance, stop_timeout_s),)

    def retire(
        self, instance: Instance, stop_timeout_s: float, until: Callable[[], Awaitable[None]] | None = None
    ) -> asyncio.Task[None]:
        task = super().retire(instance, stop_timeout_s, until)
        if self._limits is not None:
            task.add_done_callback(lambda _: self.unlimit((instance,)))
        return task

    def stands(self) -> bool:
        return True

    def _waiter_of(self, instance: Instance) -> Waiter | None:
        waiter = instance.waiter
        return waiter if waiter is None or self._limits is None else self._limits.seen(instance, waiter)

    # Readiness and the end

    def down(self) -> bool:
        """Whether no instance serves, sleeps, or will be restarted in time."""
        return not (self._dispatcher.serving or self._outage is not None or self._asleep)

    async def drained(self, patience_s: float = 0.0) -> bool:
        return await self._delivery.drained_unless_hung(self._running, patience_s)

    async def stop(self, timeout_s: float) -> None:
        await self._end_sleep()
        self._end_outage()
        self._dispatcher.close()
        self._refuse_if_down()
        await self._stop_instances(timeout_s)
        self._refuse_if_down()

    # Sleep

    def _rest(self, instance: Instance) -> None:
        self._dispatcher.leave(instance)

    def _on_cannot_wake(self, error: ServeError) -> None:
        if not self._dispatcher.serving:
            self._delivery.fail(self._dispatcher.drain(), error, OTHER_FAILURE)

    def _unavailable(self) -> ServeError:
        error = unavailable(
            f"model '{self.name}' version {self.version} has no running instance: "
            + (self.why_not_ready() or "it is being ended")
        )
        if self._restarting():
            error.retry_after_s = 1
        return error


def instance_model(
    name: str,
    version: int,
    config: Any,
    limiter: RateLimiter | None = None,
    max_queue_size: int = 0,
    restart_wait_s: float = 0.0,
    quarantine_s: float = 0.0,
    heap: HeapAccount | None = None,
) -> InstanceModel:
    """The kind of model that a completed and validated configuration asks for. Raises ServeError UNSUPPORTED.

    `max_queue_size` is the server's own limit, as `create_scheduler` has it. `heap` counts states of sequences.
    """
    scheduler = create_scheduler(config, max_queue_size)
    if not config.HasField("sequence_batching"):
        return InstanceModel(name, version, config, scheduler, time.monotonic_ns, limiter, restart_wait_s, quarantine_s)
    from stubserve.schedulers.sequence.batcher import SequenceBatcher
    from stubserve.serving.sequence_model import SequenceModel

    assert isinstance(scheduler, SequenceBatcher)
    if scheduler.states is not None:
        scheduler.states.heap = heap
    return SequenceModel(name, version, config, scheduler, time.monotonic_ns, limiter, restart_wait_s, quarantine_s)
