"""More than the server can do: what is refused says when to come again, and the rest goes on."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grpc import RpcError
from tritonclient.grpc import service_pb2

from tests.server.grpc_calls import connected as connected_by_grpc
from tests.server.grpc_calls import request as grpc_request

from ..real_server import PATIENCE_S, Answer, Serving, binary_request, eventually, io_config, write_model

# Answers when the file `go` is in its folder.
WAITING = """
    import os, time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.go = os.path.join(args["model_repository"], "go")

        def execute(self, requests):
            while not os.path.exists(self.go):
                time.sleep(0.005)
            return [
                pb_utils.InferenceResponse([
                    pb_utils.Tensor("OUTPUT0", pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy())
                ])
                for request in requests
            ]
"""
BOUNDED = "dynamic_batching { default_queue_policy { max_queue_size: 2 } }"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    write_model(folder, "waiting", WAITING, io_config(max_batch_size=1, extra=BOUNDED))
    write_model(folder, "quick")
    return folder


def test_a_full_queue_says_when_to_come_again(repository: Path) -> None:
    """A model that hangs takes its own instances only: others are served meanwhile, and health answers."""
    array = np.ones((1, 1), np.float32)
    statuses: list[int] = []
    with Serving(repository, "--shm-limit=64M") as serving:

        def ask() -> None:
            statuses.append(serving.infer_array("waiting", array).status)

        # It runs one and has one ahead of time; two wait; the rest is refused, at once.
        threads = [threading.Thread(target=ask) for _ in range(12)]
        for thread in threads:
            thread.start()
        eventually(lambda: statuses.count(503) >= 8)
        refused = serving.infer_array("waiting", array)
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert refused.error.endswith("Exceeds maximum queue size")
        assert serving.infer_array("quick", np.ones(3, np.float32)).status == 200
        assert serving.get("/v2/health/ready").status == 200
        # What will never fit is not worth another try.
        too_large = serving.infer_array("quick", np.ones(20 << 20, np.float32))
        assert too_large.status == 503
        assert "retry-after" not in too_large.headers
        (repository / "waiting" / "go").touch()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert sorted(set(statuses)) == [200, 503]
        (repository / "waiting" / "go").unlink()


# A server that is told of a want of memory by whoever it connects to, in place of the kernel.
TOLD = """
import os, socket, sys
from stubserve.cli import main
from stubserve.observability.memory_pressure import watch as memory_pressure

def start(self, path=None):
    self.watch(os.dup(teller.fileno()))

teller = socket.create_connection(("127.0.0.1", int(sys.argv.pop(1))))
memory_pressure.MemoryPressure.start = start
memory_pressure.PRESSED_S = 1.0
main()
"""


def test_when_memory_is_short_inference_is_refused_and_nothing_else(tmp_path: Path) -> None:
    """By each way in, for a while; who only asks about models and the server's health is answered."""
    write_model(tmp_path, "quick")
    array = np.ones(3, np.float32)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Serving(tmp_path, "--shed-on-memory-pressure")
        server.command[1:3] = ["-c", TOLD, str(listener.getsockname()[1])]
        with server as serving, listener.accept()[0] as teller, connected_by_grpc(serving) as grpc:
            assert serving.infer_array("quick", array).status == 200

            def refused(ask: Callable[[], bool]) -> None:
                """What the kernel tells is good for a second."""
                eventually(lambda: bool(teller.send(b"!", socket.MSG_OOB)) and ask())

            refused(lambda: serving.infer_array("quick", array).status == 503)
            refused(lambda: serving.infer_array("quick", np.ones(1 << 20, np.float32)).status == 503)
            refused(lambda: serving.request("POST", "/v2/models/quick/generate", b'{"INPUT0": 1.0}').status == 503)
            answers: list[Answer] = []
            refused(lambda: answers.append(serving.infer_array("quick", array)) or answers[-1].status == 503)
            assert answers[-1].headers["retry-after"] == "1"
            assert answers[-1].error == "memory is short on this machine; try again later (--shed-on-memory-pressure)"
            for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/quick/ready", "/v2/models/quick"):
                assert serving.get(path).status == 200
            assert grpc.stub.ModelReady(service_pb2.ModelReadyRequest(name="quick"), timeout=PATIENCE_S).ready
            asked = grpc_request("quick", [1.0])

            def refused_by_grpc() -> bool:
                try:
                    grpc.infer(asked)
                except RpcError as error:
                    return error.code().name == "UNAVAILABLE" and "memory is short" in error.details()
                return False

            refused(refused_by_grpc)
            assert float(re.findall(rb"^stubserve_requests_shed_total (\S+)$", serving.metrics().body, re.M)[0]) >= 4
            eventually(lambda: serving.infer_array("quick", array).status == 200)


