"""The instances of a model version: those that serve it, those that finish their work and leave, and their sleep.

**Sleep.** The instances of a model without requests for a while end, and start again with the next request
(--sleep-after-secs):

- a model that sleeps is ready. A request to it waits in the queue, as it would behind others, until an instance serves;
- it falls asleep only with nothing under way. A request that comes while its instances finalize starts them again when
  they are gone;
- if no instance can be started, all waiting requests get the reason, and each instance is tried again as after a death.

A request costs nothing more: now and then a timer checks whether the model has counted any.
"""

# Compiled by mypyc.
from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from stubserve.errors import ServeError
from stubserve.inference.request import Request
from stubserve.inference.served_model import InstanceFacts, Waiter
from stubserve.instances.instance import Instance, InstanceState
from stubserve.serving.answering import AnsweringModel

log = logging.getLogger("stubserve.model")

_READINESS_TIMEOUT_S = 5.0
# How many checks there are in the time after which a model sleeps
_LOOKS = 4
# How long a model may take to finalize before it sleeps
_STOP_TIMEOUT_S = 30.0


class ModelInstances(AnsweringModel):
    """The part of a `ServedModel` that is about its instances; `instances` are the wanted ones, ready or not."""

    def __init__(self, name: str, version: int, config: Any, clock: Callable[[], int]) -> None:
        super().__init__(name, version, config, clock)
        self.instances: Sequence[Instance] = ()
        # Retired instances, while they finish their work
        self._retiring: dict[Instance, asyncio.Task[None]] = {}
        self._sleep_after_s = 0.0
        self._asleep = False
        # The task that puts the model to sleep or wakes it; how many requests had been answered at the last look, and
        # for how many looks so many
        self._change: asyncio.Task[None] | None = None
        self._answered = 0
        self._quiet_looks = 0
        self._next_look: asyncio.TimerHandle | None = None

    @property
    def _everyone(self) -> tuple[Instance, ...]:
        return (*self.instances, *self._retiring)

    def instance_facts(self) -> Sequence[InstanceFacts]:
        return [instance.facts() for instance in self._everyone]

    def retire(
        self, instance: Instance, stop_timeout_s: float, until: Callable[[], Awaitable[None]] | None = None
    ) -> asyncio.Task[None]:
        """A task in which an instance finishes its work, however long it takes, then finalizes and ends.

        If `until` is given, the instance still takes work until this is over.
        """
        if until is None:
            instance.drain()
        else:
            instance.end_restarts()
        task = asyncio.get_running_loop().create_task(self._end(instance, stop_timeout_s, until))
        self._retiring[instance] = task
        task.add_done_callback(lambda _: self._retiring.pop(instance))
        return task

    async def _stop_instances(self, timeout_s: float) -> None:
        """Finalizes and ends all, by force after `timeout_s`."""
        instances = self._everyone
        for task in self._retiring.values():
            task.cancel()
        await asyncio.gather(*(instance.stop(timeout_s) for instance in instances))

    def _restarting(self) -> bool:
        """Whether an instance that gets requests is restarting after a death."""
        return any(one.state is InstanceState.RESTARTING and not one.passive for one in self.instances)

    def _running(self) -> dict[str, int]:
        """The numbers of the batches that are being executed, by instance."""
        return {
            instance.name: running[0]
            for instance in self._everyone
            if instance.seat is not None and (running := instance.seat.work.running) is not None
        }

    def why_not_ready(self) -> str:
        """Empty if every instance is ready, else the reason of the first that is not."""
        for instance in self.instances:
            if reason := instance.why_not_ready():
                return reason
        return ""

    def checks_readiness(self) -> bool:
        """Whether the model defines `is_ready`."""
        return any(instance.checks_readiness for instance in self.instances)

    async def _ask_whether_ready(self) -> str:
        return next(filter(None, await asyncio.gather(*map(_ask_whether_ready, self.instances))), "")

    def _memory_usage(self) -> list[dict[str, Any]]:
        """The memory of the stubs in the statistics extension: upstream's row for a model's CPU memory.

        It counts memory that belongs to a stub alone, without shared libraries, or tensors in the arena.
        """
        total = sum(instance.memory() for instance in self._everyone)
        return [{"type": "CPU", "id": 0, "byte_size": total}] if total else []

    def waiters_for(self, request: Request | None) -> Sequence[Waiter]:
        """The instances that execute a request. If none does, those that may, now or after a restart."""
        if request is not None:
            request = self._leader_of(request)
        waiters = [waiter for instance in self._everyone if (waiter := self._waiter_of(instance)) is not None]
        if request is not None and request.compute_start_ns:
            running = [waiter for waiter in waiters if waiter.has(request)]
            if running:
                return running
        return waiters

    def _waiter_of(self, instance: Instance) -> Waiter | None:
        return instance.waiter

    async def _end(
        self, instance: Instance, stop_timeout_s: float, until: Callable[[], Awaitable[None]] | None
    ) -> None:
        if until is not None:
            await until()
            instance.drain()
        await instance.drained()
        try:
            await instance.stop(stop_timeout_s)
        except Exception:
            log.exception("instance '%s', which is not wanted any more, could not be ended", instance.name)

    # Sleep

    def sleep_after(self, after_s: float, asleep: bool) -> None:
        """Lets the model sleep after that many seconds without a request, 0 for never; at once if it is `asleep`."""
        self._sleep_after_s = after_s
        self._asleep = asleep
        self._look_later()

    @property
    def in_use(self) -> int:
        """The number of reasons that keep it from sleeping."""
        return self.under_way

    def _rest(self, instance: Instance) -> None:
        """An instance gets no more work for now."""
        raise NotImplementedError

    def _on_cannot_wake(self, error: ServeError) -> None:
        """No instance could be started."""
        raise NotImplementedError

    def _wake(self) -> None:
        """Starts sleeping instances."""
        if self._asleep and self._change is None:
            self._change = asyncio.get_running_loop().create_task(self._get_up())

    async def _end_sleep(self) -> None:
        """Stops the timer and the change under way."""
        self._asleep = False
        if self._next_look is not None:
            self._next_look.cancel()
        if self._change is not None:
            self._change.cancel()
            await asyncio.gather(self._change, return_exceptions=True)

    def _look_later(self) -> None:
        if self._sleep_after_s:
            self._next_look = asyncio.get_running_loop().call_later(self._sleep_after_s / _LOOKS, self._look)

    def _look(self) -> None:
        self._look_later()
        statistics = self.statistics
        # Without those that the cache has answered
        answered = statistics.success_count - statistics.cache_hit_count + statistics.fail_count
        if self._asleep or self.in_use or answered != self._answered:
            self._answered = answered
            self._quiet_looks = 0
            return
        self._quiet_looks += 1
        if self._quiet_looks >= _LOOKS and all(one.state is InstanceState.READY for one in self.instances):
            self._quiet_looks = 0
            self._asleep = True
            self._change = asyncio.get_running_loop().create_task(self._lie_down())

    async def _lie_down(self) -> None:
        instances = list(self.instances)
        text = "'%s' version %d has had no request for %g s and sleeps until the next"
        log.info(text, self.name, self.version, self._sleep_after_s)
        for instance in instances:
            self._rest(instance)
        await asyncio.gather(*(instance.sleep(_STOP_TIMEOUT_S) for instance in instances))
        self._change = None
        if self.under_way:
            self._wake()

    async def _get_up(self) -> None:
        asleep = [instance for instance in self.instances if instance.state is InstanceState.ASLEEP]
        results = await asyncio.gather(*(instance.wake() for instance in asleep), return_exceptions=True)
        self._asleep = False
        self._change = None
        errors = [result for result in results if isinstance(result, ServeError)]
        if errors and len(errors) == len(results):
            self._on_cannot_wake(errors[0])


async def _ask_whether_ready(instance: Instance) -> str:
    """Asks the model of an instance, for at most five seconds."""
    try:
        return await asyncio.wait_for(instance.ask_whether_ready(), _READINESS_TIMEOUT_S)
    except asyncio.TimeoutError:
        return "Timed out waiting for user-defined is_ready() response"
    except Exception as unexpected:
        # The caller waits for an answer, and an instance that cannot be asked is not ready.
        log.exception("instance '%s' could not be asked whether it is ready", instance.name)
        return f"instance '{instance.name}' could not be asked whether it is ready: {unexpected!r}"
