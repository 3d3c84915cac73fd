"""Clients that want more than their part: others are served all the same."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.serving import Serving, binary_output, binary_request, write_model

MIB = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "echo")
    with Serving(repository, "--shm-limit=256M", "--http-max-input-size=400000000") as running:
        yield running


def claim(server: Serving, length: int, sent: bytes = b"x", extra: str = "") -> socket.socket:
    """A connection whose request announces a body and begins to send it."""
    client = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    head = f"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{extra}\r\n"
    client.sendall(head.encode() + sent)
    return client


def answer_of(client: socket.socket) -> bytes:
    """What comes until the server closes the connection, or the whole answer of a kept one."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = client.recv(65536)
        if not piece:
            break
        data += piece
    return data


def test_what_is_only_announced_takes_no_memory_from_others(server: Serving) -> None:
    claims = [claim(server, length * MIB) for length in (200, 60)]
    array = np.arange(16 * MIB, dtype=np.float32)
    np.testing.assert_array_equal(binary_output(server.infer_array("echo", array)), array)
    for one in claims:
        one.close()


def test_who_stops_after_much_yields_to_who_needs_the_memory(server: Serving) -> None:
    with claim(server, 220 * MIB, bytes(200 * MIB)) as client:
        array = np.arange(20 * MIB, dtype=np.float32)
        answer = server.infer_array("echo", array)
        while answer.status == 503:  # it is not slow before it has paused for a second
            assert "--shm-limit" in answer.error
            answer = server.infer_array("echo", array)
        np.testing.assert_array_equal(binary_output(answer), array)
        # The one that has stopped is told when it goes on to the end, and its connection serves on.
        client.sendall(bytes(20 * MIB))
        assert answer_of(client).startswith(b"HTTP/1.1 503 ")
        client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")


BIG = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            answers = []
            for request in requests:
                size = int(request.inputs()[0].as_numpy()[0])
                output = np.zeros(size, np.float32)
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", output)]))
            return answers
"""


def test_who_does_not_read_is_closed_and_the_memory_comes_back(tmp_path: Path) -> None:
    write_model(tmp_path, "big", BIG)
    path, body, headers = binary_request("big", np.array([32 * MIB], np.float32))
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    with Serving(tmp_path, "--shm-limit=256M", "--send-timeout-secs=1") as server:  # noqa: SIM117
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
            client.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
            server.wait_for("taken nothing of its answer for 1 s")
            received = 0
            with contextlib.suppress(ConnectionResetError):
                while piece := client.recv(1 << 20):
                    received += len(piece)
            assert received < 32 * 4 * MIB


def test_out_of_descriptors_is_said_and_health_answers(tmp_path: Path) -> None:
    write_model(tmp_path, "echo")
    with Serving(tmp_path) as server:
        pid = server.process.pid
        used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 100, used + 100))
        clients = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(300)]
        assert server.get("/v2/health/live").status == 200
        assert server.infer_array("echo", np.zeros(4, np.float32)).status == 200
        server.wait_for(r"out of descriptors: \d+ of \d+ are in use.*ulimit -n")
        assert server.output.count("out of descriptors") == 1
        for client in clients:
            client.close()


def test_idle_connections_are_closed_after_a_time(tmp_path: Path) -> None:
    write_model(tmp_path, "echo")
    with Serving(tmp_path, "--idle-timeout-secs=1") as server:  # noqa: SIM117
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
            client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert answer_of(client).startswith(b"HTTP/1.1 200 ")
            assert client.recv(1) == b""


def test_http_2_on_the_port_of_http_does_not_hold_up_the_exit(tmp_path: Path) -> None:
    write_model(tmp_path, "echo")
    with Serving(tmp_path) as server, socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        answer_of(client)
        assert server.stop(10) == 0
