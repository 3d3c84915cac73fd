"""Clients that want more than their part: others are served all the same."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import numpy as np
import pytest

from tests.serving import Serving, binary_output, write_model

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
