"""One instance of a model: keeps a stub alive for it.

An instance is starting, ready, asleep (without a stub until the next request), waiting to restart, failed (its stub
died too often), draining (it finishes its work) or stopped. Its owner is told of deaths at once; restarts happen
without the owner. What its stub answers does not come through here.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from stubserve.errors import ServeError, internal
from stubserve.inference.request import Request
from stubserve.inference.served_model import InstanceFacts, Waiter
from stubserve.inference.work import Work
from stubserve.instances import deadlock
from stubserve.instances.death import RestartPolicy, unhealthy
from stubserve.instances.stub import Stub
from stubserve.instances.stub_requests import UnansweredRequests
from stubserve.instances.work import WorkOwner
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
# The end of a stub in one of these states is intended
_ENDING = (InstanceState.DRAINING, InstanceState.STOPPED, InstanceState.ASLEEP)


class InstanceOwner(Protocol):
    """The model version that an instance works for."""

    @property
    def reports(self) -> WorkOwner:
        """Gets the reports of the instance's stub."""

    def on_ready(self, instance: Instance) -> None: ...

    def on_death(self, instance: Instance, error: ServeError, unanswered: UnansweredRequests) -> None: ...

    def on_given_up(self) -> None:
        """A dead instance could not be started again, and will not be tried again."""


