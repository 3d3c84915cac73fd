"""The process that exports spans for the server: `python -m stubserve.observability.traces.span_worker URL RESOURCE`.

A line on its standard input is a group of traces (`trace_spans`) in JSON, with the nanoseconds between the traces'
clock and the time of day. When the group's spans have been sent, or could not be, it answers with a line on its
standard output: `taken` or `refused`. It ends with its input.

Only the exporter and the span's data are the OpenTelemetry SDK's: its tracer would time a span that is timed already.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence

import orjson
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from stubserve import __version__
from stubserve.closed_process import close_process

_TIMEOUT_S = 10.0
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_SCOPE = InstrumentationScope("stubserve", __version__)
# The process gets a tenth of a core that others want as well, and all of an idle core.
_NICE = 10


def main() -> None:
    url, resource = sys.argv[1:]
    close_process()
    # Only the server ends this process.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICE)
    # The SDK would log each failed group; the server reports failures.
    logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
    logging.getLogger("opentelemetry").propagate = False
    exporter = OTLPSpanExporter(url, timeout=_TIMEOUT_S)
    server = Resource.create({"service.name": "triton-inference-server", **json.loads(resource)})
    for line in sys.stdin.buffer:
        offset_ns, records = orjson.loads(line)
        made = [_made(server, offset_ns, trace, error, *span) for trace, error, spans in records for span in spans]
        taken = exporter.export(made) is SpanExportResult.SUCCESS
        sys.stdout.write("taken\n" if taken else "refused\n")
        sys.stdout.flush()


def _made(
    server: Resource,
    offset_ns: int,
    trace: str,
    error: str,
    name: str,
    own: int,
    above: int,
    times: tuple[int, int],
    events: Sequence[tuple[str, int]],
    attributes: Mapping[str, str | int],
) -> ReadableSpan:
    """One of a trace's spans; `server` describes the server to the collector."""

    def context(span: int) -> SpanContext:
        return SpanContext(int(trace, 16), span, is_remote=False, trace_flags=_SAMPLED)

    return ReadableSpan(
        name,
        context(own),
        context(above) if above else None,
        server,
        attributes,
        [Event(event, timestamp=ns + offset_ns) for event, ns in events],
        kind=SpanKind.SERVER if name == "InferRequest" and not attributes else SpanKind.INTERNAL,
        instrumentation_scope=_SCOPE,
        status=Status(StatusCode.ERROR, error) if error else Status(),
        start_time=times[0] + offset_ns,
        end_time=max(times) + offset_ns,
    )


if __name__ == "__main__":
    main()