# A server whose event loop has always just stood still for long when somebody needs memory.
STANDS = """
from stubserve.server import server
from stubserve.cli import main
from stubserve.connections import slow_clients

class Clock:
    now = 1000.0

    def __call__(self):
        return self.now

def make_room(self):
    clock.now += 40
    return as_it_is(self)

clock = slow_clients.monotonic = Clock()
as_it_is = server.Server._make_room
server.Server._make_room = make_room
main()
"""


def test_a_client_that_reads_has_all_of_its_answer_however_slow_the_server_is(tmp_path: Path) -> None:
    """Another needs memory while the answer is under way. That one is refused."""
    write_model(tmp_path, "quick")
    path, body, headers = binary_request("quick", np.arange(8 << 20, dtype=np.float32))
    lines = [f"POST {path} HTTP/1.1", "Host: a", f"Content-Length: {len(body)}"]
    head = "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items()), "", ""]).encode()
    server = Serving(tmp_path, "--shm-limit=64M")
    server.command[1:3] = ["-c", STANDS]
    with server as serving, socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        reader.settimeout(PATIENCE_S)
        reader.connect(("127.0.0.1", serving.port))
        reader.sendall(head + body)
        assert reader.recv(12, socket.MSG_WAITALL | socket.MSG_PEEK) == b"HTTP/1.1 200"
        refused = serving.infer_array("quick", np.zeros(10 << 20, np.float32))
        assert (refused.status, "--shm-limit" in refused.error) == (503, True)
        response = http.client.HTTPResponse(reader)
        response.begin()
        assert response.read().endswith(body[-(32 << 20) :])


def refusals(calls: list[Any]) -> list[str]:
    """The texts of those that have failed so far."""
    return [call.details() for call in calls if call.done() and call.exception() is not None]


@pytest.mark.parametrize("way", ["address", "connection", "token"])
def test_a_client_that_floods_a_model_gives_way_to_others(tmp_path: Path, way: str) -> None:
    """One client has filled the queue; another gets in all the same, by the place of the first one's newest."""
    write_model(tmp_path / "models", "waiting", WAITING)
    flood_token, quiet_token = "flood-0123456789abcdef", "quiet-0123456789abcdef"
    (tmp_path / "tokens").write_text(f"{flood_token}\n{quiet_token}\n")
    path, body, headers = binary_request("waiting", np.ones(4, np.float32))
    flags = [f"--fair-queues={way}", "--max-queue-size=3"]
    with contextlib.ExitStack() as stack:
        if way == "token":
            flags.append(f"--auth-token-file={tmp_path}/tokens")
        serving = stack.enter_context(Serving(tmp_path / "models", *flags))
        stub = stack.enter_context(connected_by_grpc(serving)).stub
        # One token is one client, however its header is spelled.
        spellings = itertools.cycle(["Bearer ", "bearer ", "BEARER ", "Bearer   "])
        request = grpc_request("waiting", [1.0, 2.0])
        flood: list[Any] = []
        authorized = {"Authorization": f"Bearer {flood_token}"}

        def full() -> bool:
            metadata = (("authorization", next(spellings) + flood_token),) if way == "token" else ()
            flood.append(stub.ModelInfer.future(request, metadata=metadata, timeout=PATIENCE_S))
            text = serving.metrics(headers=authorized).body.decode()
            return 'pending_request_count{model="waiting",version="1"} 3' in text

        eventually(full)
        source = ("127.0.0.2", 0) if way == "address" else None
        connection = http.client.HTTPConnection("127.0.0.1", serving.port, timeout=PATIENCE_S, source_address=source)
        stack.callback(connection.close)
        headers = {**headers, "Authorization": f"Bearer {quiet_token}"}
        connection.request("POST", path, body, headers)
        eventually(lambda: any("the place went to" in text for text in refusals(flood)))
        (tmp_path / "models" / "waiting" / "go").touch()
        assert connection.getresponse().status == 200
        eventually(lambda: all(call.done() for call in flood))
        texts = refusals(flood)
    assert sum("the place went to a client that has fewer requests waiting" in text for text in texts) == 1
    assert sum(text.endswith("Exceeds maximum queue size") for text in texts) == len(texts) - 1


