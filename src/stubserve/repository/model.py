"""One loaded version of a model: its scheduler, instances and statistics, and the way of a request between them."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from stubserve.errors import Code, ServeError, internal, unavailable
from stubserve.inference.admission import reshape_outputs
from stubserve.inference.latencies import Latencies
from stubserve.inference.request import BACKEND_FAILURE, CANCELLED, OTHER_FAILURE, REJECTED, Request, Response
from stubserve.inference.signature import Signature
from stubserve.inference.statistics import ModelStatistics
from stubserve.instances.instance import Instance, State
from stubserve.instances.waiting import Waiter
from stubserve.repository.alarm import Alarm
from stubserve.schedulers.factory import create_scheduler
from stubserve.schedulers.ordering import ResponseOrderer

log = logging.getLogger("stubserve.model")

_READINESS_TIMEOUT_S = 5.0


class Model:
    """A model version that serves. Lives on the event loop."""

    def __init__(
        self, name: str, version: int, config: Any, rendered_config: dict[str, Any], labels: dict[str, list[str]]
    ) -> None:
        # Fixed while it is loaded, but for the instances and the version policy in the configuration
        self.name = name
        self.version = version
        self.config = config
        self.rendered_config = rendered_config
        self.signature = Signature(name, version, config)
        self.signature.labels = labels
        # Moving parts
        self.instances: list[Instance] = []
        # Instances that are no longer wanted, while they finish what they have
        self._leaving: dict[Instance, asyncio.Task[None]] = {}
        self.statistics = ModelStatistics(self.memory_usage)
        self.latencies: Latencies | None = None
        self.load_seconds = 0.0
        self._scheduler = create_scheduler(config)
        self._orderer = ResponseOrderer() if config.dynamic_batching.preserve_ordering else None
        self._loop = asyncio.get_running_loop()
        self._alarm: Alarm | None = None
        self._poll_is_due = False
        self._ready_instances = 0
        # Whether a batch may be handed out ahead of time: not past an idle instance, nor past the rules of a queue
        self._ahead = False
        # Requests that are queued or executing, and questions whether the model is ready
        self.pending = 0
        self._idle = asyncio.Event()
        self._idle.set()

    # The way of a request

    def submit(self, request: Request) -> None:
        """Queues an admitted request; `request.on_response` gets the answer. Raises ServeError if it is not taken."""
        self.enqueue(request)
        self._poll_soon()

    def enqueue(self, request: Request) -> None:
        """As `submit`, for who calls `poll` when all that arrive together are queued."""
        if not self._ready_instances:
            raise self._unavailable()
        try:
            self._scheduler.enqueue(request, time.monotonic_ns())
        except ServeError:
            request.outcome = REJECTED
            self.statistics.record_failure(request)
            raise
        self.pending += 1
        if self._orderer is not None:
            self._orderer.expect(request)

    def cancel(self, request: Request) -> None:
        """The client of a submitted request is gone."""
        request.cancelled = True
        request.resume()
        self._scheduler.cancel(request)
        self.poll()
        for instance in self._all_instances:
            instance.cancel(request)

    def _poll_soon(self) -> None:
        if not self._poll_is_due:
            # Once for all requests that arrive in this turn of the event loop, so they can share a batch.
            self._poll_is_due = True
            self._loop.call_soon(self.poll)

    def poll(self) -> None:
        """Runs what can run now."""
        self._poll_is_due = False
        now = time.monotonic_ns()
        decision = self._scheduler.poll(now)
        for instance, requests in decision.run:
            assert isinstance(instance, Instance)
            for request in requests:
                request.compute_start_ns = now
            try:
                instance.execute(requests)
                if self._ahead and instance.has_room:
                    self._scheduler.instance_idle(instance)
            except Exception as refused:
                if not isinstance(refused, ServeError):
                    log.exception("a batch of model '%s' could not be handed to '%s'", self.name, instance.name)
                    refused = internal(
                        f"the request could not be handed to model instance '{instance.name}'; see the server's log"
                    )
                self._scheduler.instance_idle(instance)
                self._poll_soon()
                self._answer_all(requests, refused, OTHER_FAILURE)
        for request, error in decision.answer:
            self._answer_all([request], error, CANCELLED if error.code is Code.CANCELLED else REJECTED)
        if decision.wake_at_ns is not None:
            self._wake_at(decision.wake_at_ns)
        elif self._alarm is not None:
            self._alarm.set(None)

    def _wake_at(self, at_ns: int) -> None:
        if self._alarm is None:
            try:
                self._alarm = Alarm(self.poll)
            except OSError:  # no descriptor is left for it; the event loop's own timers are late by up to a millisecond
                self._loop.call_later((at_ns - time.monotonic_ns()) / 1e9, self._poll_soon)
                return
        self._alarm.set(at_ns)

    def _answer_all(self, requests: list[Request], error: ServeError, outcome: str) -> None:
        for request in requests:
            request.outcome = outcome
            self.statistics.record_failure(request)
            self._answer(request, Response(error=error))

    def _answer(self, request: Request, response: Response) -> None:
        if self._orderer is None:
            self._deliver(request, response)
            return
        for released in self._orderer.complete(request, response):
            self._deliver(*released)

    def _deliver(self, request: Request, response: Response) -> None:
        if self.latencies is not None:
            self.latencies.on_response(request, response)
        try:
            request.on_response(request, response)
        except Exception:
            log.exception("the answer to a request of model '%s' could not be passed on", self.name)
        for tensor in response.outputs:
            if tensor.span is not None:
                tensor.span.drop()
        if not response.final:
            return
        for tensor in request.inputs:
            if tensor.span is not None:
                tensor.span.drop()
        self.pending -= 1
        if not self.pending:
            self._idle.set()

    # What the instances tell

    def on_ready(self, instance: Instance) -> None:
        if instance.passive or instance not in self.instances:
            return
        self._ready_instances += 1
        self._ahead = self._scheduler.plain and len(self.instances) == 1
        self._scheduler.instance_idle(instance)
        self.poll()

    def on_results(self, instance: Instance, requests: list[Request], finished: list[tuple[Request, Response]]) -> None:
        # The next batch first: the stub computes while the answers are written.
        if instance.has_room:
            self._scheduler.instance_idle(instance)
            self.poll()
        for request, response in finished:
            if self.signature.reshaped_outputs:
                reshape_outputs(response, self.signature)
            self._answer(request, response)
        # Nobody can read these before the next turn of the event loop.
        self.statistics.record_batch(requests)
        if self.latencies is not None:
            self.latencies.on_batch(requests)

    def on_response(self, request: Request, response: Response, start_ns: int) -> None:
        if self.signature.decoupled:
            self.statistics.record_response(request, response, start_ns)
        if self.signature.reshaped_outputs:
            reshape_outputs(response, self.signature)
        self._answer(request, response)

    def on_rescheduled(self, instance: Instance, request: Request) -> None:
        if self._scheduler.reschedule(request, time.monotonic_ns()):
            return
        refusal = internal(
            "Failed to release request: Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the "
            "model is not configured to handle such a flag."
        )
        log.error("%s (model instance '%s')", refusal.message, instance.name)
        self._answer(request, Response(error=refusal))

    def on_death(self, instance: Instance, error: ServeError, unfinished: list[Request], open_: list[Request]) -> None:
        if instance.passive:
            return
        if instance in self.instances:
            self._scheduler.instance_gone(instance)
            # It is 0 already where the model is being stopped.
            self._ready_instances = max(self._ready_instances - 1, 0)
        self._answer_all(unfinished, error, BACKEND_FAILURE)
        for request in open_:
            # Their execution has been counted.
            self._answer(request, Response(error=error))
        self._refuse_if_down()
        self.poll()

    def _refuse_if_down(self) -> None:
        if not self._ready_instances:
            self._answer_all(list(self._scheduler.drain()), self._unavailable(), OTHER_FAILURE)

    # Other instances

    def change_instances(
        self, instances: list[Instance], config: Any, rendered_config: dict[str, Any], stop_timeout_s: float
    ) -> None:
        """Is served by `instances` from now on: those that are new join, those left out leave as by `let_go`."""
        before, self.instances = self.instances, instances
        self.config, self.rendered_config = config, rendered_config
        for instance in instances:
            if instance not in before and instance.state is State.READY:
                self.on_ready(instance)
        for instance in before:
            if instance not in instances:
                if instance.state is State.READY and not instance.passive:
                    self._scheduler.instance_gone(instance)
                    self._ready_instances -= 1
                self.let_go(instance, stop_timeout_s)
        self._ahead = self._scheduler.plain and len(instances) == 1
        self._refuse_if_down()

    @property
    def _all_instances(self) -> tuple[Instance, ...]:
        return (*self.instances, *self._leaving)

    def let_go(self, instance: Instance, stop_timeout_s: float) -> None:
        """Has an instance finish what it executes, however long it takes, then finalize and end."""
        instance.leave()
        task = self._leaving[instance] = self._loop.create_task(self._end_of(instance, stop_timeout_s))
        task.add_done_callback(lambda _: self._leaving.pop(instance))

    async def _end_of(self, instance: Instance, stop_timeout_s: float) -> None:
        await instance.finished()
        await instance.stop(stop_timeout_s)

    # Readiness and the end

    def why_not_ready(self) -> str:
        """Empty if every instance is ready, else the reason of the first that is not."""
        for instance in self.instances:
            if instance.state is not State.READY:
                return instance.why_not_ready()
        return ""

    def down(self) -> bool:
        """Whether no instance serves."""
        return not self._ready_instances

    @property
    def queued(self) -> int:
        """Requests that wait to be executed."""
        return self._scheduler.queued

    def memory_usage(self) -> list[dict[str, Any]]:
        """The memory of its stubs, as the statistics extension shows memory: upstream's row for a model's CPU memory.

        Counted is what belongs to a stub alone; not libraries that stubs share as files, and not tensors in the arena.
        """
        total = sum(instance.stub.health.memory() for instance in self._all_instances if instance.stub is not None)
        return [{"type": "CPU", "id": 0, "byte_size": total}] if total else []

    @property
    def waiters(self) -> list[Waiter]:
        """The instances that take requests, now or when they have been restarted, and those that finish some."""
        return [waiter for instance in self._all_instances if (waiter := instance.waiter) is not None]

    def checks_readiness(self) -> bool:
        """Whether the model defines `is_ready`."""
        return any(
            instance.stub is not None and instance.stub.handshake.checks_readiness for instance in self.instances
        )

    async def check_ready(self) -> str:
        """As `why_not_ready`, and asks the models that define `is_ready`: all at once, for five seconds at most."""
        reason = self.why_not_ready()
        if reason or not self.checks_readiness():
            return reason
        self.pending += 1  # whoever asks may be about to submit a request
        try:
            reasons = await asyncio.gather(*map(_ask_whether_ready, self.instances))
        finally:
            self.pending -= 1
            if not self.pending:
                self._idle.set()
        return next(filter(None, reasons), "")

    async def drained(self) -> None:
        """Waits until nothing is queued or executing, and nobody waits for `check_ready` to submit something."""
        while self.pending:
            self._idle.clear()
            await self._idle.wait()

    async def stop(self, timeout_s: float) -> None:
        """Finalizes and ends every instance; no request is taken from now on."""
        self._ready_instances = 0
        instances = self._all_instances
        for leaving in self._leaving.values():
            leaving.cancel()
        await asyncio.gather(*(instance.stop(timeout_s) for instance in instances))
        if self._alarm is not None:
            self._alarm.close()
            self._alarm = None

    def _unavailable(self) -> ServeError:
        return unavailable(
            f"model '{self.name}' version {self.version} has no running instance: {self.why_not_ready()}"
        )


async def _ask_whether_ready(instance: Instance) -> str:
    stub = instance.stub
    if stub is None:
        return instance.why_not_ready()
    try:
        ready, reason = await asyncio.wait_for(stub.is_ready(), _READINESS_TIMEOUT_S)
    except asyncio.TimeoutError:
        return "Timed out waiting for user-defined is_ready() response"
    return "" if ready else reason
