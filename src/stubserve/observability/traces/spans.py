"""Traces as spans of OpenTelemetry, exported by a process of its own (`span_worker`).

OpenTelemetry's SDK takes 150 µs to make and serialize the spans of one request, and holds the interpreter's lock
meanwhile: for every hundredth request that is a twelfth of the time of all requests. Here a trace becomes a line of
JSON, and the process does the rest while nobody waits. If the process ends, the traces that it had are lost, and the
next traces start another.

A client's request is a span `InferRequest`. Below it is a span for its model, under the model's name, and below that
`compute`, the time of its execution. Requests that a model makes are below its `compute`, the steps of an ensemble
below the ensemble. An event of a request is an event of its span, under upstream's name.
"""

# Compiled by mypyc.
from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Sequence

import orjson

from stubserve.inference.trace import Trace
from stubserve.observability.traces.file import timestamps
from stubserve.observability.traces.queue import Item, TraceQueue
from stubserve.settings.groups import TracingSettings

_COMPUTE = ("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")
_OUTER = ("HTTP_", "GRPC_", "INFER_RESPONSE")


# A span for the process that exports it: its name, its id, the id of the span above it (0 for none), its beginning and
# end in nanoseconds of CLOCK_MONOTONIC, its events in order, its attributes
SentSpan = tuple[str, int, int, tuple[int, int], list[tuple[str, int]], dict[str, str | int]]
# A trace's id of 16 bytes in hexadecimal digits, its error, and its spans
Record = tuple[str, str, list[SentSpan]]


class SpanExport(TraceQueue):
    """Sends traces to a collector, in groups by the settings `bsp_*`."""

    def __init__(self, settings: TracingSettings) -> None:
        super().__init__(settings.max_queue_size, settings.max_export_batch_size, settings.schedule_delay_ms / 1000)
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._over = False

    def write(self, items: Sequence[Item]) -> None:
        records = [_record(trace) for tree, _ in items for trace in tree]
        if records and not self._export(records):
            self.lose(len(records), f"the collector at {self._settings.url} does not take them")

    def close(self) -> None:
        super().close()
        self._over = True
        process = self._process
        if process is not None:
            # By now the process is idle, or waits for a collector that hangs.
            process.kill()
            process.wait()

    def _export(self, records: Sequence[Record]) -> bool:
        """Whether the collector has them. Raises OSError if that is unknown."""
        process = self._process
        if self._over:
            raise OSError("the server has ended")
        if process is None or process.poll() is not None:
            process = self._process = self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        # The two clocks run at different speeds, so the current difference counts.
        offset_ns = time.time_ns() - time.monotonic_ns()
        answer = b""
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(orjson.dumps([offset_ns, records]) + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        if not answer:
            # The pipes of the process close before it can be waited for, and the next traces start another process.
            self._process = None
            process.kill()
            process.wait()
            raise OSError("the process that exports them has ended")
        return answer == b"taken\n"

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "stubserve.observability.traces.span_worker"]
        resource = json.dumps(self._settings.resource)
        return subprocess.Popen([*command, self._settings.url, resource], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _record(trace: Trace) -> Record:
    last = trace.sent_ns or trace.answered_ns or trace.begun_ns
    answered = trace.answered_ns or last
    events = timestamps(trace)
    spans: list[SentSpan] = []
    if trace.outer_span:
        kept = [event for event in events if event[0].startswith(_OUTER)]
        times = (trace.request_start_ns or trace.begun_ns, last)
        spans.append(("InferRequest", trace.outer_span, trace.parent_span, times, kept, {}))
    told: dict[str, str | int] = {
        "triton.model_name": trace.model,
        "triton.model_version": trace.version,
        "triton.trace_id": trace.number,
        "triton.trace_parent_id": trace.parent,
        "triton.request_id": trace.request_id,
        **{f"{copy.activity}.{copy.name}": f"{list(copy.shape)}, {copy.nbytes} bytes" for copy in trace.tensors},
    }
    if trace.left_out:
        told["stubserve.tensors_left_out"] = str(trace.left_out)
    kept = [event for event in events if event[0] not in _COMPUTE and not event[0].startswith(_OUTER)]
    above = trace.outer_span or trace.parent_span
    spans.append((trace.model, trace.span, above, (trace.begun_ns, answered), kept, told))
    if trace.compute_start_ns:
        told = {
            "stubserve.batch.id": trace.batch,
            "stubserve.batch.size": trace.batch_size,
            "stubserve.instance": trace.instance,
        }
        kept = [event for event in events if event[0] in _COMPUTE]
        times = (trace.compute_start_ns, trace.compute_end_ns or answered)
        spans.append(("compute", trace.compute_span, trace.span, times, kept, told))
    return f"{trace.trace_id:032x}", trace.error, spans
