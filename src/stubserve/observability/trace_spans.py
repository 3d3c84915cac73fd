"""Traces as spans of OpenTelemetry, exported by OTLP over HTTP.

A client's request is a span `InferRequest`. Below it is one for its model, under the model's name, and below that
`compute`, for the time in which it was executed. Requests that a model makes are below its `compute`, the steps of an
ensemble below the ensemble. What happened at a moment is an event of its span, under upstream's name.

Only the exporter and the span's data come from OpenTelemetry's SDK. Its tracer makes a span while the work is done;
here the times are known anyway, and a span is made on the thread that sends it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from stubserve import __version__
from stubserve.inference.trace import Trace
from stubserve.observability.trace_file import timestamps
from stubserve.observability.trace_queue import Item, TraceQueue
from stubserve.tracing_settings import TracingSettings

_COMPUTE = ("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")
_OUTER = ("HTTP_", "GRPC_", "INFER_RESPONSE")
_TIMEOUT_S = 10.0
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class SpanExport(TraceQueue):
    """Sends traces to a collector, in groups as `bsp_*` of the settings say."""

    def __init__(self, settings: TracingSettings) -> None:
        super().__init__(settings.max_queue_size, settings.max_export_batch_size, settings.schedule_delay_ms / 1000)
        # Its own lines about each failure would be one for every group; `lose` tells.
        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
        logging.getLogger("opentelemetry").propagate = False
        self._url = settings.url
        self._exporter = OTLPSpanExporter(settings.url, timeout=_TIMEOUT_S)
        self._resource = Resource.create({"service.name": "triton-inference-server", **settings.resource})
        self._scope = InstrumentationScope("stubserve", __version__)

    def write(self, items: Sequence[Item]) -> None:
        # The two clocks are not at the same pace, so the difference is that of now.
        offset_ns = time.time_ns() - time.monotonic_ns()
        spans = [span for tree, _ in items for trace in tree for span in self._spans(trace, offset_ns)]
        if spans and self._exporter.export(spans) is not SpanExportResult.SUCCESS:
            count = sum(len(tree) for tree, _ in items)
            self.lose(count, f"the collector at {self._url} does not take them")

    def finish(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _spans(self, trace: Trace, offset_ns: int) -> Iterator[ReadableSpan]:
        events = timestamps(trace)
        first, last = trace.request_start_ns or trace.begun_ns, trace.sent_ns or trace.answered_ns or trace.begun_ns
        outer = trace.parent_span
        if trace.outer_span:
            outer = trace.outer_span
            kept = [event for event in events if event[0].startswith(_OUTER)]
            yield self._span(
                "InferRequest",
                trace,
                trace.outer_span,
                trace.parent_span,
                (first, last),
                kept,
                offset_ns,
                SpanKind.SERVER,
            )
        kept = [event for event in events if event[0] not in _COMPUTE and not event[0].startswith(_OUTER)]
        yield self._span(
            trace.model, trace, trace.span, outer, (trace.begun_ns, trace.answered_ns or last), kept, offset_ns
        )
        if trace.compute_start_ns:
            kept = [event for event in events if event[0] in _COMPUTE]
            ended = trace.compute_end_ns or trace.answered_ns or last
            yield self._span(
                "compute", trace, trace.compute_span, trace.span, (trace.compute_start_ns, ended), kept, offset_ns
            )

    def _span(
        self,
        name: str,
        trace: Trace,
        span: int,
        parent: int,
        times: tuple[int, int],
        events: Sequence[tuple[str, int]],
        offset_ns: int,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> ReadableSpan:
        attributes: dict[str, str | int] = {}
        if span == trace.span:
            attributes = {
                "triton.model_name": trace.model,
                "triton.model_version": trace.version,
                "triton.trace_id": trace.number,
                "triton.trace_parent_id": trace.parent,
                "triton.request_id": trace.request_id,
            }
            for copy in trace.tensors:
                attributes[f"{copy.activity}.{copy.name}"] = f"{list(copy.shape)}, {copy.nbytes} bytes"
        elif span == trace.compute_span:
            attributes = {
                "stubserve.batch.id": trace.batch,
                "stubserve.batch.size": trace.batch_size,
                "stubserve.instance": trace.instance,
            }
        return ReadableSpan(
            name,
            SpanContext(trace.trace_id, span, is_remote=False, trace_flags=_SAMPLED),
            SpanContext(trace.trace_id, parent, is_remote=False, trace_flags=_SAMPLED) if parent else None,
            self._resource,
            attributes,
            [Event(name, timestamp=ns + offset_ns) for name, ns in events],
            kind=kind,
            instrumentation_scope=self._scope,
            status=Status(StatusCode.ERROR, trace.error) if trace.error else Status(),
            start_time=times[0] + offset_ns,
            end_time=max(times) + offset_ns,
        )
