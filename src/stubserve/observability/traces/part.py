"""Traces as a part of the server: without settings for them, nothing is imported until a client asks for these."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stubserve.inference.served_model import ServedModel
from stubserve.parts import Part, Sample
from stubserve.settings.groups import OPENTELEMETRY, Settings

if TYPE_CHECKING:
    from stubserve.observability.traces.queue import TraceQueue
    from stubserve.observability.traces.tracing import Tracing


class Traces(Part):
    """Raises OSError."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._tracing: Tracing | None = None
        if settings.tracing.config:
            self._made()

    async def load(self, model: ServedModel, folder: Path) -> None:
        # Traces that have no destination are never taken, so a later change of the settings concerns no other model.
        if self._tracing is not None:
            model.tracing = self._tracing.model_tracing(model.name)

    async def close(self) -> None:
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)

    def samples(self) -> Iterable[Sample]:
        yield "stubserve_traces_lost_total", (), 0 if self._tracing is None else self._tracing.lost

    def to_dict(self, model: str) -> dict[str, list[str]]:
        return self._made().to_dict(model)

    def update(self, changes: Mapping[str, Any], model: str) -> None:
        self._made().update(changes, model)

    def _made(self) -> Tracing:
        if self._tracing is None:
            from stubserve.observability.traces.tracing import Tracing

            self._tracing = Tracing(self.settings.tracing, self._destination())
        return self._tracing

    def _destination(self) -> TraceQueue | None:
        settings = self.settings.tracing
        if settings.mode == OPENTELEMETRY:
            from stubserve.observability.traces.spans import SpanExport

            return SpanExport(settings)
        if not settings.file:
            return None
        from stubserve.observability.traces.file import TraceFile

        return TraceFile(settings.file)


PART = Traces
