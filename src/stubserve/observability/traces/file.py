"""Traces in upstream's form: JSON files, for `trace_summary.py` and for people.

A file is an array of small objects; those of one request have the same `id`. With a log frequency of n there is a file
`<file>.<index>` for every n sampled requests, and for the rest at the end. A client may ask for any n, so 64 MiB of
waiting text also become a file. Without a frequency all traces go into `<file>`, as they come. That file is a whole
array from its first trace on, so nothing piles up in memory, and a server that is killed leaves its traces. If the file
has been renamed or emptied meanwhile, a new array begins.

Beside upstream's fields an object with `model_name` has the `batch` in which the request was executed, and
`tensors_left_out`, the number of tensors for which there was no room, if that is not 0.
"""

# Compiled by mypyc.
from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import orjson

from stubserve.inference.trace import Trace
from stubserve.observability.traces.queue import Item, TraceQueue, Tracer
from stubserve.observability.traces.tensors import shown

_LIMIT = 20_000
_ENOUGH = 256
_DELAY_S = 0.5
# Characters of text that may wait for their numbered files
_MOST_WAITING = 64 << 20


class TraceFile(TraceQueue):
    """Writes traces to `path`, or to numbered files beside it."""

    def __init__(self, path: str) -> None:
        super().__init__(_LIMIT, _ENOUGH, _DELAY_S)
        self._path = path
        self._index = 0
        # The file's length without its closing bracket; 0 before there is a file
        self._end = 0
        # Per tracer: texts of trees that wait for their numbered file
        self._waiting: dict[Tracer, list[str]] = {}
        self._waiting_size = 0

    def write(self, items: Sequence[Item]) -> None:
        texts: list[str] = []
        for tree, tracer in items:
            if not tree:
                self._write_waiting(tracer)
                continue
            text = ",".join(_objects(tree, tracer))
            if not tracer.rules.log_frequency:
                texts.append(text)
                continue
            waiting = self._waiting.setdefault(tracer, [])
            waiting.append(text)
            self._waiting_size += len(text)
            if len(waiting) >= tracer.rules.log_frequency:
                self._write_waiting(tracer)
            if self._waiting_size > _MOST_WAITING:
                self.finish()
        self._append_texts(texts)

    def finish(self) -> None:
        for tracer in list(self._waiting):
            self._write_waiting(tracer)

    def _write_waiting(self, tracer: Tracer) -> None:
        texts = self._waiting.pop(tracer, None)
        if not texts:
            return
        self._waiting_size -= sum(map(len, texts))
        path = f"{self._path}.{self._index}"
        self._index += 1
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"[{','.join(texts)}]")

    def _append_texts(self, texts: Sequence[str]) -> None:
        if not texts:
            return
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        with open(descriptor, "r+b", buffering=0) as file:
            if os.fstat(descriptor).st_size < self._end:
                self._end = 0
            if not self._end:
                file.truncate(0)
            data = ("," if self._end else "[").encode() + ",".join(texts).encode()
            file.seek(self._end)
            try:
                left = memoryview(data + b"]")
                while left:
                    left = left[file.write(left) :]
            except OSError:
                # The disk is full: the file stays an array without this trace.
                with contextlib.suppress(OSError):
                    file.truncate(self._end)
                    if self._end:
                        os.pwrite(file.fileno(), b"]", self._end)
                raise
        self._end += len(data)


def _objects(tree: Sequence[Trace], tracer: Tracer) -> list[str]:
    """A tree in upstream's form; frequent parts are joined by hand, which takes a tenth of the time."""
    found: list[str] = []
    for trace in tree:
        what: dict[str, Any] = {"id": trace.number, "model_name": trace.model, "model_version": trace.version}
        if trace.request_id:
            what["request_id"] = trace.request_id
        if trace.parent:
            what["parent_id"] = trace.parent
        if trace.batch:
            what["batch"] = {"id": trace.batch, "size": trace.batch_size, "instance": trace.instance}
        if trace.error:
            what["error"] = trace.error
        if trace.left_out:
            what["tensors_left_out"] = trace.left_out
        found.append(_json(what))
        if tracer.timestamps:
            front = f'{{"id":{trace.number},"timestamps":[{{"name":"'
            found += [f'{front}{name}","ns":{ns}}}]}}' for name, ns in timestamps(trace)]
        for copy in trace.tensors:
            found.append(_json({"id": trace.number, "activity": copy.activity, "tensor": shown(copy)}))
    return found


def _json(value: dict[str, Any]) -> str:
    return orjson.dumps(value).decode()


def timestamps(trace: Trace) -> list[tuple[str, int]]:
    """The events of a request in order, by upstream's names."""
    received, sent = ("GRPC_WAITREAD", "GRPC_SEND") if trace.protocol == "GRPC" else ("HTTP_RECV", "HTTP_SEND")
    found: list[tuple[str, int]] = []
    if trace.protocol:
        found += [(f"{received}_START", trace.request_start_ns), (f"{received}_END", trace.request_start_ns)]
    found += [
        ("REQUEST_START", trace.begun_ns),
        ("QUEUE_START", trace.queue_start_ns),
        ("COMPUTE_START", trace.compute_start_ns),
        ("COMPUTE_INPUT_END", trace.compute_input_end_ns),
        ("COMPUTE_OUTPUT_START", trace.compute_infer_end_ns),
        ("COMPUTE_END", trace.compute_end_ns),
    ]
    if trace.protocol:
        found.append(("INFER_RESPONSE_COMPLETE", trace.answered_ns))
    found.append(("REQUEST_END", trace.answered_ns))
    if trace.protocol:
        found += [(f"{sent}_START", trace.answered_ns), (f"{sent}_END", trace.sent_ns)]
    return [(name, ns) for name, ns in found if ns]
