"""How much waits to be written, and what the file says of what had no room."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from stubserve_stub.wire.datatypes import BYTES

from stubserve.inference.tensor import Tensor
from stubserve.inference.trace import QUEUE_INPUT, TENSOR_BYTES, Trace
from stubserve.observability.traces.file import TraceFile
from stubserve.observability.traces.queue import TENSORS, Item, TraceQueue, Tracer, TraceRules
from tests.inference.models import request


class Slow(TraceQueue):
    """Writes when it is told to."""

    def __init__(self) -> None:
        super().__init__(1000, 1, 0.0)
        self.go_on = threading.Event()
        self.written: list[str] = []

    def write(self, items: Sequence[Item]) -> None:
        self.go_on.wait()
        self.written += [trace.request_id for tree, _ in items for trace in tree]


def test_long_ids_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    queue = Slow()
    tracer = Tracer(TraceRules(), queue, spans=False)
    long = "i" * (40 << 20)
    for id_ in long, long, "short":
        request(id=id_, trace=Trace(tracer, "m", 1, "HTTP", 1)).end_trace()
    queue.go_on.set()
    queue.close()
    assert queue.written == [long, "short"]
    assert queue.dropped == 1
    assert "1 traces are lost" in caplog.text


class Counted(TraceQueue):
    """Remembers how many traces each tree had that it was given at a time."""

    def __init__(self) -> None:
        super().__init__(1000, 4, 60.0)
        self.written: list[list[int]] = []

    def write(self, items: Sequence[Item]) -> None:
        self.written.append([len(tree) for tree, _ in items])


def test_not_too_many_traces_are_written_at_a_time() -> None:
    """For others wait meanwhile: but a tree stays whole."""
    queue = Counted()
    tracer = Tracer(TraceRules(), queue, spans=False)
    for children in 0, 1, 4:
        root = Trace(tracer, "m", 1, "HTTP", 1)
        for _ in range(children):
            request(trace=root.child("n", 1, 1)).end_trace()
        request(trace=root).end_trace()
    queue.close()
    assert queue.written == [[1, 2], [5]]


def test_the_file_says_how_many_tensors_are_left_out(tmp_path: Path) -> None:
    file = TraceFile(str(tmp_path / "traces.json"))
    tracer = Tracer(TraceRules((TENSORS,)), file, spans=False)
    trace = Trace(tracer, "m", 1, "HTTP", 1)
    # Of strings that are cut nothing is written, so the file is a small one.
    trace.capture(QUEUE_INPUT, [Tensor("IN", BYTES, (1,), bytes(TENSOR_BYTES + 1))] * 64)
    request(trace=trace).end_trace()
    file.close()
    first, *others = json.loads((tmp_path / "traces.json").read_text())
    assert first["tensors_left_out"] == 1
    assert [one["tensor"]["name"] for one in others] == ["IN"] * 63


class AtOnce(TraceFile):
    """Writes what it is given without a thread."""

    def put(self, tree: Sequence[Trace], tracer: Tracer) -> None:
        self.write([(tree, tracer)])


def test_what_waits_for_a_numbered_file_is_written_when_it_is_much(tmp_path: Path) -> None:
    """However many traces a client wants in each file."""
    file = AtOnce(str(tmp_path / "traces.json"))
    tracers = [Tracer(TraceRules(log_frequency=1_000_000), file, spans=False) for _ in range(2)]
    for id_, tracer in ("i" * (40 << 20), tracers[0]), ("short", tracers[1]), ("j" * (40 << 20), tracers[0]):
        assert not list(tmp_path.iterdir())
        request(id=id_, trace=Trace(tracer, "m", 1, "HTTP", 1)).end_trace()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["traces.json.0", "traces.json.1"]
    request(id="last", trace=Trace(tracers[0], "m", 1, "HTTP", 1)).end_trace()
    file.finish()
    assert [len(json.loads((tmp_path / f"traces.json.{index}").read_text())) for index in range(3)] == [2, 1, 1]
