"""Decoupled models over event streams and gRPC: threads, coroutines, cancellation, slow readers, deaths, memory."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from tests.real_server import PATIENCE_S, Serving, write_model
from tests.server.grpc_calls import connected

CONFIG = """
    backend: "python"
    input [ { name: "DO" data_type: TYPE_STRING dims: [ 1 ] } ]
    output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]
    model_transaction_policy { decoupled: true }
"""

# Every request in a thread of its own.
THREADS = """
    import threading, time, numpy as np
    import triton_python_backend_utils as pb_utils

    def answer(text):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([text], object))])

    class TritonPythonModel:
        def initialize(self, args):
            self.held = []
            self.sent = 0
            self.released = threading.Event()

        def execute(self, requests):
            for request in requests:
                order = request.inputs()[0].as_numpy()[0].decode()
                if order == "return":
                    return []
                if order == "in execute":
                    self.count(request, 1000)
                elif order == "large in execute":
                    self.large(request, 2000)
                elif order == "hold":
                    request.get_response_sender().send(answer("held"))
                    self.held.append(request)
                elif order == "let go":
                    request.get_response_sender().send(answer("and gone"))
                elif order == "let go silently":
                    pass
                else:
                    threading.Thread(target=getattr(self, order.split()[0]), args=(request, *order.split()[1:])).start()

        def count(self, request, number):
            sender = request.get_response_sender()
            for value in range(int(number)):
                sender.send(answer(str(value)))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

        def wait(self, request):
            sender = request.get_response_sender()
            sender.send(answer("waiting"))
            while not (request.is_cancelled() and sender.is_cancelled()):
                time.sleep(0.001)
            print("saw the cancellation", flush=True)
            sender.send(flags=1)

        def large(self, request, number):
            sender = request.get_response_sender()
            for value in range(int(number)):
                sender.send(answer("x" * 65536))
                self.sent = value + 1
            print("sent them all", flush=True)
            sender.send(flags=1)

        def how_many(self, request):
            request.get_response_sender().send(answer(str(self.sent)), 1)
"""

COROUTINES = """
    import asyncio, numpy as np
    import triton_python_backend_utils as pb_utils

    def answer(text):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([text], object))])

    class TritonPythonModel:
        def initialize(self, args):
            self.go = None

        async def execute(self, requests):
            self.go = self.go or asyncio.Event()
            for request in requests:
                order = request.inputs()[0].as_numpy()[0].decode()
                sender = request.get_response_sender()
                sender.send(answer(order))
                if order == "first":
                    await self.go.wait()
                elif order == "raise":
                    await asyncio.sleep(0)
                    raise ValueError("in a coroutine")
                elif order == "cancel":
                    self.kept = sender
                    raise asyncio.CancelledError
                else:
                    self.go.set()
                sender.send(answer("done"), 1)
"""


class EventStream:
    """One `generate_stream` call on a connection of its own."""

    def __init__(self, serving: Serving, model: str, order: str, receive_buffer: int = 0) -> None:
        self._socket = socket.socket()
        if receive_buffer:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._socket.settimeout(PATIENCE_S)
        self._socket.connect(("127.0.0.1", serving.port))
        body = json.dumps({"DO": order}).encode()
        self._socket.sendall(
            b"POST /v2/models/%b/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
            % (model.encode(), len(body), body)
        )
        self._response: http.client.HTTPResponse | None = None

    def next(self) -> Any:
        """The next event: the text of OUT, or the error; None at the end."""
        if self._response is None:
            self._response = http.client.HTTPResponse(self._socket)
            self._response.begin()
        line = self._response.readline()
        if not line:
            return None
        assert self._response.readline() == b"\n"
        event = json.loads(line.removeprefix(b"data: "))
        return event.get("OUT", event.get("error"))

    def rest(self) -> list[Any]:
        """All events that are left; ends the connection."""
        events = list(iter(self.next, None))
        self.close()
        return events

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
        self._socket.close()


class GrpcStream:
    """One ModelStreamInfer call on a connection of its own, with the same methods."""

    def __init__(self, serving: Serving, model: str, order: str, receive_buffer: int = 0) -> None:
        # grpcio takes no socket options for its buffers; it stops reading when nobody takes its messages. But on a busy
        # machine it takes slow answers for a long line, and lets the server send up to 64 MiB ahead.
        fixed_window = ("grpc.http2.bdp_probe", 0)
        text = order.encode()
        message = service_pb2.ModelInferRequest(model_name=model)
        message.inputs.add(name="DO", datatype="BYTES", shape=[1])
        message.raw_input_contents.append(len(text).to_bytes(4, "little") + text)
        self._open = ExitStack()
        stub = self._open.enter_context(connected(serving, None, fixed_window)).stub
        self._call = stub.ModelStreamInfer(iter([message]), timeout=PATIENCE_S)

    def next(self) -> Any:
        """The next response: the text of OUT, or the error; None at the end."""
        answer = next(self._call, None)
        if answer is None:
            return None
        return answer.error_message or answer.infer_response.raw_output_contents[0][4:].decode()

    def rest(self) -> list[Any]:
        """All responses that are left; ends the connection."""
        events = list(iter(self.next, None))
        self.close()
        return events

    def close(self) -> None:
        self._call.cancel()
        self._open.close()


Opening = type[EventStream] | type[GrpcStream]


@pytest.fixture(scope="module", params=[EventStream, GrpcStream], ids=["events", "grpc"])
def opening(request: pytest.FixtureRequest) -> Opening:
    found: Opening = request.param
    return found


@pytest.fixture(scope="module")
def serving(opening: Opening, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A server for one of the protocols: some tests look for what earlier ones cannot have made."""
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "threads", THREADS, CONFIG)
    write_model(repository, "coroutines", COROUTINES, CONFIG)
    with Serving(repository) as server:
        server.wait_until_ready()
        yield server


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("order", ["in execute", "count 1000"])
def test_order_is_kept(serving: Serving, order: str, opening: Opening) -> None:
    streams = [opening(serving, "threads", order) for _ in range(4)]
    for stream in streams:
        assert stream.rest() == [str(value) for value in range(1000)]


