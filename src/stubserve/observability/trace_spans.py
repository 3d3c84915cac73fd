"""Traces as spans of OpenTelemetry, exported by a process of its own (`span_worker`).

OpenTelemetry's SDK takes 150 µs to make the spans of one request and put them into bytes, and holds the interpreter's
lock meanwhile: of every hundredth request that is a twelfth of what all of them take. Here a trace becomes a line of
JSON, and the rest is done where nobody waits for it. A process that has ended costs the traces that it had, and the
next ones start another.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Sequence

import orjson

from stubserve.inference.trace import Trace
from stubserve.observability.span_record import SpanRecord
from stubserve.observability.trace_file import timestamps
from stubserve.observability.trace_queue import Item, TraceQueue
from stubserve.settings.tracing import TracingSettings


class SpanExport(TraceQueue):
    """Sends traces to a collector, in groups as `bsp_*` of the settings say."""

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
            # By now it has nothing to do, or waits for a collector that hangs.
            process.kill()
            process.wait()

    def _export(self, records: Sequence[SpanRecord]) -> bool:
        """Whether the collector has them. Raises OSError if nobody can say."""
        process = self._process
        if self._over:
            raise OSError("the server has ended")
        if process is None or process.poll() is not None:
            process = self._process = self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        # The two clocks are not at the same pace, so the difference is that of now.
        offset_ns = time.time_ns() - time.monotonic_ns()
        answer = b""
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(orjson.dumps([offset_ns, list(map(tuple, records))]) + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        if not answer:
            # Its pipes close before it can be waited for, and the next traces are to start another.
            self._process = None
            process.kill()
            process.wait()
            raise OSError("the process that exports them has ended")
        return answer == b"taken\n"

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "stubserve.observability.span_worker"]
        resource = json.dumps(self._settings.resource)
        return subprocess.Popen([*command, self._settings.url, resource], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _record(trace: Trace) -> SpanRecord:
    first, last = trace.request_start_ns or trace.begun_ns, trace.sent_ns or trace.answered_ns or trace.begun_ns
    return SpanRecord(
        trace.number,
        trace.parent,
        trace.model,
        trace.version,
        trace.request_id,
        trace.error,
        trace.batch,
        trace.batch_size,
        trace.instance,
        f"{trace.trace_id:032x}",
        trace.parent_span,
        trace.outer_span,
        trace.span,
        trace.compute_span,
        (first, last),
        (trace.begun_ns, trace.answered_ns or last),
        (trace.compute_start_ns, trace.compute_end_ns or trace.answered_ns or last),
        timestamps(trace),
        _tensors(trace),
    )


def _tensors(trace: Trace) -> dict[str, str]:
    """Attributes that tell of its tensors."""
    told = {f"{copy.activity}.{copy.name}": f"{list(copy.shape)}, {copy.nbytes} bytes" for copy in trace.tensors}
    if trace.left_out:
        told["stubserve.tensors_left_out"] = str(trace.left_out)
    return told
