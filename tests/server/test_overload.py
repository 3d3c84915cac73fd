"""More than the server can do: what is refused says when to come again, and the rest goes on."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ..real_server import Serving, eventually, io_config, write_model

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
            thread.join(60)
        assert sorted(set(statuses)) == [200, 503]
        (repository / "waiting" / "go").unlink()


@contextlib.contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    """A connection with a request under way whose body never ends."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(b"POST /v2/models/quick/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{")
        yield connection


def test_connections_are_limited(repository: Path) -> None:
    """Idle ones yield to new ones; where all are busy a new one is refused."""
    with Serving(repository, "--max-connections=4") as serving, contextlib.ExitStack() as stack:
        idle = stack.enter_context(socket.create_connection(("127.0.0.1", serving.port), timeout=60))
        idle.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n")
        assert idle.recv(1000).startswith(b"HTTP/1.1 200")
        for _ in range(4):
            stack.enter_context(connected(serving.port))
        assert idle.recv(1000) == b""

        def refused() -> bool:
            connection = http.client.HTTPConnection("127.0.0.1", serving.port, timeout=60)
            try:
                connection.request("GET", "/v2/health/live")
                return connection.getresponse().status == 503
            finally:
                connection.close()

        eventually(refused)
        serving.wait_for("4 connections are open, as many as --max-connections allows; ")
        stack.close()
        eventually(lambda: serving.get("/v2/health/live").status == 200)
