"""What an ASGI host does not get is said."""

from __future__ import annotations

import sys
from pathlib import Path

from stubserve.asgi import without_effect
from stubserve.flags import parse_arguments
from tests.real_server import Serving, write_model


def test_flags_of_what_a_host_has_not_are_named() -> None:
    words = ["m", "--grpc-port=9001", "--metrics-port=9002", "--http-port=80", "--idle-timeout-secs=5", "--id=me"]
    assert without_effect(parse_arguments(words)) == [
        "--http-port has no effect: an ASGI host listens itself",
        "--grpc-port has no effect: there is no gRPC in an ASGI host",
        "--idle-timeout-secs has no effect: an ASGI host reads and writes the sockets itself",
        "--metrics-port has no effect: there is no port of metrics in an ASGI host",
    ]


def test_what_is_so_anyway_is_fine() -> None:
    assert without_effect(parse_arguments(["m", "--allow-grpc=false", "--allow-metrics=false"])) == []


def test_the_log_of_a_host_says_it(repository: Path) -> None:
    write_model(repository, "echo")
    server = Serving(repository)
    server.command = [sys.executable, "-m", "uvicorn", "--factory", "stubserve.asgi:create_app", "--port=0"]
    server.environment["STUBSERVE_ARGS"] = f"{repository} --grpc-port=9001 --http-thread-count=3"
    server.start()
    try:
        server.wait_for("--grpc-port has no effect: there is no gRPC in an ASGI host")
        server.wait_for("--http-thread-count has no effect")
    finally:
        server.stop()


def test_a_host_serves_openais_routes_too(repository: Path) -> None:
    write_model(repository, "echo")
    server = Serving(repository)
    server.command = [sys.executable, "-m", "uvicorn", "--factory", "stubserve.asgi:create_app", "--port=0"]
    server.environment["STUBSERVE_ARGS"] = f"{repository} --openai"
    server.start()
    try:
        server.port = int(server.wait_for(r"Uvicorn running on http://127.0.0.1:(\d+)")[1])
        assert server.get("/v1/models").json() == {"object": "list", "data": []}
        assert server.request("POST", "/v1/completions", b"{}").json()["error"]["param"] == "model"
    finally:
        server.stop()
