"""The process that exports spans for the server: `python -m stubserve.observability.span_worker URL RESOURCE`.

A line on its standard input is a group of traces (`span_record`), in JSON with the nanoseconds between the clock that
they were timed by and that of the world. When its spans have been sent, or could not be, a line on its standard output
says so: `taken` or `refused`. It ends with its input.

A client's request is a span `InferRequest`. Below it is one for its model, under the model's name, and below that
`compute`, for the time in which it was executed. Requests that a model makes are below its `compute`, the steps of an
ensemble below the ensemble. What happened at a moment is an event of its span, under upstream's name.

Only the exporter and the span's data come from OpenTelemetry's SDK. Its tracer makes a span while the work is done;
here the times are known anyway.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence

import orjson
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from stubserve import __version__
from stubserve.closed_process import close_process
from stubserve.observability.span_record import SpanRecord

_COMPUTE = ("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")
_OUTER = ("HTTP_", "GRPC_", "INFER_RESPONSE")
_TIMEOUT_S = 10.0
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_SCOPE = InstrumentationScope("stubserve", __version__)
# It gets a tenth of a core that others want as well, and all of one else.
_NICE = 10


def main() -> None:
    url, resource = sys.argv[1:]
    close_process()
    # The server says when it ends.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICE)
    # Its own lines about each failure would be one for every group; the server tells.
    logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
    logging.getLogger("opentelemetry").propagate = False
    exporter = OTLPSpanExporter(url, timeout=_TIMEOUT_S)
    spans = Spans(Resource.create({"service.name": "triton-inference-server", **json.loads(resource)}))
    for line in sys.stdin.buffer:
        offset_ns, records = orjson.loads(line)
        made = [span for record in records for span in spans.of(SpanRecord(*record), offset_ns)]
        taken = exporter.export(made) is SpanExportResult.SUCCESS
        sys.stdout.write("taken\n" if taken else "refused\n")
        sys.stdout.flush()


class Spans:
    """Makes them of records. `resource` is the server, as its collector knows it."""

    def __init__(self, resource: Resource) -> None:
        self._resource = resource

    def of(self, record: SpanRecord, offset_ns: int) -> Iterator[ReadableSpan]:
        """The spans of a trace."""
        outer = record.parent_span
        if record.outer_span:
            outer = record.outer_span
            kept = [event for event in record.events if event[0].startswith(_OUTER)]
            span = (record.outer_span, record.parent_span)
            yield self._span("InferRequest", record, span, record.outer_times, kept, offset_ns, SpanKind.SERVER)
        kept = [event for event in record.events if event[0] not in _COMPUTE and not event[0].startswith(_OUTER)]
        yield self._span(record.model, record, (record.span, outer), record.times, kept, offset_ns)
        if record.compute_times[0]:
            kept = [event for event in record.events if event[0] in _COMPUTE]
            span = (record.compute_span, record.span)
            yield self._span("compute", record, span, record.compute_times, kept, offset_ns)

    def _span(
        self,
        name: str,
        record: SpanRecord,
        ids: tuple[int, int],
        times: tuple[int, int],
        events: Sequence[tuple[str, int]],
        offset_ns: int,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> ReadableSpan:
        """A span; `ids` are its own and that of the one above, 0 for none."""
        span, parent = ids
        attributes: dict[str, str | int] = {}
        if span == record.span:
            attributes = {
                "triton.model_name": record.model,
                "triton.model_version": record.version,
                "triton.trace_id": record.number,
                "triton.trace_parent_id": record.parent,
                "triton.request_id": record.request_id,
                **record.tensors,
            }
        elif span == record.compute_span:
            attributes = {
                "stubserve.batch.id": record.batch,
                "stubserve.batch.size": record.batch_size,
                "stubserve.instance": record.instance,
            }
        trace_id = int(record.trace_id, 16)
        return ReadableSpan(
            name,
            SpanContext(trace_id, span, is_remote=False, trace_flags=_SAMPLED),
            SpanContext(trace_id, parent, is_remote=False, trace_flags=_SAMPLED) if parent else None,
            self._resource,
            attributes,
            [Event(name, timestamp=ns + offset_ns) for name, ns in events],
            kind=kind,
            instrumentation_scope=_SCOPE,
            status=Status(StatusCode.ERROR, record.error) if record.error else Status(),
            start_time=times[0] + offset_ns,
            end_time=max(times) + offset_ns,
        )


if __name__ == "__main__":
    main()
