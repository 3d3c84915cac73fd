"""The common part of all kinds of models that answer through a `Delivery`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stubserve.inference.latencies import Latencies
from stubserve.inference.request import Request
from stubserve.inference.served_model import ServedModel
from stubserve.inference.signature import Signature
from stubserve.inference.statistics import ModelStatistics
from stubserve.inference.trace import ModelTracing
from stubserve.serving.delivery import Delivery

if TYPE_CHECKING:
    # A server without a cache does not load it.
    from stubserve.response_cache.store import ResponseCache
    from stubserve.serving.caching import ModelCache


class AnsweringModel:
    """A part of a `ServedModel`, which describes its methods. `clock` is CLOCK_MONOTONIC in ns."""

    statistics: ModelStatistics
    _delivery: Delivery
    # Runs what can run now; `poll_soon` does so once for all requests of one turn of the event loop
    poll: Callable[[], None]
    _poll_soon: Callable[[], None]
    # The same without the cache, and the end of a place from `_queue` (`Scheduler.leave_place`)
    _run: Callable[[], None]
    _leave_place: Callable[[Request], bool]
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
        self._clock = clock
        self._cache: ModelCache | None = None

    @property
    def key(self) -> str:
        return f"{self.namespace}::{self.name}" if self.namespace else self.name

    @property
    def latencies(self) -> Latencies | None:
        """The counts of its latencies, None if they are switched off. To be set before a cache is."""
        return self._delivery.latencies

    @latencies.setter
    def latencies(self, latencies: Latencies | None) -> None:
        self._delivery.latencies = latencies

    def use_cache(self, cache: ResponseCache, identity: bytes) -> None:
        """Answers from the response cache if it can.

        `identity` stands for all that answers depend on. Before the first request.
        """
        from stubserve.serving.caching import ModelCache

        self._cache = made = ModelCache(
            self.name,
            identity,
            tuple(self.signature.outputs),
            cache,
            self._delivery,
            self.statistics,
            self._queue,
            self._leave_place,
            self._run,
            self._clock,
        )
        self.poll = made.poll
        self._poll_soon = made.poll_soon
        latencies = self._delivery.latencies
        if latencies is not None:
            latencies.uses_cache()
            made.latencies = latencies

    def takes_over_from(self, former: ServedModel) -> None:
        pass

    def submit(self, request: Request) -> None:
        self.enqueue(request)
        self._poll_soon()

    def enqueue(self, request: Request) -> None:
        if self._cache is None:
            self._queue(request)
            self._delivery.expect(request)
        else:
            self._cache.enqueue(request)

    def _queue(self, request: Request, runs: bool = True) -> None:
        """Queues a request. If it is not to run now, because it waits for the cache or for the answer to an equal
        request, it only gets a place.

        Raises ServeError, and counts requests that belong to this model.
        """
        raise NotImplementedError

    @property
    def under_way(self) -> int:
        return self._delivery.under_way

    # Readiness

    def why_not_ready(self) -> str:
        raise NotImplementedError

    def checks_readiness(self) -> bool:
        raise NotImplementedError

    async def check_ready(self) -> str:
        reason = self.why_not_ready()
        if reason or not self.checks_readiness():
            return reason
        self._delivery.reserve()  # the caller may be about to submit a request
        try:
            return await self._ask_whether_ready()
        finally:
            self._delivery.release()

    async def _ask_whether_ready(self) -> str:
        """Asks all models at once: the reason of the first that is not ready, empty if all are. Raises nothing."""
        raise NotImplementedError

    # The end

    def reserve(self) -> None:
        self._delivery.reserve()

    def release(self) -> None:
        self._delivery.release()
