"""What an ASGI host does not get is said."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from stubserve.asgi import without_effect
from stubserve.flags import parse_arguments
from tests.real_server import WORK_S, Serving, write_model


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


# A host that runs its app twice, as a host does that reloads, and sends one request each time
TWICE = """
import asyncio, sys
from pathlib import Path
from stubserve.asgi import create_app

app, traces = create_app(), Path(sys.argv[1])
body = b'{"inputs":[{"name":"INPUT0","shape":[1],"datatype":"FP32","data":[1]}]}'

async def send(message):
    if message["type"] == "http.response.start":
        print("answered", message["status"])

async def live():
    messages = asyncio.Queue()
    messages.put_nowait({"type": "http.request", "body": body, "more_body": False})
    async with app.router.lifespan_context(app):
        path = "/v2/models/echo/infer"
        scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b"", "client": None}
        await app(scope, messages.get, send)

for _ in range(2):
    asyncio.run(live())
    print("traced", traces.read_text().count("REQUEST_START"))
    traces.unlink()
"""


def test_an_app_that_is_started_again_traces_again(repository: Path, tmp_path: Path) -> None:
    write_model(repository, "echo")
    traces = tmp_path / "traces.json"
    flags = f"--trace-config=triton,file={traces} --trace-config=level=TIMESTAMPS --trace-config=rate=1"
    environment = {**os.environ, "STUBSERVE_ARGS": f"{repository} {flags}"}
    command = [sys.executable, "-c", TWICE, str(traces)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WORK_S)
    told = [line for line in ended.stdout.splitlines() if line.startswith(("answered", "traced"))]
    assert told == ["answered 200", "traced 1"] * 2, ended.stdout + ended.stderr
