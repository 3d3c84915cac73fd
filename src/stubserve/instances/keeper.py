"""Keeps a stub alive for the instances that share it.

All of them die with their stub, at once and for one cause, and are started again together, after one pause. Their owner
is told of deaths at once; restarts happen without the owner.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from stubserve.errors import ServeError, internal
from stubserve.instances.death import RestartPolicy, unhealthy
from stubserve.instances.instance import ENDING, Instance, InstanceKeeper, InstanceState, Launch
from stubserve.instances.seat import Seat
from stubserve.instances.stub import Left, Stub
from stubserve.instances.stub_requests import UnansweredRequests
from stubserve.instances.work import WorkOwner
from stubserve.model_config.complete import InstanceSpec

log = logging.getLogger("stubserve.instances")


class Death(NamedTuple):
    """An instance has lost its seat, with requests that have no answer."""

    instance: Instance
    error: ServeError
    unanswered: UnansweredRequests


class InstanceOwner(Protocol):
    """The model version that instances work for."""

    @property
    def reports(self) -> WorkOwner:
        """Gets the reports of the instances' seats."""

    def on_ready(self, instance: Instance) -> None: ...

    def on_death(self, deaths: Sequence[Death]) -> None:
        """A stub has died: what its instances have lost."""

    def on_given_up(self) -> None:
        """Dead instances could not be started again, and will not be tried again."""


