"""One life of a stub, from its start to its death, as the parent controls it.

Its parts: `process` (control socket, stderr, death), `handshake` (until the model is initialized), `work` (its
requests, over its rings). This module joins them, answers the model's queries over the control socket, and keeps the
end in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from stubserve_stub.wire import layout

from stubserve.environments.environment import Environment
from stubserve.errors import ServeError, internal
from stubserve.instances.execution_watch import ExecutionWatch
from stubserve.instances.handshake import Handshake
from stubserve.instances.metrics import StubMetrics
from stubserve.instances.services import Services, change_model
from stubserve.instances.stub_devices import NO_GPU_MEMORY, GpuMemory, StubDevices
from stubserve.instances.stub_process import Health, StubProcess
from stubserve.instances.stub_regions import StubRegions
from stubserve.instances.stub_requests import UnansweredRequests
from stubserve.instances.work import StubWork
from stubserve.memory.reclaim import StubGrant
from stubserve.memory.server_memory import Memory
from stubserve.memory.stub_memory import StubMemory


class Stub:
    """A stub process with its rings and memory. `death` is its cause of death, None while it lives.

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
        # Told once of the death, with the requests that are left
        self.on_death: Callable[[str, UnansweredRequests], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._on_log = on_log
        self._services = services
        self._gone = asyncio.Event()
        # Tasks that answer the model's queries
        self._answering: set[asyncio.Task[None]] = set()
        self._readiness: asyncio.Future[dict[str, Any]] | None = None
        outputs = None
        self._regions: StubRegions | None = None
        self._devices: StubDevices | None = None
        inherited: list[int] = []
        try:
            if services.client_regions:
                self._regions = StubRegions()
                inherited.append(self._regions.theirs.fileno())
            self._outputs = outputs = StubMemory(memory.segments)
            if gpu_memory.gpus:
                self._devices = StubDevices(name, gpu_memory, outputs, memory.segments)
                inherited.append(self._devices.theirs.fileno())
            segment = memory.arena.segment(outputs.index)
            self._words = segment.parent_words
            self._process = StubProcess(
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
            if outputs is not None:
                outputs.close()
            if self._regions is not None:
                self._regions.close()
            if self._devices is not None:
                self._devices.close()
            from stubserve.environments.probe import explain_start  # not at the top: failures alone need it

            raise internal(f"Stub process '{name}' cannot be started: {explain_start(environment, error)}") from None
        if services.janitor is not None:
            services.janitor.adopt(self._process.pid)
        self._memory = memory
        process = self._process
        self._grant = StubGrant(
            outputs, memory.reclaim, memory.usage, process.send, process.control_fileno, process.read_messages
        )
        self.health = Health(self._process.pid, segment.stub_words)
        self.handshake = Handshake(self._process, environment, self.health)
        self.work = StubWork(self._process, memory, self._outputs, services.models, self._regions, self._devices)
        self.watch = ExecutionWatch(process, self.work, self._regions is not None, self._grant.on_idle)
        self._metrics = StubMetrics(services.metrics)
        services.metrics.sources.add(self._process.read_messages)
        services.log_settings.watchers.add(self._tell_log_levels)
        self._tell_log_levels()
        if self._regions is not None:
            boot = {**boot, "regions": self._regions.theirs.fileno()}
            self._regions.on_gone = lambda number: self._process.send("region_gone", number=number)
            self._regions.theirs.close()
        if self._devices is not None:
            boot = {**boot, "devices": self._devices.boot()}
            self._devices.on_gone = lambda number: self._process.send("pool_gone", number=number)
            self._devices.theirs.close()
        self._process.send("boot", segment=self._outputs.index, arena=memory.arena.facts(), **boot)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def arena_bytes(self) -> int:
        """Shared memory that is committed for its outputs."""
        return self._memory.ledger.committed_by(self._outputs.index)

    async def is_ready(self) -> tuple[bool, str]:
        """Asks the model's `is_ready`: the answer, and the reason of a no.

        There is one query at a time, and later callers share its answer (as upstream). The caller limits the wait:
        when it gives up, the query stays open.
        """
        if not self.handshake.checks_readiness:
            return True, ""
        if self._readiness is None:
            self._readiness = self._loop.create_future()
            self._process.send("is_ready")
        answer = await asyncio.shield(self._readiness)
        return answer["ready"], answer["reason"]

    async def stop(self, timeout_s: float) -> bool:
        """Lets the model finalize and the stub end; kills it after `timeout_s`. Returns whether it ended by itself."""
        if self.death is not None:
            return True
        try:
            self.work.stop()
            await asyncio.wait_for(self._gone.wait(), timeout_s)
        except (ServeError, asyncio.TimeoutError):
            self._process.condemn(f"it had not stopped {timeout_s:g} s after it was told to")
            await self._gone.wait()
            return False
        return True

    async def kill(self) -> None:
        """Ends the stub at once and waits until it is gone."""
        if self.death is None:
            self._process.kill()
        await self._gone.wait()

    # Messages on the control socket

    def _on_message(self, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "log":
            self._on_log(message)
        elif kind.startswith("metric"):
            self._metrics.on_message(message)
        elif kind == "readiness":
            self._answer_readiness(message)
        elif kind == "query" and message["query"].startswith("metric"):
            self._process.send("query_answer", number=message["number"], **self._metrics.answer(message))
        elif kind == "query":
            answering = self._loop.create_task(self._answer_query(message))
            self._answering.add(answering)
            answering.add_done_callback(self._answering.discard)
        elif not self._grant.on_message(message):
            self.handshake.on_message(message)

    async def _answer_query(self, query: dict[str, Any]) -> None:
        kind = query["query"]
        if kind == "is_model_ready":
            answer = await self.work.calls.answer_readiness(query)
        elif kind == "memory_left":
            answer = {"value": self._memory.ledger.left}
        else:
            answer = await change_model(self._services.control, query)
        self._process.send("query_answer", number=query["number"], **answer)

    def _tell_log_levels(self) -> None:
        self._words[layout.LOG_LEVELS] = self._services.log_settings.model_levels()

    def _answer_readiness(self, answer: dict[str, Any]) -> None:
        waiting, self._readiness = self._readiness, None
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _on_process_death(self, cause: str) -> None:
        unanswered = self.work.close()
        self.watch.close()
        if self.work.is_written_over and "written over" not in cause:
            cause += "; its shared memory had been written over"
        self.death = cause
        for answering in self._answering:
            answering.cancel()
        if self._services.janitor is not None:
            self._services.janitor.forget(self._process.pid)
        self._metrics.close()
        self._services.metrics.sources.discard(self._process.read_messages)
        self._grant.close()
        self._services.log_settings.watchers.discard(self._tell_log_levels)
        self._process.close_doorbells()
        if self._regions is not None:
            self._regions.close()
        if self._devices is not None:
            self._devices.close()
        self.handshake.on_death(cause)
        self._answer_readiness(
            {"ready": False, "reason": f"Stub process '{self._process.name}' is not healthy: {cause}."}
        )
        self._gone.set()
        if self.on_death is not None:
            self.on_death(cause, unanswered)
        self._outputs.close()
