"""One instance of a model: works in a seat of a stub, which its keeper keeps alive.

An instance is starting, ready, asleep (without a stub until the next request), waiting to restart, failed (its stub
died too often), draining (it finishes its work) or stopped. What its stub answers does not come through here.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from stubserve.inference.request import Request
from stubserve.inference.served_model import InstanceFacts, Waiter
from stubserve.inference.work import Work
from stubserve.instances import deadlock
from stubserve.instances.death import RestartPolicy
from stubserve.instances.seat import Seat
from stubserve.instances.stub import Stub
from stubserve.model_config.complete import InstanceSpec

log = logging.getLogger("stubserve.instances")


class InstanceState(enum.Enum):
    STARTING = "starting"
    READY = "ready"
    ASLEEP = "asleep"
    RESTARTING = "restarting"
    FAILED = "failed"
    DRAINING = "draining"
    STOPPED = "stopped"


_FINE = (InstanceState.READY, InstanceState.ASLEEP)
# The end of a seat in one of these states is intended
ENDING = (InstanceState.DRAINING, InstanceState.STOPPED, InstanceState.ASLEEP)


class InstanceKeeper(Protocol):
    """What keeps the stub of instances alive (`keeper`), as they see it. The instances add and remove themselves."""

    instances: list[Instance]
    policy: RestartPolicy
    restarts: int
    launch: Launch

    @property
    def has_room(self) -> bool: ...

    async def start(self) -> None: ...

    async def wake(self) -> None: ...

    def look_whether_wanted(self) -> None: ...

    async def give_up_start(self) -> None: ...


class Instance:
    """A named instance. A passive one is loaded and watched like any other, but gets no requests."""

    def __init__(self, spec: InstanceSpec, keeper: InstanceKeeper) -> None:
        self.spec = spec
        self.name = spec.name
        self.passive = spec.passive
        self.state = InstanceState.STARTING
        self.seat: Seat | None = None
        self.keeper = keeper
        keeper.instances.append(self)
        self.last_error = ""
        # Whether its stub runs other files than those of its model's identity
        self.differs = False
        # Whether the instance is started again after a death
        self.wanted = True
        # While it leaves: set when it has no more work
        self._drained: asyncio.Event | None = None

    async def start(self) -> None:
        """Launches the stub, with others in it. Raises ServeError if their model does not load."""
        await self.keeper.start()

    def begin_asleep(self) -> None:
        """In place of `start`: the stub is launched by `wake`."""
        self.state = InstanceState.ASLEEP

    async def sleep(self, timeout_s: float) -> None:
        """Finalizes the model and ends the stub, by force after `timeout_s`, until `wake`."""
        self.state = InstanceState.ASLEEP
        await self._end_seat(timeout_s)

    async def wake(self) -> None:
        """As `start`, for a sleeping instance. If it raises, the start is tried again as after a death.

        It is cancelled if no instance of the stub is wanted any more.
        """
        await self.keeper.wake()

    def execute(self, work: Work) -> None:
        assert self.seat is not None
        self.seat.work.give(work)

    def announce(self) -> None:
        if self.seat is not None:
            self.seat.work.ring.announce_soon()

    def drop_states(self, sequences: Sequence[int]) -> None:
        if self.seat is not None:
            self.seat.work.drop_states(sequences)

    @property
    def takes_work(self) -> bool:
        """Whether new work has a chance to be executed."""
        return self.seat is not None and self._drained is None and not self.seat.work.full

    @property
    def streams(self) -> int:
        """How many requests may be open at a time, 0 for any number."""
        return self.seat.work.streams if self.seat is not None else 0

    def cancel(self, request: Request) -> None:
        if self.seat is not None:
            self.seat.work.cancel(request)

    def why_not_ready(self) -> str:
        if self.state in _FINE:
            return ""
        if self.state is InstanceState.STARTING:
            return f"instance '{self.name}' is starting"
        if self.state is InstanceState.DRAINING or self.state is InstanceState.STOPPED:
            return f"instance '{self.name}' is {self.state.value}"
        if self.state is InstanceState.RESTARTING:
            return f"{self.last_error} It is being restarted."
        times = self.keeper.policy.restarts + 1
        return f"{self.last_error} It died {times} times in a row and is not restarted (--stub-restart-limit)."

    @property
    def waiter(self) -> Waiter | None:
        """The instance as the target of calls; None if it takes no calls, now or later."""
        if self.passive or self.state is InstanceState.FAILED or self.state is InstanceState.STOPPED:
            return None
        return deadlock.FutureWaiter(self.name) if self.seat is None else self.seat.work

    @property
    def checks_readiness(self) -> bool:
        return self.seat is not None and self.seat.checks_readiness

    async def ask_whether_ready(self) -> str:
        """As `why_not_ready`, with the answer of the model's `is_ready`. The caller limits the wait."""
        if self.seat is None:
            return self.why_not_ready()
        ready, reason = await self.seat.is_ready()
        return "" if ready else reason

    def memory(self) -> int:
        """Its part of the bytes that only its stub's process uses."""
        return self.seat.memory() if self.seat is not None else 0

    def facts(self) -> InstanceFacts:
        """The facts at this moment. Reads the kernel's count of the stub's memory, which takes some 15 µs."""
        seat, restarts = self.seat, self.keeper.restarts
        error = self.why_not_ready()
        if seat is None:
            return InstanceFacts(self.name, self.state.value, restarts=restarts, error=error)
        doing, seconds = seat.health.state()
        return InstanceFacts(
            self.name,
            self.state.value,
            seat.pid,
            restarts,
            seat.memory(),
            seat.arena_bytes,
            *seat.work.load,
            seconds if doing == "executing" else 0.0,
            error,
        )

    def end_restarts(self) -> None:
        """Serves only the sequences that have begun here, until `drain`. A stub that dies is not started again."""
        self.wanted = False
        self.keeper.look_whether_wanted()

    def drain(self) -> None:
        self.state = InstanceState.DRAINING
        self._drained = asyncio.Event()
        self.keeper.look_whether_wanted()
        self.look_for_end()

    async def drained(self) -> None:
        """Waits until a draining instance has answered all of its requests."""
        assert self._drained is not None
        await self._drained.wait()

    def look_for_end(self) -> None:
        """A draining instance has no more work once it has no seat, or none in it."""
        if self._drained is not None:
            if self.seat is None or self.seat.work.is_empty:
                self._drained.set()
            else:
                self.seat.work.when_empty = self._drained.set

    async def stop(self, timeout_s: float) -> None:
        """Finalizes the model, and ends the stub with its last instance, by force after `timeout_s`."""
        self.state = InstanceState.STOPPED
        await self.keeper.give_up_start()
        await self._end_seat(timeout_s)
        if self in self.keeper.instances:
            self.keeper.instances.remove(self)

    async def _end_seat(self, timeout_s: float) -> None:
        seat = self.seat
        if seat is None or await seat.stop(timeout_s):
            return
        if seat.death is not None:
            log.warning("stub '%s' did not finish within %.1f s and was killed", self.name, timeout_s)
        else:
            log.warning(
                "instance '%s' did not finish within %.1f s, and stays in its stub (pid %d) until the others have left",
                self.name, timeout_s, seat.pid,
            )  # fmt: skip


# Makes seats for instances, in a stub that is there or in a new one, and returns that stub, too; raises ServeError, and
# then nothing is left
Launch = Callable[[Sequence[Instance], "Stub | None"], Awaitable["tuple[Stub, Sequence[Seat]]"]]
