"""Models without requests for a while: their instances end, and start again with the next request (--sleep-after-secs).

Guarantees:

- a model that sleeps is ready. A request to it waits in the queue, as it would behind others, until an instance serves;
- it falls asleep only with nothing under way. A request that comes while its instances finalize starts them again when
  they are gone;
- if no instance can be started, all waiting requests get the reason, and each instance is tried again as after a death.

A request costs nothing more: now and then a timer checks whether the model has counted any.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from stubserve.errors import ServeError
from stubserve.instances.instance import Instance, InstanceState
from stubserve.serving.model_instances import ModelInstances

log = logging.getLogger("stubserve.model")

# How many checks there are in the time after which a model sleeps
_LOOKS = 4
# How long a model may take to finalize
_STOP_TIMEOUT_S = 30.0


class SleepingModel(ModelInstances):
    """The part of a `ServedModel` with instances that lets them sleep."""

    def __init__(self, name: str, version: int, config: Any, clock: Callable[[], int]) -> None:
        super().__init__(name, version, config, clock)
        self._sleep_after_s = 0.0
        self._asleep = False
        self._change: asyncio.Task[None] | None = None
        # How many requests had been answered at the last look, and at how many looks it has been so many
        self._answered = 0
        self._quiet_looks = 0
        self._next_look: asyncio.TimerHandle | None = None

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
