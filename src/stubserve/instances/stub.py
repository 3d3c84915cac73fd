"""One life of a stub, from its start to its death, as the parent controls it.

Its parts: `process` (control socket, stderr, death), `handshake` (until it takes instances), and a seat for each
instance that it has (`seat`). This module joins them, and keeps the end in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from stubserve.environments.environment import Environment
from stubserve.errors import internal
from stubserve.instances.handshake import Handshake
from stubserve.instances.seat import Housing, Seat
from stubserve.instances.services import Services
from stubserve.instances.stub_devices import NO_GPU_MEMORY, GpuMemory, StubDevices
from stubserve.instances.stub_process import StubProcess
from stubserve.instances.stub_regions import StubRegions
from stubserve.instances.stub_requests import UnansweredRequests
from stubserve.memory.server_memory import Memory

# A seat that has ended, and its requests without an answer
Left = tuple[Seat, UnansweredRequests]


class Stub(Housing):
    """A stub process with its seats, by number. `death` is its cause of death, None while it lives.

    `gpu_memory` is what its tensors may lie on beside the arena.
    """

    def __init__(
        self,
        name: str,
        environment: Environment,
        memory: Memory,
        boot: dict[str, Any],
        on_log: Callable[[dict[str, Any]], None],
        services: Services,
        terminal: bool = False,
        gpu_memory: GpuMemory = NO_GPU_MEMORY,
    ) -> None:
        self.death: str | None = None
        self.seats = {}
        # Told of the end of seats that instances have: of all at the death, and of one that has been stopped
        self.on_end: Callable[[str, list[Left]], None] = lambda cause, left: None
        self.environment = environment
        self.memory = memory
        self.services = services
        self._seats_so_far = 0
        self._on_log = on_log
        self._gone = asyncio.Event()
        inherited: list[int] = []
        try:
            if services.client_regions:
                self.regions = StubRegions()
                inherited.append(self.regions.theirs.fileno())
            if gpu_memory.gpus:
                self.devices = StubDevices(name, gpu_memory, memory.segments)
                inherited.append(self.devices.theirs.fileno())
            self.process = StubProcess(
                name,
                environment,
                memory.arena.fd,
                self._on_message,
                self._on_process_death,
                terminal,
                {} if services.janitor is None else services.janitor.variables,
                inherited,
            )
        except OSError as error:
            if self.regions is not None:
                self.regions.close()
            if self.devices is not None:
                self.devices.close()
            raise self._cannot_start(name, error) from None
        if services.janitor is not None:
            services.janitor.adopt(self.process.pid)
        self.handshake = Handshake(self.process, environment)
        services.metrics.sources.add(self.process.read_messages)
        process = self.process
        if self.regions is not None:
            boot = {**boot, "regions": self.regions.theirs.fileno()}
            self.regions.on_gone = lambda number: process.send("region_gone", number=number)
            self.regions.theirs.close()
        if self.devices is not None:
            boot = {**boot, "devices": self.devices.boot()}
            self.devices.on_gone = lambda number: process.send("pool_gone", number=number)
            self.devices.theirs.close()
        process.send("boot", arena=memory.arena.facts(), **boot)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def takes_seats(self) -> bool:
        """Whether it will live on with those that it has."""
        return self.death is None and any(not seat.stopping for seat in self.seats.values())

    def seat(self, instance: str) -> Seat:
        """A further seat, for an instance whose model is still to be initialized. Raises ServeError."""
        if not self.seats:
            self.process.rename(instance)  # with the completed configuration it may have another name
        self._seats_so_far += 1
        try:
            seat = Seat(self, self._seats_so_far, instance)
        except OSError as error:
            raise self._cannot_start(instance, error) from None
        self.seats[self._seats_so_far] = seat
        return seat

    async def kill(self) -> None:
        """Ends the stub at once and waits until it is gone."""
        if self.death is None:
            self.process.kill()
        await self._gone.wait()

    def _cannot_start(self, name: str, error: OSError) -> Exception:
        from stubserve.environments.probe import explain_start  # not at the top: failures alone need it

        return internal(f"Stub process '{name}' cannot be started: {explain_start(self.environment, error)}")

    def _on_message(self, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "log":
            self._on_log(message)
        elif "seat" not in message:
            self.handshake.on_message(message)
        elif (seat := self.seats.get(message["seat"])) is not None:  # else it has been left
            if kind == "left":
                self._on_left(seat)
            else:
                seat.on_message(message)

    def _on_left(self, seat: Seat) -> None:
        """With its last seat the stub itself ends, and that is the end of the seat."""
        if seat.is_initialized and not seat.stopping:
            self.process.condemn("it has left an instance that was not stopped")
        elif len(self.seats) > 1:
            self._end([seat], "it has been finalized")
            if all(one.given_up for one in self.seats.values()):
                self.process.condemn("the instances that are left in it had not stopped when they were told to")

    def _on_process_death(self, cause: str) -> None:
        seats = list(self.seats.values())
        if "written over" not in cause and any(seat.work.is_written_over for seat in seats):
            cause += "; its shared memory had been written over"
        self.death = cause
        self.services.metrics.sources.discard(self.process.read_messages)
        self.handshake.on_death(cause)
        self._end(seats, cause)
        if self.services.janitor is not None:
            self.services.janitor.forget(self.process.pid)
        if self.regions is not None:
            self.regions.close()
        if self.devices is not None:
            self.devices.close()
        self._gone.set()

    def _end(self, seats: list[Seat], cause: str) -> None:
        # First all of them: whoever is told of one gives work to no other.
        left = []
        for seat in seats:
            del self.seats[seat.line.number]
            left.append((seat, seat.end(cause)))
        self.on_end(cause, left)
        for seat, unanswered in left:
            if seat.on_death is not None:
                seat.on_death(cause, unanswered)
            seat.release()