def test_execute_must_return_none(serving: Serving, opening: Opening) -> None:
    (error,) = opening(serving, "threads", "return").rest()
    assert error == (
        "Failed to process the request(s) for model 'threads_0', message: Python model 'threads_0' is using the "
        "decoupled mode and the execute function must return None."
    )


def test_a_sender_that_is_let_go_ends_its_stream(serving: Serving, opening: Opening) -> None:
    assert opening(serving, "threads", "let go").rest() == ["and gone"]
    (error,) = opening(serving, "threads", "let go silently").rest()
    assert "'threads_0' let go of the response sender of this request without a response" in error


def test_coroutines_run_side_by_side(serving: Serving, opening: Opening) -> None:
    first = opening(serving, "coroutines", "first")
    assert first.next() == "first"
    assert opening(serving, "coroutines", "second").rest() == ["second", "done"]
    assert first.rest() == ["done"]


def test_a_coroutine_that_fails_says_so(serving: Serving, opening: Opening) -> None:
    text, error = opening(serving, "coroutines", "raise").rest()
    assert text == "raise"
    assert error.startswith("Failed to process the request(s) for model 'coroutines_0', message: ValueError: in a cor")
    serving.wait_for("ValueError: in a coroutine")


def test_a_coroutine_that_cancels_itself_says_so(serving: Serving, opening: Opening) -> None:
    text, error = opening(serving, "coroutines", "cancel").rest()
    assert text == "cancel"
    assert error.startswith("Failed to process the request(s) for model 'coroutines_0', message: CancelledError: ")


def test_the_model_sees_a_client_go(serving: Serving, opening: Opening) -> None:
    stream = opening(serving, "threads", "wait")
    assert stream.next() == "waiting"  # so an event is there before the model has finished
    stream.close()
    serving.wait_for("saw the cancellation")
    until(lambda: serving.statistics("threads")["response_stats"]["1"]["cancel"]["count"] > 0)


def test_a_slow_reader_slows_its_model_only(serving: Serving, opening: Opening) -> None:
    """128 MiB for a client that reads nothing: the model waits, and others are served; then all of it arrives."""
    slow = opening(serving, "threads", "large 2000", receive_buffer=65536)

    def how_many() -> int:
        (text,) = opening(serving, "threads", "how_many").rest()
        return int(text)

    counts = [-1, how_many()]

    def stands_still() -> bool:
        time.sleep(0.2)
        counts.append(how_many())
        return 0 < counts[-1] == counts[-2]

    until(stands_still)
    # Two groups of 2 MiB, what waits in the server, and the sockets' own buffers.
    assert counts[-1] * 65536 < 24 << 20
    assert len(slow.rest()) == 2000
    serving.wait_for("sent them all")


def test_a_dead_stream_lets_its_model_go_on(serving: Serving, opening: Opening) -> None:
    slow = opening(serving, "threads", "large 3000", receive_buffer=65536)
    assert slow.next()
    already = serving.output.count("sent them all")
    slow.close()
    until(lambda: serving.output.count("sent them all") > already)


def test_a_dead_stub_ends_its_streams(tmp_path_factory: pytest.TempPathFactory, opening: Opening) -> None:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "threads", THREADS, CONFIG)
    with Serving(repository) as serving:
        serving.wait_until_ready()
        streams = [opening(serving, "threads", order) for order in ("hold", "wait", "hold")]
        assert [stream.next() for stream in streams] == ["held", "waiting", "held"]
        (pid,) = serving.stub_pids()
        os.kill(pid, signal.SIGKILL)
        for stream in streams:
            (error,) = stream.rest()
            assert "Stub process 'threads_0' is not healthy: it was killed by signal 9 (SIGKILL)" in error


def test_outputs_are_freed_while_execute_goes_on(tmp_path_factory: pytest.TempPathFactory, opening: Opening) -> None:
    """128 MiB of outputs pass through 32 MiB of shared memory, all from within one `execute`."""
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "threads", THREADS, CONFIG)
    with Serving(repository, "--shm-limit=32M") as serving:
        serving.wait_until_ready()
        events = opening(serving, "threads", "large in execute").rest()
        assert len(events) == 2000
        assert set(events) == {"x" * 65536}


def resident_kib(pid: int) -> int:
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


def test_streams_leave_memory_flat(tmp_path_factory: pytest.TempPathFactory, opening: Opening) -> None:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "threads", THREADS, CONFIG)
    with Serving(repository) as serving:
        serving.wait_until_ready()

        def run() -> list[int]:
            for order in ("count 10000", "in execute", "large 200"):
                for _ in range(2):
                    assert opening(serving, "threads", order).rest()
            return [resident_kib(pid) for pid in (serving.process.pid, *serving.stub_pids())]

        run()
        before = run()
        after = run()
        assert [late - early < 8192 for early, late in zip(before, after, strict=True)] == [True, True], (before, after)
