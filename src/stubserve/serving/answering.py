"""The common part of all kinds of models that answer through a `Delivery`."""

# Compiled by mypyc.
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stubserve.inference.latencies import Latencies
from stubserve.inference.request import Request
from stubserve.inference.served_model import ServedModel
from stubserve.inference.signature import Signature
from stubserve.inference.statistics import ModelStatistics
from stubserve.inference.trace import ModelTracing
from stubserve.serving.delivery import Delivery
from stubserve.serving.stages import Stage


class AnsweringModel:
    """A part of a `ServedModel`, which describes its methods. `clock` is CLOCK_MONOTONIC in ns."""

    statistics: ModelStatistics
    delivery: Delivery
    # A request passes them in this order
    stages: Sequence[Stage]
    _first: Stage
    # Samples the model's requests; the loader of the model sets it
    tracing: ModelTracing = ModelTracing()
    # Stands for configuration and files, for a cache that several servers share
    identity: bytes = b""
    # Set where models of the same name are told apart
    namespace: str = ""

    def __init__(self, name: str, version: int, config: Any, clock: Callable[[], int]) -> None:
        self.name = name
        self.version = version
        self.config = config
        self.signature = Signature(name, version, config)
        self.load_seconds = 0.0
        self.clock = clock

    @property
    def key(self) -> str:
        return f"{self.namespace}::{self.name}" if self.namespace else self.name

    @property
    def latencies(self) -> Latencies | None:
        """The latencies that the model counts, None if none are counted."""
        return self.delivery.latencies

    @latencies.setter
    def latencies(self, latencies: Latencies | None) -> None:
        self.delivery.latencies = latencies
        if latencies is not None and self.statistics.cached:
            latencies.uses_cache()

    def _lay(self, front: Sequence[StageMaker], queue: Stage) -> None:
        """Makes the list of stages: those in front of the queue, and the queue."""
        stages = [queue]
        for make in reversed(front):
            stages.insert(0, make(self, stages[0]))
        self.stages = stages
        self._first = stages[0]

    def takes_over_from(self, former: ServedModel) -> None:
        pass

    # Requests

    def submit(self, request: Request) -> None:
        self.enqueue(request)
        self._first.poll_soon()

    def enqueue(self, request: Request) -> None:
        self._first.enqueue(request)
        self.delivery.expect(request)

    def try_out(self, request: Request) -> None:
        """As `submit`, past the stages in front of the queue: a sample of a warm-up is to run."""
        queue = self.stages[-1]
        queue.enqueue(request)
        self.delivery.expect(request)
        queue.poll_soon()

    def poll(self) -> None:
        self._first.poll()

    def cancel(self, request: Request) -> None:
        request.cancelled = True
        request.resume()
        self.delivery.cancelled(request)
        for stage in self.stages:
            stage.cancel(request)

    def _leader_of(self, request: Request) -> Request:
        """The running request that this one waits for, or this one itself."""
        for stage in self.stages:
            request = stage.leader_of(request)
        return request

    @property
    def under_way(self) -> int:
        return self.delivery.under_way

    # Readiness

    def why_not_ready(self) -> str:
        raise NotImplementedError

    def checks_readiness(self) -> bool:
        raise NotImplementedError

    async def check_ready(self) -> str:
        reason = self.why_not_ready()
        if reason or not self.checks_readiness():
            return reason
        self.delivery.reserve()  # the caller may be about to submit a request
        try:
            return await self._ask_whether_ready()
        finally:
            self.delivery.release()

    async def _ask_whether_ready(self) -> str:
        """Asks all models at once: the reason of the first that is not ready, empty if all are. Raises nothing."""
        raise NotImplementedError

    # The end

    def reserve(self) -> None:
        self.delivery.reserve()

    def release(self) -> None:
        self.delivery.release()


# Makes a stage of a model, in front of another one
StageMaker = Callable[[AnsweringModel, Stage], Stage]
