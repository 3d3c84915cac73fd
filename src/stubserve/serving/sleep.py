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
from collections.abc import Sequence
from typing import Protocol

from stubserve.errors import ServeError
from stubserve.instances.instance import Instance, InstanceState

log = logging.getLogger("stubserve.model")

# How many checks there are in the time after which a model sleeps
_LOOKS = 4
# How long a model may take to finalize
_STOP_TIMEOUT_S = 30.0


class Sleeper(Protocol):
    """A model that may sleep."""

    name: str
    version: int

    @property
    def instances(self) -> Sequence[Instance]: ...

    @property
    def under_way(self) -> int: ...

    @property
    def in_use(self) -> int:
        """The number of reasons that keep it from sleeping: requests under way, and sequences that are not over."""

    @property
    def answered(self) -> int:
        """Requests that were ever answered, without those from the cache."""

    def on_asleep(self, instance: Instance) -> None: ...

    def on_cannot_wake(self, error: ServeError) -> None: ...


class Sleep:
    """Lets a model sleep after that many seconds without a request, 0 for never; at once if it starts `asleep`."""

    def __init__(self, model: Sleeper, after_s: float, asleep: bool) -> None:
        self._model = model
        self._after_s = after_s
        self._loop = asyncio.get_running_loop()
        self.asleep = asleep
        self._change: asyncio.Task[None] | None = None
        self._answered = 0
        self._quiet_looks = 0
        self._timer: asyncio.TimerHandle | None = None
        self._look_later()

    def wake(self) -> None:
        if self._change is None:
            self._change = self._loop.create_task(self._wake())

    async def close(self) -> None:
        """Stops the timer and the change under way."""
        self.asleep = False
        if self._timer is not None:
            self._timer.cancel()
        if self._change is not None:
            self._change.cancel()
            await asyncio.gather(self._change, return_exceptions=True)

    def _look_later(self) -> None:
        if self._after_s:
            self._timer = self._loop.call_later(self._after_s / _LOOKS, self._look)

    def _look(self) -> None:
        self._look_later()
        model = self._model
        if self.asleep or model.in_use or model.answered != self._answered:
            self._answered = model.answered
            self._quiet_looks = 0
            return
        self._quiet_looks += 1
        if self._quiet_looks >= _LOOKS and all(one.state is InstanceState.READY for one in model.instances):
            self._quiet_looks = 0
            self.asleep = True
            self._change = self._loop.create_task(self._lie_down())

    async def _lie_down(self) -> None:
        model = self._model
        instances = list(model.instances)
        log.info(
            "'%s' version %d has had no request for %g s and sleeps until the next",
            model.name,
            model.version,
            self._after_s,
        )
        for instance in instances:
            model.on_asleep(instance)
        await asyncio.gather(*(instance.sleep(_STOP_TIMEOUT_S) for instance in instances))
        self._change = None
        if model.under_way:
            self.wake()

    async def _wake(self) -> None:
        asleep = [instance for instance in self._model.instances if instance.state is InstanceState.ASLEEP]
        results = await asyncio.gather(*(instance.wake() for instance in asleep), return_exceptions=True)
        self.asleep = False
        self._change = None
        errors = [result for result in results if isinstance(result, ServeError)]
        if errors and len(errors) == len(results):
            self._model.on_cannot_wake(errors[0])
