"""One loaded version of a model with instances, as the rest of the server sees it.

A request passes its `stages`, and its answer goes out by the delivery. This module joins these parts, and handles the
deaths of instances.
"""

# Compiled by mypyc.
from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from stubserve.errors import ServeError, unavailable
from stubserve.inference.request import BACKEND_FAILURE, OTHER_FAILURE, Request
from stubserve.inference.served_model import Waiter
from stubserve.inference.statistics import ModelStatistics
from stubserve.instances.instance import Instance, InstanceState
from stubserve.instances.keeper import Death
from stubserve.instances.work import WorkOwner
from stubserve.memory.heap_account import HeapAccount
from stubserve.schedulers.base import Scheduler
from stubserve.schedulers.factory import create_scheduler
from stubserve.serving.alarm import Alarm
from stubserve.serving.answering import StageMaker
from stubserve.serving.delivery import Delivery
from stubserve.serving.dispatcher import Dispatcher
from stubserve.serving.model_instances import ModelInstances

log = logging.getLogger("stubserve.model")


class InstanceModel(ModelInstances):
    """A `ServedModel` of instances, and their `InstanceOwner`. Lives on the event loop.

    `scheduler` is by default the one that the configuration demands. `make_queue` makes the queue, which may limit what
    instances share, and `front` the stages in front of the queue. While no instance serves and one is restarted,
    requests wait in the queue for `restart_wait_s` seconds after the last death; then they are refused. Requests that
    were being executed at several deaths are refused for `quarantine_s` seconds (`suspects`).
    """

    needs: Collection[str] = ()

    def __init__(
        self,
        name: str,
        version: int,
        config: Any,
        scheduler: Scheduler | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        make_queue: Callable[..., Dispatcher] = Dispatcher,
        restart_wait_s: float = 0.0,
        quarantine_s: float = 0.0,
        front: Sequence[StageMaker] = (),
    ) -> None:
        # While the model is loaded, only the instances and the version policy in its configuration change.
        super().__init__(name, version, config, clock)
        self.statistics = ModelStatistics(self._memory_usage)
        keep_order = config.dynamic_batching.preserve_ordering
        self.delivery = Delivery(self.signature, self.statistics, keep_order)
        self._dispatcher = make_queue(
            name,
            scheduler or create_scheduler(config),
            self.delivery,
            clock,
            Alarm,
            self._check_up,
            self._at_stub,
            quarantine_s,
        )
        self._lay(front, self._dispatcher)
        self._restart_wait_s = restart_wait_s
        # While no instance serves and requests wait for a restart: the timer that ends the wait
        self._outage: asyncio.TimerHandle | None = None

    # Requests

    def _check_up(self) -> None:
        """A request comes while no instance serves. Raises ServeError if none will in time."""
        if self.down():
            raise self._unavailable()
        self._wake()

    def _at_stub(self, request: Request) -> bool:
        return any(one.seat is not None and one.seat.work.has(request) for one in self._everyone)

    def cancel(self, request: Request) -> None:
        super().cancel(request)
        for instance in self._everyone:
            instance.cancel(request)

    @property
    def queued(self) -> int:
        return self._dispatcher.queued

    # Reports of instances

    @property
    def reports(self) -> WorkOwner:
        return self._dispatcher

    def on_ready(self, instance: Instance) -> None:
        if not instance.passive and instance in self.instances:
            self._end_outage()
            self._dispatcher.join(instance)

    def on_death(self, deaths: Sequence[Death]) -> None:
        deaths = [death for death in deaths if not death.instance.passive]
        if not deaths:
            return
        dispatcher = self._dispatcher
        # Of those that are stopped the server itself has killed what did not end.
        died = [one for one in deaths if one.instance.state is not InstanceState.STOPPED]
        executed = [request for _, _, left in died for request in (*left.executing, *reversed(left.open))]
        dispatcher.suspects.on_death("', '".join(one.instance.name for one in died), executed, self.clock())
        for death in deaths:
            dispatcher.leave(death.instance)
        for _, error, unanswered in deaths:
            self.delivery.fail(unanswered.executing, error, BACKEND_FAILURE)
            self.delivery.fail(unanswered.open, error, None)  # their execution has been counted
        self.delivery.end_traces()
        for death in deaths:
            dispatcher.queue_again(death.unanswered.waiting)
        # First the scheduler's answers to requests that were bound to these instances
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

    def _refuse_if_down(self) -> None:
        if self.down():
            self.delivery.fail(self._dispatcher.drain(), self._unavailable(), OTHER_FAILURE)

    # Its instances

    def begin_with(self, instances: Sequence[Instance]) -> None:
        """Sets its first instances, which are still to be started."""
        self.instances = instances
        self.limit(instances)

    def limit(self, instances: Sequence[Instance]) -> None:
        """Makes instances that are still to be started share resources. Their demands have been checked."""
        for instance in instances:
            self._dispatcher.limit(instance)

    def unlimit(self, instances: Sequence[Instance]) -> None:
        """Instances are gone, or could not be started: their demands no longer count."""
        for instance in instances:
            self._dispatcher.forget(instance)

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
        task.add_done_callback(lambda _: self._dispatcher.forget(instance))
        return task

    def has_same_members(self) -> bool:
        return True

    def _waiter_of(self, instance: Instance) -> Waiter | None:
        return self._dispatcher.waiter_of(instance)

    # Readiness and the end

    def down(self) -> bool:
        """Whether no instance serves, sleeps, or will be restarted in time."""
        return not (self._dispatcher.serving or self._outage is not None or self._asleep)

    async def drained(self, patience_s: float = 0.0) -> bool:
        return await self.delivery.drained_unless_hung(self._running, patience_s)

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
            self.delivery.fail(self._dispatcher.drain(), error, OTHER_FAILURE)

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
    make_queue: Callable[..., Dispatcher] = Dispatcher,
    max_queue_size: int = 0,
    restart_wait_s: float = 0.0,
    quarantine_s: float = 0.0,
    heap: HeapAccount | None = None,
    front: Sequence[StageMaker] = (),
) -> InstanceModel:
    """The kind of model that a completed and validated configuration asks for. Raises ServeError UNSUPPORTED.

    `max_queue_size` is the server's own limit, as `create_scheduler` has it. `heap` counts states of sequences.
    """
    scheduler = create_scheduler(config, max_queue_size)
    more = (time.monotonic_ns, make_queue, restart_wait_s, quarantine_s, front)
    if not config.HasField("sequence_batching"):
        return InstanceModel(name, version, config, scheduler, *more)
    from stubserve.sequences.batcher import SequenceBatcher
    from stubserve.sequences.model import SequenceModel

    assert isinstance(scheduler, SequenceBatcher)
    if scheduler.states is not None:
        scheduler.states.heap = heap
    return SequenceModel(name, version, config, scheduler, *more)
