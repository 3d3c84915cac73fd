"""What models of all kinds have in common that answer through a `Delivery` and are drained by a `Draining`."""

from __future__ import annotations

from stubserve.inference.latencies import Latencies
from stubserve.serving.delivery import Delivery
from stubserve.serving.draining import Draining


class AnsweringModel:
    """A part of a `ServedModel`, which is told there."""

    _delivery: Delivery
    _draining: Draining
    name: str
    # Where models of the same name are told apart
    namespace: str = ""

    @property
    def key(self) -> str:
        """How it is kept apart from other models."""
        return f"{self.namespace}::{self.name}" if self.namespace else self.name

    @property
    def latencies(self) -> Latencies | None:
        """Where its latencies are counted, None if nobody wants them."""
        return self._delivery.latencies

    @latencies.setter
    def latencies(self, latencies: Latencies | None) -> None:
        self._delivery.latencies = latencies

    @property
    def under_way(self) -> int:
        """Requests that are not answered to their end."""
        return self._draining.under_way

    # Readiness

    def why_not_ready(self) -> str:
        raise NotImplementedError

    def checks_readiness(self) -> bool:
        raise NotImplementedError

    async def check_ready(self) -> str:
        """As `why_not_ready`, and asks the models that define `is_ready`. Raises nothing."""
        reason = self.why_not_ready()
        if reason or not self.checks_readiness():
            return reason
        self._draining.begin()  # whoever asks may be about to submit a request
        try:
            return await self._ask_whether_ready()
        finally:
            self._draining.end()

    async def _ask_whether_ready(self) -> str:
        """Asks all models at once: the first reason of a no, empty if there is none. Raises nothing."""
        raise NotImplementedError

    # The end

    def reserve(self) -> None:
        """Keeps it from being drained until `release`."""
        self._draining.begin()

    def release(self) -> None:
        self._draining.end()
