"""Which requests are traced, and the settings that say so: for the server, and for models that have their own.

Rules, as upstream has them: of every `rate` requests the last is traced, at most `count` of them; a model without
settings of its own shares those of the server, and their counts; a change begins to count anew. With OpenTelemetry a
request that brings a `traceparent` is traced whatever the rate says.

Where tracing is off, or can come to nothing, a model has no sampler, and its requests see only that.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from stubserve.inference.trace import TENSOR_BYTES, ModelTracing, Parent, Sampler, Trace
from stubserve.settings.tracing import OPENTELEMETRY, TIMESTAMPS, TracingSettings

TENSORS, OFF = "TENSORS", "OFF"
LEVELS = (TIMESTAMPS, TENSORS)

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")


@dataclass(frozen=True)
class TraceRules:
    """What can change while the server runs. `levels` are of LEVELS; a `count` of -1 has no end."""

    levels: tuple[str, ...] = ()
    rate: int = 1000
    count: int = -1
    log_frequency: int = 0


class Destination(Protocol):
    """Where trees of traces go. Nothing here waits or raises, on any thread."""

    # How many traces were lost, ever
    dropped: int

    def put(self, tree: Sequence[Trace], tracer: Tracer) -> None: ...

    def retire(self, tracer: Tracer) -> None:
        """Nothing more comes from this one."""

    def close(self) -> None:
        """Writes what is there, for two seconds at most."""


class Tracer(Sampler):
    """Samples requests by one set of rules, and passes on their traces."""

    def __init__(self, rules: TraceRules, destination: Destination, spans: bool) -> None:
        self.rules = rules
        self.tensors = TENSORS in rules.levels
        self.timestamps = TIMESTAMPS in rules.levels
        # Spans have the names and shapes of tensors alone.
        self.tensor_bytes = 0 if spans else TENSOR_BYTES
        self.spans = spans
        self._destination = destination
        # How many requests are passed over before the next is traced
        self._ahead = rules.rate
        self.left = rules.count

    def sample(self, model: str, version: int, protocol: str, context: Callable[[], str | None]) -> Trace | None:
        self._ahead -= 1
        given = context() if self.spans else None
        if self._ahead and given is None:
            return None
        parent = parent_of(given)
        wanted = not self._ahead
        if wanted:
            self._ahead = self.rules.rate
            wanted = self.left != 0
            if self.left > 0:
                self.left -= 1
        if not wanted and parent is None:
            return None
        return Trace(self, model, version, protocol, time.monotonic_ns(), parent=parent)

    def collect(self, tree: Sequence[Trace]) -> None:
        self._destination.put(tree, self)


class Tracing:
    """The tracing of a server. `destination` is None where the command line names none."""

    def __init__(self, settings: TracingSettings, destination: Destination | None) -> None:
        self._settings = settings
        self._destination = destination
        levels = tuple(level for level in LEVELS if level in settings.levels)
        self._initial = TraceRules(levels, settings.rate, settings.count, settings.log_frequency)
        self._rules = self._initial
        # What models have of their own, by the names of the fields
        self._own: dict[str, dict[str, Any]] = {}
        self._models: dict[str, ModelTracing] = {}
        self._tracer = self._make(self._rules)
        self._tracers: dict[str, Tracer] = {}

    def of(self, model: str) -> ModelTracing:
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
        """The end: what has been traced is written."""
        if self._destination is not None:
            self._destination.close()

    def to_dict(self, model: str = "") -> dict[str, list[str]]:
        """The settings of a model, or the server's, under upstream's names and in its order; as lists of texts."""
        tracer = self._tracers.get(model, self._tracer)
        rules, settings = tracer.rules, self._settings
        shown = {
            "trace_level": list(rules.levels) or [OFF],
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
        return Tracer(rules, self._destination or _Nowhere(), self._settings.mode == OPENTELEMETRY)

    def _retire(self, tracer: Tracer) -> None:
        if self._destination is not None:
            self._destination.retire(tracer)


class _Nowhere:
    """The destination of what nobody wants."""

    dropped = 0

    def put(self, tree: Sequence[Trace], tracer: Tracer) -> None:
        pass

    def retire(self, tracer: Tracer) -> None:
        pass

    def close(self) -> None:
        pass


def parent_of(text: str | None) -> Parent | None:
    """The span that a `traceparent` names; None where it is not one that is valid."""
    match = None if text is None else _TRACEPARENT.fullmatch(text)
    if match is None:
        return None
    parent = Parent(int(match[1], 16), int(match[2], 16))
    return parent if all(parent) else None