class Instance:
    """A named instance. `launch` makes a stub with the model initialized in it, or raises ServeError.

    A passive instance is loaded and watched like any other, but gets no requests.
    """

    def __init__(
        self,
        spec: InstanceSpec,
        launch: Callable[[Instance], Awaitable[Stub]],
        owner: InstanceOwner,
        policy: RestartPolicy,
    ) -> None:
        self.spec = spec
        self.name = spec.name
        self.passive = spec.passive
        self.state = InstanceState.STARTING
        self.stub: Stub | None = None
        self.policy = policy
        self.last_error = ""
        self.restarts = 0
        # Whether its stub runs other files than those of its model's identity
        self.differs = False
        self._launch = launch
        self._owner = owner
        self._ready_at: float | None = None
        # How many batches its stub had executed by then, for warm-up
        self._warmed = 0
        self._restart: asyncio.Task[None] | None = None
        # Whether the instance is started again after a death
        self._wanted = True
        # While it leaves: set when it has no more work
        self._drained: asyncio.Event | None = None

    async def start(self) -> None:
        """Launches the stub. Raises ServeError if its model does not load; there is no second try then."""
        self._adopt(await self._launched())

    def begin_asleep(self) -> None:
        """In place of `start`: the stub is launched by `wake`."""
        self.state = InstanceState.ASLEEP

    async def sleep(self, timeout_s: float) -> None:
        """Finalizes the model and ends the stub, by force after `timeout_s`, until `wake`."""
        self.state = InstanceState.ASLEEP
        await self._end_stub(timeout_s)

    async def wake(self) -> None:
        """As `start`, for a sleeping instance. If it raises, the start is tried again as after a death.

        It is cancelled if the instance is not wanted any more.
        """
        self._restart = asyncio.get_running_loop().create_task(self.start())
        try:
            await self._restart
        except Exception as raised:
            error = self._why_not_started(raised)
            self._restart_in(self._delay_after(error))
            raise error from None

    def execute(self, work: Work) -> None:
        assert self.stub is not None
        self.stub.work.give(work)

    def announce(self) -> None:
        if self.stub is not None:
            self.stub.work.ring.announce_soon()

    def drop_states(self, sequences: Sequence[int]) -> None:
        if self.stub is not None:
            self.stub.work.drop_states(sequences)

    @property
    def takes_work(self) -> bool:
        """Whether new work has a chance to be executed."""
        return self.stub is not None and self._drained is None and not self.stub.work.full

    @property
    def streams(self) -> int:
        """How many requests may be open at a time, 0 for any number."""
        return self.stub.work.streams if self.stub is not None else 0

    def cancel(self, request: Request) -> None:
        if self.stub is not None:
            self.stub.work.cancel(request)

    def why_not_ready(self) -> str:
        if self.state in _FINE:
            return ""
        if self.state is InstanceState.STARTING:
            return f"instance '{self.name}' is starting"
        if self.state is InstanceState.DRAINING or self.state is InstanceState.STOPPED:
            return f"instance '{self.name}' is {self.state.value}"
        if self.state is InstanceState.RESTARTING:
            return f"{self.last_error} It is being restarted."
        times = self.policy.restarts + 1
        return f"{self.last_error} It died {times} times in a row and is not restarted (--stub-restart-limit)."

    @property
    def waiter(self) -> Waiter | None:
        """The instance as the target of calls; None if it takes no calls, now or later."""
        if self.passive or self.state is InstanceState.FAILED or self.state is InstanceState.STOPPED:
            return None
        return deadlock.FutureWaiter(self.name) if self.stub is None else self.stub.work

    @property
    def checks_readiness(self) -> bool:
        return self.stub is not None and self.stub.handshake.checks_readiness

    async def ask_whether_ready(self) -> str:
        """As `why_not_ready`, with the answer of the model's `is_ready`. The caller limits the wait."""
        if self.stub is None:
            return self.why_not_ready()
        ready, reason = await self.stub.is_ready()
        return "" if ready else reason

    def memory(self) -> int:
        """Bytes that only its stub's processes use."""
        return self.stub.health.memory() if self.stub is not None else 0

    def facts(self) -> InstanceFacts:
        """The facts at this moment. Reads the kernel's count of the stub's memory, which takes some 15 µs."""
        stub = self.stub
        error = self.why_not_ready()
        if stub is None:
            return InstanceFacts(self.name, self.state.value, restarts=self.restarts, error=error)
        doing, seconds = stub.health.state()
        return InstanceFacts(
            self.name,
            self.state.value,
            stub.pid,
            self.restarts,
            stub.health.memory(),
            stub.arena_bytes,
            *stub.work.load,
            seconds if doing == "executing" else 0.0,
            error,
        )

    def end_restarts(self) -> None:
        """Serves only the sequences that have begun here, until `drain`. A stub that dies is not started again."""
        self._wanted = False
        if self._restart is not None:
            self._restart.cancel()

    def drain(self) -> None:
        self.state = InstanceState.DRAINING
        self._drained = asyncio.Event()
        if self._restart is not None:
            self._restart.cancel()
        self._look_for_end()

    async def drained(self) -> None:
        """Waits until a draining instance has answered all of its requests."""
        assert self._drained is not None
        await self._drained.wait()

    def _look_for_end(self) -> None:
        if self._drained is not None:
            if self.stub is None or self.stub.work.is_empty:
                self._drained.set()
            else:
                self.stub.work.when_empty = self._drained.set

    async def stop(self, timeout_s: float) -> None:
        """Finalizes the model and ends the stub, by force after `timeout_s`."""
        self.state = InstanceState.STOPPED
        if self._restart is not None:
            self._restart.cancel()
            await asyncio.gather(self._restart, return_exceptions=True)
        await self._end_stub(timeout_s)

    async def _end_stub(self, timeout_s: float) -> None:
        if self.stub is not None and not await self.stub.stop(timeout_s):
            log.warning("stub '%s' did not finish within %.1f s and was killed", self.name, timeout_s)

    # The death of its stub, and the next

    def _on_death(self, cause: str, unanswered: UnansweredRequests) -> None:
        stub, self.stub = self.stub, None
        assert stub is not None
        error = unhealthy(self.name, cause, stub.pid)
        self._look_for_end()
        if self.state in _ENDING:
            if any(unanswered):
                self._owner.on_death(self, error, unanswered)
            return
        self.last_error = error.message
        delay = None
        if self._wanted:
            has_executed = stub.work.executed > self._warmed
            at_work = bool(unanswered.executing or unanswered.open)
            delay = self.policy.next_delay(self._ready_at, time.monotonic(), at_work, has_executed)
        if not self._wanted:
            log.error("%s It was about to go, and is not restarted.", error)
        elif delay is None:
            log.error("%s It has died too often and is not restarted.", error)
        else:
            log.error("%s It is restarted in %.1f s.", error, delay)
        self._restart_in(delay)
        self._owner.on_death(self, error, unanswered)

    def _restart_in(self, delay: float | None) -> None:
        if delay is None:
            self.state = InstanceState.FAILED
        else:
            self.state = InstanceState.RESTARTING
            self._restart = asyncio.get_running_loop().create_task(self._start_again(delay))

    async def _launched(self) -> Stub:
        stub = await self._launch(self)
        if stub.death is not None:  # between its last message and this line
            raise unhealthy(self.name, stub.death, stub.pid)
        return stub

    def _adopt(self, stub: Stub) -> None:
        self.stub = stub
        stub.on_death = self._on_death
        stub.work.owner, stub.work.instance = self._owner.reports, self
        stub.work.streams = stub.handshake.streams
        self.state = InstanceState.READY
        self._ready_at = time.monotonic()
        self._warmed = stub.work.batches
        self._owner.on_ready(self)

    async def _start_again(self, delay: float | None) -> None:
        while delay is not None:
            await asyncio.sleep(delay)
            try:
                stub = await self._launched()
            except Exception as raised:
                delay = self._delay_after(self._why_not_started(raised))
                continue
            self.restarts += 1
            log.info("instance '%s' is back (pid %d)", self.name, stub.pid)
            self._adopt(stub)
            return
        self.state = InstanceState.FAILED
        self._owner.on_given_up()

    def _delay_after(self, error: ServeError) -> float | None:
        """Seconds until a failed start is tried again, None for no further try."""
        delay = self.policy.next_delay(None, time.monotonic())
        if delay is None:
            log.error("start of instance '%s' failed and is not tried again: %s", self.name, error.log_message)
        else:
            log.error("start of instance '%s' failed, next try in %.1f s: %s", self.name, delay, error.log_message)
        return delay

    def _why_not_started(self, raised: Exception) -> ServeError:
        if isinstance(raised, ServeError):
            error = raised
        else:
            # No exception may leave an instance that is neither restarted nor given up.
            log.error("unexpected error while instance '%s' was started", self.name, exc_info=raised)
            error = internal(f"unexpected error: {raised!r}")
        self.last_error = error.message
        return error
