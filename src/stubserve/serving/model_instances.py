"""The instances of a model version: those that serve it, and those that finish their work and leave."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from stubserve.inference.request import Request
from stubserve.inference.served_model import InstanceFacts, Waiter
from stubserve.instances.instance import Instance, InstanceState
from stubserve.serving.answering import AnsweringModel

log = logging.getLogger("stubserve.model")

_READINESS_TIMEOUT_S = 5.0


class ModelInstances(AnsweringModel):
    """The part of a `ServedModel` that is about its instances; `instances` are the wanted ones, ready or not."""

    def __init__(self, name: str, version: int, config: Any, clock: Callable[[], int]) -> None:
        super().__init__(name, version, config, clock)
        self.instances: Sequence[Instance] = ()
        # Retired instances, while they finish their work
        self._retiring: dict[Instance, asyncio.Task[None]] = {}

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
            instance.part()
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
            if instance.stub is not None and (running := instance.stub.work.running) is not None
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

    def takers(self, request: Request | None) -> Sequence[Waiter]:
        """The instances that execute a request. If none does, those that may, now or after a restart."""
        if request is not None and self._cache is not None:
            request = self._cache.leader_of(request)
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