class Keeper:
    """The keeper of `instances`, those of `most` at most that are there; each adds itself."""

    def __init__(self, launch: Launch, owner: InstanceOwner, policy: RestartPolicy, most: int = 1) -> None:
        self.instances: list[Instance] = []
        self.most = most
        self.policy = policy
        self.restarts = 0
        self.launch = launch
        self._owner = owner
        self._stub: Stub | None = None
        # How many batches its stub had executed for those that have left it
        self._executed = 0
        self._ready_at: float | None = None
        # How many of them its stub has executed for warm-up
        self._warmed = 0
        # The start under way, which all of the instances share
        self._start: asyncio.Task[None] | None = None

    @property
    def has_room(self) -> bool:
        """Whether another instance may share its stub, or the stub that is to be started."""
        begins = all(one.state is InstanceState.STARTING for one in self.instances)
        return len(self.instances) < self.most and (begins or (self._stub is not None and self._stub.takes_seats))

    async def start(self) -> None:
        """Starts those of its instances that are starting or asleep. Raises ServeError if the model does not load.

        There is no second try then.
        """
        while self._missing():
            await self._share(self._launch_missing)

    async def wake(self) -> None:
        """As `start`. If it raises, the start is tried again as after a death."""
        await self._share(self._wake)

    def look_whether_wanted(self) -> None:
        """An instance is about to go: nothing is started any more for instances that are not wanted."""
        if self._start is not None and not self._wanted(self.instances):
            self._start.cancel()

    async def give_up_start(self) -> None:
        """An instance is stopped. A start for it alone ends."""
        start = self._start
        if start is not None and not self._wanted(self.instances):
            start.cancel()
            await asyncio.gather(start, return_exceptions=True)

    async def _share(self, start: Callable[[], Awaitable[None]]) -> None:
        if self._start is None or self._start.done():
            self._start = asyncio.ensure_future(start())
            self._start.add_done_callback(self._forget_start)
        await self._start

    def _forget_start(self, start: asyncio.Future[None]) -> None:
        if self._start is start:
            self._start = None
        if not start.cancelled():
            start.exception()  # whoever waits for it has it

    async def _launch_missing(self) -> None:
        if missing := self._missing():
            self._adopt(missing, *await self._launched(missing))

    def _missing(self) -> list[Instance]:
        return [one for one in self.instances if one.state in (InstanceState.STARTING, InstanceState.ASLEEP)]

    async def _wake(self) -> None:
        try:
            await self._launch_missing()
        except Exception as raised:
            error = self._why_not_started(raised)
            self._restart_in(self._delay_after(error), self.instances)
            raise error from None

    @staticmethod
    def _wanted(instances: Sequence[Instance]) -> list[Instance]:
        return [one for one in instances if one.wanted and one.state not in ENDING[:2]]

    # The death of its stub, and the next

    def _on_end(self, cause: str, left: list[Left]) -> None:
        unanswered = dict(left)
        dead = [one for one in self.instances if one.seat in unanswered]
        stub = self._stub
        if stub is not None and stub.death is not None:
            self._stub = None
        deaths = []
        for instance in dead:
            seat, instance.seat = instance.seat, None
            assert seat is not None
            self._executed += seat.work.executed
            deaths.append(Death(instance, unhealthy(instance.name, cause, seat.pid), unanswered[seat]))
            instance.look_for_end()
        lost = [one for one in deaths if one.instance.state not in ENDING]
        if lost:
            self._restart_lost(lost)
        if told := [one for one in deaths if one in lost or any(one.unanswered)]:
            self._owner.on_death(told)

    def _restart_lost(self, lost: Sequence[Death]) -> None:
        for one in lost:
            one.instance.last_error = one.error.message
        wanted = [one.instance for one in lost if one.instance.wanted]
        delay = None
        if wanted:
            at_work = any(one.unanswered.executing or one.unanswered.open for one in lost)
            delay = self.policy.next_delay(self._ready_at, time.monotonic(), at_work, self._executed > self._warmed)
        for one in lost:
            if one.instance not in wanted:
                log.error("%s It was about to go, and is not restarted.", one.error)
            elif delay is None:
                log.error("%s It has died too often and is not restarted.", one.error)
            else:
                log.error("%s It is restarted in %.1f s.", one.error, delay)
        self._restart_in(None, [one.instance for one in lost if one.instance not in wanted])
        self._restart_in(delay, wanted)

    def _restart_in(self, delay: float | None, instances: Sequence[Instance]) -> None:
        if not instances:
            return
        for instance in instances:
            instance.state = InstanceState.FAILED if delay is None else InstanceState.RESTARTING
        if delay is not None:
            self._start = asyncio.ensure_future(self._start_again(delay))
            self._start.add_done_callback(self._forget_start)

    async def _launched(self, instances: Sequence[Instance]) -> tuple[Stub, Sequence[Seat]]:
        there = self._stub
        stub, seats = await self.launch(instances, there if there is not None and there.takes_seats else None)
        for seat in seats:
            if seat.death is not None:  # between its last message and this line
                raise unhealthy(seat.name, seat.death, seat.pid)
        return stub, seats

    def _adopt(self, instances: Sequence[Instance], stub: Stub, seats: Sequence[Seat]) -> None:
        if stub is not self._stub:
            self._stub, self._executed, self._warmed = stub, 0, 0
            stub.on_end = self._on_end
            self._ready_at = time.monotonic()
        if len(stub.seats) > 1:
            names = ", ".join(seat.name for seat in stub.seats.values())
            log.info("the instances %s share a stub (pid %d)", names, stub.pid)
        for instance, seat in zip(instances, seats, strict=True):
            self._warmed += seat.work.batches
            instance.seat = seat
            seat.on_death = None
            seat.work.owner, seat.work.instance = self._owner.reports, instance
            if instance.state in ENDING[:2]:  # meanwhile
                seat.stop_soon()
            else:
                instance.state = InstanceState.READY
        for instance in instances:
            if instance.state is InstanceState.READY:
                self._owner.on_ready(instance)

    async def _start_again(self, delay: float | None) -> None:
        while delay is not None:
            await asyncio.sleep(delay)
            dead = self._dead()
            try:
                stub, seats = await self._launched(dead)
            except Exception as raised:
                delay = self._delay_after(self._why_not_started(raised))
                continue
            self.restarts += 1
            for seat in seats:
                log.info("instance '%s' is back (pid %d)", seat.name, seat.pid)
            self._adopt(dead, stub, seats)
            return
        for instance in self._dead():
            instance.state = InstanceState.FAILED
        self._owner.on_given_up()

    def _dead(self) -> list[Instance]:
        return [one for one in self.instances if one.state is InstanceState.RESTARTING]

    def _delay_after(self, error: ServeError) -> float | None:
        """Seconds until a failed start is tried again, None for no further try."""
        delay = self.policy.next_delay(None, time.monotonic())
        names = "', '".join(one.name for one in self.instances)
        if delay is None:
            log.error("start of instance '%s' failed and is not tried again: %s", names, error.log_message)
        else:
            log.error("start of instance '%s' failed, next try in %.1f s: %s", names, delay, error.log_message)
        return delay

    def _why_not_started(self, raised: Exception) -> ServeError:
        if isinstance(raised, ServeError):
            error = raised
        else:
            # No exception may leave an instance that is neither restarted nor given up.
            names = "', '".join(one.name for one in self.instances)
            log.error("unexpected error while instance '%s' was started", names, exc_info=raised)
            error = internal(f"unexpected error: {raised!r}")
        for instance in self.instances:
            if instance.seat is None:
                instance.last_error = error.message
        return error


def seated(
    specs: Sequence[InstanceSpec],
    there: Sequence[Instance],
    owner: InstanceOwner,
    launch: Launch,
    restart_limit: int,
    most: Mapping[str, int],
) -> list[Instance]:
    """New instances, in stubs of like ones that are `there`, if these have room; `most` has for each kind how many."""
    keepers: dict[InstanceKeeper, Any] = {one.keeper: one.spec.traits for one in there}
    instances = []
    for spec in specs:
        keeper = next((one for one, traits in keepers.items() if traits == spec.traits and one.has_room), None)
        if keeper is None:
            keeper = Keeper(launch, owner, RestartPolicy(restart_limit), most.get(spec.kind, 1))
            keepers[keeper] = spec.traits
        keeper.launch = launch
        instances.append(Instance(spec, keeper))
    return instances
