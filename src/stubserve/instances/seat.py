"""A seat of a stub: what one instance of the model has in the stub's process.

Its parts: `line` (control messages and doorbells of its own), `work` (its requests, over its rings), its segment of the
arena. This module joins them, initializes the model, answers its queries, and keeps the end in order.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from stubserve_stub.wire import layout

from stubserve.environments.environment import Environment
from stubserve.errors import ServeError
from stubserve.instances.execution_watch import ExecutionWatch
from stubserve.instances.handshake import Stages
from stubserve.instances.metrics import StubMetrics
from stubserve.instances.services import Services, change_model
from stubserve.instances.stub_devices import StubDevices
from stubserve.instances.stub_process import Health, SeatLine, StubProcess, own_memory
from stubserve.instances.stub_regions import StubRegions
from stubserve.instances.stub_requests import UnansweredRequests
from stubserve.instances.work import StubWork
from stubserve.memory.reclaim import StubGrant
from stubserve.memory.server_memory import Memory
from stubserve.memory.stub_memory import StubMemory


class Housing:
    """What all seats of a stub share: `seats` are those that it has, by number."""

    process: StubProcess
    environment: Environment
    memory: Memory
    services: Services
    regions: StubRegions | None = None
    devices: StubDevices | None = None
    seats: dict[int, Seat]


class Seat:
    """The seat `number` of `stub`, for the instance `name`. `death` is the cause of its end, None while it lives.

    `checks_readiness`: the model has `is_ready`. Raises OSError.
    """

    def __init__(self, stub: Housing, number: int, name: str) -> None:
        self.stub = stub
        self.name = name
        self.pid = stub.process.pid
        self.death: str | None = None
        # Whether it has been told to stop
        self.stopping = False
        # Whether it has not done so in time, and its stub has not been killed for it
        self.given_up = False
        self.is_initialized = False
        self.checks_readiness = False
        # Told once of the end, with the requests that are left, until an instance has taken the seat
        self.on_death: Callable[[str, UnansweredRequests], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._gone = asyncio.Event()
        self._services = services = stub.services
        self._memory = memory = stub.memory
        # Tasks that answer the model's queries
        self._answering: set[asyncio.Task[None]] = set()
        self._readiness: asyncio.Future[dict[str, Any]] | None = None
        self.line = line = SeatLine(stub.process, number, name)
        self._outputs = outputs = StubMemory(memory.segments)
        if stub.devices is not None:
            stub.devices.join(outputs)
        segment = memory.arena.segment(outputs.index)
        self._words = segment.parent_words
        self._grant = StubGrant(
            outputs, memory.reclaim, memory.usage, line.send, line.control_fileno, line.read_messages
        )
        self.health = Health(segment.stub_words)
        self.work = StubWork(line, memory, outputs, services.models, stub.regions, stub.devices)
        self.watch = ExecutionWatch(line, self.work, stub.regions is not None, self._grant.on_idle)
        self._stages = Stages(stub.process, stub.environment, line)
        self._metrics = StubMetrics(services.metrics)
        services.log_settings.watchers.add(self._tell_log_levels)
        self._tell_log_levels()

    @property
    def arena_bytes(self) -> int:
        """Shared memory that is committed for its outputs."""
        return self._memory.ledger.committed_by(self._outputs.index)

    def memory(self) -> int:
        """Its part of the bytes that only the stub's process uses."""
        return own_memory(self.pid) // max(len(self.stub.seats), 1)

    async def initialize(self, arguments: dict[str, str], outputs: list[str], decoupled: bool) -> None:
        """Initializes the model; after that the seat takes batches. Raises ServeError."""
        self.stub.process.send_with(
            self.line.doorbells,
            "initialize",
            number=self.line.number,
            segment=self._outputs.index,
            instance=self.name,
            arguments=arguments,
            outputs=outputs,
            decoupled=decoupled,
        )
        try:
            answer = await self._stages.wait("ready", "in initialize")
        except BaseException:
            self.stop_soon()
            raise
        self.is_initialized = True
        self.checks_readiness = answer["checks_readiness"]
        self.work.streams = answer["streams"]

    async def is_ready(self) -> tuple[bool, str]:
        """Asks the model's `is_ready`: the answer, and the reason of a no.

        There is one query at a time, and later callers share its answer (as upstream). The caller limits the wait:
        when it gives up, the query stays open.
        """
        if not self.checks_readiness:
            return True, ""
        if self._readiness is None:
            self._readiness = self._loop.create_future()
            self.line.send("is_ready")
        answer = await asyncio.shield(self._readiness)
        return answer["ready"], answer["reason"]

    async def stop(self, timeout_s: float) -> bool:
        """Lets the model finalize, and the stub end with its last seat. Returns whether it did so by itself.

        After `timeout_s` the stub is killed. But where others go on in it, only this seat is given up: its thread, and
        its memory, stay until the last of the others has left.
        """
        if self.death is not None:
            return True
        try:
            self.stop_soon()
            await asyncio.wait_for(self._gone.wait(), timeout_s)
        except asyncio.TimeoutError:
            if all(seat.stopping for seat in self.stub.seats.values()):
                self.line.condemn(f"it had not stopped {timeout_s:g} s after it was told to")
                await self._gone.wait()
            self.given_up = True
            return False
        return True

    def stop_soon(self) -> None:
        """As `stop`, but does not wait for the end."""
        if self.death is None:
            self.stopping = True
            with contextlib.suppress(ServeError):  # the stub is condemned then
                self.work.stop()

    # Messages on the control socket

    def on_message(self, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind.startswith("metric"):
            self._metrics.on_message(message)
        elif kind == "readiness":
            self._answer_readiness(message)
        elif kind == "query" and message["query"].startswith("metric"):
            self.line.send("query_answer", number=message["number"], **self._metrics.answer(message))
        elif kind == "query":
            answering = self._loop.create_task(self._answer_query(message))
            self._answering.add(answering)
            answering.add_done_callback(self._answering.discard)
        elif not self._grant.on_message(message):
            self._stages.on_message(message)

    async def _answer_query(self, query: dict[str, Any]) -> None:
        kind = query["query"]
        if kind == "is_model_ready":
            answer = await self.work.calls.answer_readiness(query)
        elif kind == "memory_left":
            answer = {"value": self._memory.ledger.left}
        else:
            answer = await change_model(self._services.control, query)
        self.line.send("query_answer", number=query["number"], **answer)

    def _tell_log_levels(self) -> None:
        self._words[layout.LOG_LEVELS] = self._services.log_settings.model_levels()

    def _answer_readiness(self, answer: dict[str, Any]) -> None:
        waiting, self._readiness = self._readiness, None
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    # The end

    def end(self, cause: str) -> UnansweredRequests:
        """The stub is gone, or has left the seat: the requests that are left."""
        unanswered = self.work.close()
        self.watch.close()
        self.death = cause
        for answering in self._answering:
            answering.cancel()
        self._metrics.close()
        self._grant.close()
        self._services.log_settings.watchers.discard(self._tell_log_levels)
        self.line.close()
        if self.stub.devices is not None:
            self.stub.devices.leave(self._outputs)
        self._stages.on_death(cause)
        self._answer_readiness({"ready": False, "reason": f"Stub process '{self.name}' is not healthy: {cause}."})
        self._gone.set()
        return unanswered

    def release(self) -> None:
        """After `end`: whoever has its requests knows of it."""
        self._outputs.close()