def test_clients_of_streams_are_told_apart(tmp_path: Path) -> None:
    """Requests whose answers are streams go by way of an app, which knows the address of a connection, too."""
    write_model(tmp_path, "waiting", WAITING)

    def ask(address: str) -> Answer:
        connection = http.client.HTTPConnection(
            "127.0.0.1", serving.port, timeout=PATIENCE_S, source_address=(address, 0)
        )
        with contextlib.closing(connection):
            connection.request("POST", "/v2/models/waiting/generate_stream", b'{"INPUT0": [1.0, 2.0]}')
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())

    with (
        Serving(tmp_path, "--fair-queues=address", "--max-queue-size=3") as serving,
        ThreadPoolExecutor(16) as pool,
    ):
        flood: list[Future[Answer]] = []

        def refusals() -> list[str]:
            answers = [asked.result() for asked in flood if asked.done()]
            return [answer.body.decode() for answer in answers if answer.status != 200]

        def full() -> bool:
            flood.append(pool.submit(ask, "127.0.0.1"))
            return any("Exceeds maximum queue size" in text for text in refusals())

        try:
            eventually(full)
            quiet = pool.submit(ask, "127.0.0.2")
            eventually(lambda: quiet.done() or any("the place went to" in text for text in refusals()))
        finally:
            (tmp_path / "waiting" / "go").touch()
        assert quiet.result().status == 200
        wait(flood)
        texts = refusals()
    assert all("Exceeds maximum queue size" in text for text in texts)
    assert sum("the place went to a client that has fewer requests waiting" in text for text in texts) == 1


@contextlib.contextmanager
def busy(port: int, model: str, *lines: str) -> Iterator[socket.socket]:
    """A connection with a request under way whose body never comes; its head has these lines, too."""
    head = [f"POST /v2/models/{model}/infer HTTP/1.1", "Host: a", "Expect: 100-continue", "Content-Length: 100", *lines]
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        connection.sendall("\r\n".join([*head, "", ""]).encode())
        # Until its head is read, a connection is idle and gives way to the next.
        assert b" 100 Continue\r\n" in connection.recv(1000)
        yield connection


def test_connections_are_limited(repository: Path) -> None:
    """Idle ones yield to new ones; where all are busy a new one is refused."""
    with Serving(repository, "--max-connections=4") as serving, contextlib.ExitStack() as stack:
        idle = stack.enter_context(socket.create_connection(("127.0.0.1", serving.port), timeout=PATIENCE_S))
        idle.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n")
        assert idle.recv(1000).startswith(b"HTTP/1.1 200")
        for _ in range(4):
            stack.enter_context(busy(serving.port, "quick"))
        assert idle.recv(1000) == b""

        def refused() -> bool:
            connection = http.client.HTTPConnection("127.0.0.1", serving.port, timeout=PATIENCE_S)
            try:
                connection.request("GET", "/v2/health/live")
                return connection.getresponse().status == 503
            finally:
                connection.close()

        eventually(refused)
        serving.wait_for("4 connections are open, as many as --max-connections allows; ")
        stack.close()
        eventually(lambda: serving.get("/v2/health/live").status == 200)
