"""Several servers on one port: connections are shared out among those that are ready."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput

from tests.real_server import PATIENCE_S, Serving, write_model

ARRAY = np.zeros(4, np.float32)
# So many connections that all of them at one of two servers would be no chance
CONNECTIONS = 60
HELD = """
    import pathlib, time

    class TritonPythonModel:
        def initialize(self, args):
            print("held back", flush=True)
            while not pathlib.Path(args["model_repository"], "go").exists():
                time.sleep(0.01)

        def execute(self, requests):
            return []
"""


@pytest.fixture
def ports() -> Iterator[list[int]]:
    """Two ports that nobody else gets meanwhile: they are taken, and not listened on."""
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(2):
            taken = stack.enter_context(socket.socket())
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            taken.bind(("127.0.0.1", 0))
            found.append(taken.getsockname()[1])
        yield found


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write_model(tmp_path / "models", "echo")
    return tmp_path / "models"


def sharing(ports: list[int]) -> list[str]:
    http, grpc = ports
    return [f"--http-port={http}", f"--grpc-port={grpc}", "--reuse-http-port=true", "--reuse-grpc-port=true"]


def ask_by_http(port: int) -> None:
    server = Serving("")
    server.port = port
    assert server.infer_array("echo", ARRAY).status == 200


def ask_by_grpc(port: int) -> None:
    with InferenceServerClient(f"127.0.0.1:{port}", channel_args=[("grpc.use_local_subchannel_pool", 1)]) as client:
        tensor = InferInput("INPUT0", list(ARRAY.shape), "FP32")
        tensor.set_data_from_numpy(ARRAY)
        assert client.infer("echo", [tensor]).as_numpy("OUTPUT0") is not None


WAYS: list[Callable[[int], None]] = [ask_by_http, ask_by_grpc]


def answered(server: Serving) -> int:
    """How many requests a server has answered, by its own metrics."""
    text = server.metrics().body.decode()
    found = re.search(r'^nv_inference_request_success{model="echo",version="1"} (\d+)', text, re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_two_servers_share_out_connections(repository: Path, ports: list[int]) -> None:
    flags = sharing(ports)
    with Serving(repository, *flags) as first, Serving(repository, *flags) as second:
        before = [0, 0]
        for ask, port in zip(WAYS, ports, strict=True):
            for _ in range(CONNECTIONS):
                ask(port)
            after = [answered(first), answered(second)]
            assert sum(after) - sum(before) == CONNECTIONS
            assert all(now > then for now, then in zip(after, before, strict=True))
            before = after


def test_a_server_takes_connections_from_when_it_is_ready_until_it_ends(
    repository: Path, tmp_path: Path, ports: list[int]
) -> None:
    """So one may take another's place, and nobody is refused."""
    flags = sharing(ports)
    write_model(tmp_path / "next", "echo")
    held = write_model(tmp_path / "next", "held", HELD)
    with Serving(repository, *flags) as first:
        second = Serving(tmp_path / "next", *flags)
        second.start()
        try:
            second.wait_for("held back")
            for ask, port in zip(WAYS, ports, strict=True):
                for _ in range(CONNECTIONS):
                    ask(port)
            assert answered(first) == 2 * CONNECTIONS
            (held / "go").touch()
            second.wait_for("Started HTTPService")
            assert first.stop() == 0
            for ask, port in zip(WAYS, ports, strict=True):
                for _ in range(CONNECTIONS):
                    ask(port)
            assert answered(second) == 2 * CONNECTIONS
        finally:
            (held / "go").touch()
            second.stop()


def test_a_server_that_is_ended_before_it_is_ready(tmp_path: Path, ports: list[int]) -> None:
    write_model(tmp_path, "held", HELD)
    server = Serving(tmp_path, *sharing(ports))
    server.start()
    server.wait_for("held back")
    assert server.stop() == 0
    assert "Traceback" not in server.output


def test_who_does_not_share_a_port_is_refused_it(repository: Path, ports: list[int]) -> None:
    with Serving(repository, *sharing(ports)):
        for flag, port in zip(("http", "grpc"), ports, strict=True):
            other = Serving(repository, f"--{flag}-port={port}")
            other.start()
            assert other.process.wait(PATIENCE_S) == 1
            other.wait_for(f"127.0.0.1:{port}' ?.*Address already in use")
            other.stop()
