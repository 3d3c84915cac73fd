"""The loop of a stub, with a backend that writes down what it is asked and a line that keeps what is said."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from stubserve_stub.backends.base import Backend, InstanceSetup, ModelFiles
from stubserve_stub.runtime.batch import Batch
from stubserve_stub.runtime.channel import EXECUTING, FINALIZING, IDLE
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.runtime.host import Host
from stubserve_stub.runtime.seats import Seats
from stubserve_stub.wire import messages
from stubserve_stub.wire.arena import ArenaFull
from stubserve_stub.wire.places import InArena, Lent

BOOT = {"threads": 0, "version_dir": "/m/1", "model_file": "/m/1/model.py", "module": "1.model", "paths": ["/m/1"]}
INITIALIZE = {
    "kind": "initialize", "number": 1, "segment": 1, "descriptors": [], "instance": "m_0", "arguments": {"a": "b"},
    "outputs": ["OUT"], "decoupled": False,
}  # fmt: skip
COMPLETE = {"kind": "complete", "model": "m", "config": "{}"}
LOADED = ["initialize", "model_initialize", "instance_initialize"]
FINALIZED = "instance_finalize"


class Line:
    """Stands for the control socket: `inbox` has the orders, `said` what is sent, `handlers` those of its thread."""

    def __init__(self, orders: Sequence[dict[str, Any]]) -> None:
        self.inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        for order in orders:
            self.inbox.put(order)
        self.handlers: dict[str, Callable[[dict[str, Any]], None]] = {}
        self.said: list[dict[str, Any]] = []
        self.forgotten: list[int] = []
        self.news = threading.Condition()

    def handle(self, kind: str, handler: Callable[[dict[str, Any]], None], seat: int | None = None) -> None:
        self.handlers[kind] = handler

    def forget(self, seat: int) -> None:
        self.forgotten.append(seat)

    def send(self, kind: str, seat: int | None = None, **fields: Any) -> None:
        with self.news:
            self.said.append({"kind": kind, **fields})
            self.news.notify_all()

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.said if message["kind"] == kind]


class Channel:
    """Stands for the rings. `batches` are numbers of batches to execute; then it says stop."""

    def __init__(self, batches: Sequence[int]) -> None:
        self._batches = list(batches)
        self.sent: list[Any] = []
        self.states: list[tuple[int, int]] = []
        self.freed: list[int] = []
        # How many bytes a message may have
        self.room = 10_000
        self.is_sending = False
        self.devices = None
        self.is_left = False

    def leave(self, refuse: Any) -> None:
        self.is_left = True

    @property
    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        self.is_sending = True
        yield
        self.is_sending = False

    def receive(self) -> list[tuple[Any, ...]]:
        if not self._batches:
            return [(messages.STOP,)]
        number = self._batches.pop(0)
        return [(messages.EXECUTE, number, (number * 100,), ("request",))]

    def send(self, data: bytes) -> None:
        if len(data) > self.room:
            raise ArenaFull(f"no room for {len(data)} bytes")
        self.sent.append(messages.unpack(data))

    def free(self, offsets: Sequence[int]) -> None:
        self.freed += offsets

    def set_health(self, state: int, batch: int = 0) -> int:
        self.states.append((state, batch))
        return time.monotonic_ns()


class Steps(Backend):
    """Writes down which functions were called, and raises in those that are told so. `executing` runs in each batch."""

    def __init__(self, raising: dict[str, BaseException], executing: Callable[[Batch], Any]) -> None:
        self.called: list[str] = []
        self.given: dict[str, Any] = {}
        self._raising = raising
        self._executing = executing

    def _note(self, name: str, given: Any = None) -> None:
        self.called.append(name)
        self.given[name] = given
        if name in self._raising:
            raise self._raising[name]

    def initialize(self, host: Host) -> None:
        super().initialize(host)
        self._note("initialize", host)

    def model_initialize(self, model: ModelFiles) -> None:
        self._note("model_initialize", model)
        self.methods = ["execute"]

    def complete_config(self, model: str, config_json: str) -> str:
        self._note("complete_config", (model, config_json))
        return "{completed}"

    def for_instance(self, host: Host) -> Steps:
        self.host = host
        return self

    def instance_initialize(self, instance: InstanceSetup) -> None:
        self._note("instance_initialize", instance)

    def execute(self, batch: Batch) -> Any:
        self._note(f"execute {batch.number}")
        return self._executing(batch)

    def instance_finalize(self) -> None:
        self._note("instance_finalize")

    def cancel(self, number: int, indices: Sequence[int]) -> None:
        self._note("cancel", (number, indices))

    def revoke(self, number: int) -> None:
        self._note("revoke", number)


def answer(batch: Batch) -> Any:
    batch.computed()
    return [(None, [("OUT", 2, [1], b"\1")], None)]


class Process(Seats):
    """The seats of a stub, with rings that are not there."""

    channels: Any

    def _channel(self, order: dict[str, Any], line: Any) -> Any:
        return self.channels


class Stub:
    """The only seat of a stub with everything around it."""

    def __init__(
        self,
        orders: Sequence[dict[str, Any]] = (INITIALIZE,),
        batches: Sequence[int] = (),
        raising: dict[str, BaseException] | None = None,
        executing: Callable[[Batch], Any] = answer,
    ) -> None:
        self.line = Line(orders)
        self.channel = Channel(batches)
        self.backend = Steps(raising or {}, executing)
        line: Any = self.line
        self.seats = Process(-1, Host("m", line), line, BOOT, self.backend, raised)
        self.seats.channels = self.channel

    def run(self) -> Stub:
        self.seats.run()
        return self


def raised(error: BaseException) -> Any:
    raise error


def test_the_functions_of_a_backend() -> None:
    stub = Stub(batches=[1, 2]).run()
    assert stub.backend.called == [*LOADED, "execute 1", "execute 2", FINALIZED]
    assert stub.backend.given["model_initialize"] == ("/m/1", "/m/1/model.py", "1.model", ["/m/1"])
    assert stub.backend.given["instance_initialize"] == ("m_0", {"a": "b"}, ["OUT"], False)
    loading, imported, ready, left = stub.line.said
    assert (loading, left, stub.line.forgotten) == ({"kind": "loading"}, {"kind": "left"}, [1])
    assert stub.channel.is_left
    assert (imported["kind"], imported["completes_config"], imported["methods"]) == ("imported", False, ["execute"])
    assert ready == {"kind": "ready", "checks_readiness": False, "streams": 0}
    assert stub.channel.freed == [100, 200]
    assert stub.channel.states == [(IDLE, 0), (EXECUTING, 1), (IDLE, 0), (EXECUTING, 2), (IDLE, 0), (FINALIZING, 0)]
    for number, result in enumerate(stub.channel.sent, 1):
        kind, batch, start_ns, end_ns, entries, held, error = result
        assert (kind, batch, held, error) == (messages.RESULT, number, (), None)
        assert entries == ((None, (("OUT", 2, (1,), b"\1"),), None),)
        assert start_ns <= end_ns


def test_a_process_that_completes_a_configuration_only() -> None:
    stub = Stub([COMPLETE, INITIALIZE]).run()
    assert stub.backend.called == ["initialize", "model_initialize", "complete_config"]
    assert stub.backend.given["complete_config"] == ("m", "{}")
    assert stub.line.said[2:] == [{"kind": "completed", "config": "{completed}"}]


@pytest.mark.parametrize(
    ("function", "stage"),
    [
        ("initialize", "import"),
        ("model_initialize", "import"),
        ("complete_config", "auto_complete_config"),
        ("instance_initialize", "initialize"),
    ],
)
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Refusal("not with me"), "not with me"),
        (ValueError("x"), "ValueError: x\n\nAt:\n"),
        (SystemExit(3), "SystemExit: 3\n\nAt:\n"),
        (KeyboardInterrupt(), "KeyboardInterrupt: <EMPTY MESSAGE>\n\nAt:\n"),
    ],
)
def test_a_function_that_fails_ends_the_load(function: str, stage: str, error: BaseException, text: str) -> None:
    orders = [COMPLETE] if function == "complete_config" else [INITIALIZE]
    stub = Stub(orders, batches=[1], raising={function: error}).run()
    assert stub.backend.called[-1] == function
    (last,) = stub.line.of("failed")
    assert last["stage"] == stage
    assert stub.line.of("left") == ([{"kind": "left"}] if stage == "initialize" else [])
    assert last["error"].startswith(text)
    assert stub.channel.sent == []


@pytest.mark.parametrize("lacks", ["descriptors", "threads"])
def test_a_seat_that_cannot_be_had_leaves_nothing(lacks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, passed = os.pipe()
    line: Any = Line([{**INITIALIZE, "descriptors": [passed]}])
    seats = Seats(-1, Host("m", line), line, BOOT, Steps({}, answer), raised)
    os.set_blocking(kept, False)
    with os.fdopen(kept, "rb", 0) as end:
        if lacks == "descriptors":
            seats.run()
        else:

            def start(thread: threading.Thread) -> None:
                raise RuntimeError("can't start new thread")

            monkeypatch.setattr(threading.Thread, "start", start)
            seats._begin(line.inbox.get())
        assert end.read() == b""  # nobody has the other end
    assert [message["kind"] for message in line.said[-2:]] == ["failed", "left"]


@pytest.mark.parametrize("error", [Refusal("broken"), ValueError("broken"), SystemExit(0), KeyboardInterrupt()])
def test_a_batch_that_fails_is_answered_with_that(error: BaseException) -> None:
    stub = Stub(batches=[1, 2], raising={"execute 1": error}).run()
    failed, fine = stub.channel.sent
    assert failed[4:6] == ((), ())
    expected = "broken" if isinstance(error, Refusal) else type(error).__name__ + ": "
    assert failed[6].startswith("Failed to process the request(s) for model 'm_0', message: " + expected)
    assert fine[6] is None
    (line,) = stub.line.of("log")
    front = "Failed to process the request(s) for model 'm_0', message: "
    assert line["level"] == 2
    assert line["message"].startswith(front + ("broken" if isinstance(error, Refusal) else type(error).__name__))
    assert ("raise self._raising[name]" in line["message"]) is not isinstance(error, Refusal)


def test_in_a_process_that_the_model_has_forked_it_speaks_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def executing(batch: Batch) -> Any:
        monkeypatch.setattr(os, "getpid", lambda: -1)
        raise ValueError("in the child")

    stub = Stub(batches=[1], executing=executing)
    with pytest.raises(ValueError, match="in the child"):
        stub.run()
    assert stub.channel.sent == []
    assert stub.line.of("log") == []
    assert stub.line.of("left") == []
    assert stub.backend.called == [*LOADED, "execute 1"]


def cancel(stub: Stub, number: int, *indices: int) -> None:
    """What the control thread does."""
    stub.line.handlers["cancel"]({"batch": number, "indices": list(indices)})


def test_cancelled_before_while_and_after() -> None:
    seen: list[Any] = []

    def executing(batch: Batch) -> Any:
        seen.append((batch.number, tuple(batch.cancelled)))
        if batch.number == 1:
            cancel(stub, 1, 3)
            cancel(stub, 1, 4)
            seen.append((1, tuple(batch.cancelled)))
            # The next two, which have not come yet
            cancel(stub, 2, 0)
            cancel(stub, 2, 5)
            cancel(stub, 3, 1)
        if batch.number == 2:
            cancel(stub, 1, 6)  # has been answered
            seen.append((2, tuple(batch.cancelled)))
        return answer(batch)

    stub = Stub(batches=[1, 2, 3, 4], executing=executing)
    stub.run()
    assert [result[6] for result in stub.channel.sent] == [None] * 4
    assert seen == [(1, ()), (1, (3, 4)), (2, (0, 5)), (2, (0, 5)), (3, (1,)), (4, ())]
    assert stub.line.handlers["cancel"].__self__._cancelled == {}  # type: ignore[attr-defined]
    # The backend hears of each, whenever it comes.
    assert stub.backend.called.count("cancel") == 6
    assert stub.backend.given["cancel"] == (1, [6])


def test_a_result_that_does_not_fit() -> None:
    """Its own memory is freed, what it was lent is not, and the clients are told why."""

    def executing(batch: Batch) -> Any:
        outputs = [("A", 2, [5000], InArena(4096, 5000)), ("B", 2, [5000], Lent(8192, 5000, 8192))]
        return [(None, [*outputs, ("C" * 20_000, 2, [1], b"\1")], None), None]

    stub = Stub(batches=[7], executing=executing).run()
    assert stub.channel.freed == [700, 4096]
    assert stub.backend.given["revoke"] == 7
    ((_, number, _, _, entries, _, error),) = stub.channel.sent
    assert (number, entries) == (7, ())
    assert error.startswith("no room for ")


def test_what_is_held_is_said_with_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare_result(entries: Any) -> Any:
        assert stub.channel.is_sending
        assert stub.channel.sent == []
        return [4096], entries

    def executing(batch: Batch) -> Any:
        monkeypatch.setattr(type(batch), "prepare_result", lambda _, entries: prepare_result(entries))
        return answer(batch)

    stub = Stub(batches=[1], executing=executing)
    stub.run()
    assert stub.channel.sent[0][5] == (4096,)


def test_what_a_finalizer_raises_is_logged() -> None:
    stub = Stub(raising={FINALIZED: SystemExit(FINALIZED)}).run()
    assert stub.backend.called == [*LOADED, FINALIZED]
    (line,) = stub.line.of("log")
    assert line["level"] == 0
    assert line["message"].startswith(f"SystemExit: {FINALIZED}\n")


@pytest.mark.parametrize(
    ("result", "ready", "reason"),
    [
        (True, True, ""),
        (False, False, "Model 'm_0' is not ready (user-defined check failed)."),
        (ValueError("cold"), False, "ValueError: cold"),
        (SystemExit(1), False, "SystemExit: 1"),
        (Refusal("cold"), False, "cold"),
    ],
)
def test_is_ready_is_asked_beside_the_batches(result: Any, ready: bool, reason: str) -> None:
    """While it takes its time, a cancellation gets through, and batches are executed."""
    may_answer = threading.Event()

    def is_ready() -> bool:
        assert may_answer.wait(60)
        if isinstance(result, BaseException):
            raise result
        return bool(result)

    def executing(batch: Batch) -> Any:
        stub.line.handlers["is_ready"]({})
        cancel(stub, batch.number, 0)
        assert batch.cancelled == (0,)
        return answer(batch)

    stub = Stub(batches=[1], executing=executing)
    stub.backend.is_ready = is_ready  # type: ignore[method-assign]
    stub.run()
    assert [result[6] for result in stub.channel.sent] == [None]
    assert stub.line.of("readiness") == []
    may_answer.set()
    with stub.line.news:
        assert stub.line.news.wait_for(lambda: stub.line.of("readiness"), 60)
    (said,) = stub.line.of("readiness")
    assert said["ready"] is ready
    assert said["reason"].startswith(reason)
    assert not reason or said["reason"]
