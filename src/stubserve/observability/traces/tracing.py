"""Which requests are traced, and the trace settings: of the server, and of models that have their own.

The rules are upstream's: of every `rate` requests the last is traced, at most `count` of them; a model without settings
of its own shares those of the server, and their counts; a change resets the counts. With OpenTelemetry a request that
brings a `traceparent` is traced whatever the rate.

If tracing is off, or can never apply, a model has no sampler, and its requests only check for that.
"""

# Compiled by mypyc.
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stubserve.inference.trace import ModelTracing
from stubserve.observability.traces.queue import TraceQueue, Tracer, TraceRules
from stubserve.settings.groups import OPENTELEMETRY, TRACE_LEVELS, TRACE_OFF, TracingSettings


class Tracing:
    """The tracing of a server. `destination` is None if the command line names none."""

    def __init__(self, settings: TracingSettings, destination: TraceQueue | None) -> None:
        self._settings = settings
        self._destination = destination
        levels = tuple(level for level in TRACE_LEVELS if level in settings.levels)
        self._initial = TraceRules(levels, settings.rate, settings.count, settings.log_frequency)
        self._rules = self._initial
        # Models' own settings, by the names of the fields
        self._own: dict[str, dict[str, Any]] = {}
        self._models: dict[str, ModelTracing] = {}
        self._tracer = self._make(self._rules)
        self._tracers: dict[str, Tracer] = {}

    def model_tracing(self, model: str) -> ModelTracing:
        """The tracing of a model, for as long as the server lives."""
        found = self._models.get(model)
        if found is None:
            found = self._models[model] = ModelTracing()
            self._apply(model)
        return found

    @property
    def lost(self) -> int:
        """How many traces could not be written."""
        return 0 if self._destination is None else self._destination.dropped

    def close(self) -> None:
        """The end: writes all traces."""
        if self._destination is not None:
            self._destination.close()

    def to_dict(self, model: str = "") -> dict[str, list[str]]:
        """The settings of a model, or the server's, under upstream's names and in its order; as lists of texts."""
        tracer = self._tracers.get(model, self._tracer)
        rules, settings = tracer.rules, self._settings
        shown = {
            "trace_level": list(rules.levels) or [TRACE_OFF],
            "trace_rate": [str(rules.rate)],
            "trace_count": [str(tracer.left)],
        }
        if settings.mode == OPENTELEMETRY:
            shown["trace_mode"] = [OPENTELEMETRY]
            return {**shown, **{name: [value] for name, value in settings.options().items()}}
        return {
            **shown,
            "log_frequency": [str(rules.log_frequency)],
            "trace_file": [settings.file],
            "trace_mode": [settings.mode],
        }

    def update(self, changes: Mapping[str, Any], model: str = "") -> None:
        """Changes fields of TraceRules; None takes back what was changed."""
        if not changes:
            return
        if model:
            own = {**self._own.get(model, {}), **changes}
            own = {name: value for name, value in own.items() if value is not None}
            if own:
                self._own[model] = own
            else:
                self._own.pop(model, None)
            self._apply(model)
            return
        initial = {name: getattr(self._initial, name) for name, value in changes.items() if value is None}
        self._rules = replace(self._rules, **{**changes, **initial})
        self._retire(self._tracer)
        self._tracer = self._make(self._rules)
        for name in self._models:
            self._apply(name)

    def _apply(self, model: str) -> None:
        before = self._tracers.pop(model, None)
        if before is not None:
            self._retire(before)
        own = self._own.get(model)
        tracer = self._tracer
        if own:
            tracer = self._tracers[model] = self._make(replace(self._rules, **own))
        tracing = self._models.get(model)
        if tracing is not None:
            works = tracer.rules.levels and tracer.rules.rate and self._destination is not None
            tracing.sampler = tracer if works else None

    def _make(self, rules: TraceRules) -> Tracer:
        return Tracer(rules, self._destination, self._settings.mode == OPENTELEMETRY)

    def _retire(self, tracer: Tracer) -> None:
        if self._destination is not None:
            self._destination.retire(tracer)
