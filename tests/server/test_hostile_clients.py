"""Clients that want more than their part: others are served all the same."""

from __future__ import annotations

import contextlib
import gzip
import json
import resource
import selectors
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest

from stubserve.grpc.http2 import frames
from tests.real_server import PATIENCE_S, Serving, binary_output, binary_request, io_config, write_model
from tests.server.http2_client import Raw, data
from tools.bench.http2_client import INFER
from tools.siege.fort import Watch
from tools.siege.grpc_attacks import message

MIB = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "echo")
    with Serving(repository, "--shm-limit=256M", "--http-max-input-size=400000000") as running:
        yield running


def claim(server: Serving, length: int, sent: bytes = b"x", extra: str = "") -> socket.socket:
    """A connection whose request announces a body and begins to send it."""
    client = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)
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
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as client:
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
        clients = [socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) for _ in range(300)]
        assert server.get("/v2/health/live").status == 200
        assert server.infer_array("echo", np.zeros(4, np.float32)).status == 200
        server.wait_for(r"out of descriptors: \d+ of \d+ are in use.*ulimit -n")
        server.wait_for_all("out of descriptors", 1)
        for client in clients:
            client.close()


def test_idle_connections_are_closed_after_a_time(tmp_path: Path) -> None:
    write_model(tmp_path, "echo")
    with Serving(tmp_path, "--idle-timeout-secs=1") as server:  # noqa: SIM117
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as client:
            client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert answer_of(client).startswith(b"HTTP/1.1 200 ")
            assert client.recv(1) == b""


def test_many_requested_outputs(server: Serving) -> None:
    """A quarter of a million: the same one may be asked for once, others say too much, whatever the limits are."""
    given = {"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}
    for names, told in (
        (["OUTPUT0"] * 250_000, "output 'OUTPUT0' already exists in request"),
        ([str(number) for number in range(250_000)], "too much beside its tensors"),
    ):
        body = json.dumps({"inputs": [given], "outputs": [{"name": name} for name in names]}).encode()
        for sent, more in (body, {}), (gzip.compress(body, 1), {"Content-Encoding": "gzip"}):
            answer = server.request("POST", "/v2/models/echo/infer", sent, more)
            assert answer.status == 400, answer
            assert told in answer.error, answer


def test_who_never_comes_to_an_end_is_given_up(tmp_path: Path) -> None:
    """In the head of a request, in its body, in chunks, and in a message over gRPC."""
    write_model(tmp_path, "echo")
    with Serving(tmp_path, "--request-timeout-secs=1") as server, Raw(server) as raw:
        raw.greet()
        raw.socket.sendall(raw.head(1) + data(1, b"\0\0\0\1\0x", 0))
        starts = (
            b"POST /v2/models/echo/inf",
            b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nX-A: b\r\n",
            b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx",
            b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx",
            b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nx",
        )
        clients = [socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) for _ in starts]
        for client, start in zip(clients, starts, strict=True):
            client.sendall(start)
        for client, start in zip(clients, starts, strict=True):
            while client.recv(65536):
                pass
            client.close()
            assert server.get("/v2/health/live").status == 200, start
        assert raw.until(frames.RST_STREAM)[2] == 1


def test_http_2_on_the_port_of_http_does_not_hold_up_the_exit(tmp_path: Path) -> None:
    write_model(tmp_path, "echo")
    with (
        Serving(tmp_path) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as client,
    ):
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        answer_of(client)
        assert server.stop(10) == 0


def test_ids_are_not_kept(tmp_path: Path) -> None:
    write_model(tmp_path, "echo")
    data = {"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}
    with Serving(tmp_path, "--shm-limit=256M") as server:
        process = psutil.Process(server.process.pid)

        def ask(number: int) -> int:
            body = {"id": "x" * 1_000_000, "parameters": {"p": number}, "inputs": [data]}
            answer = server.request("POST", "/v2/models/echo/infer", json.dumps(body).encode())
            assert (answer.status, len(answer.json()["id"])) == (200, 1_000_000)
            return process.memory_info().rss

        before = [ask(number) for number in range(3)][-1]
        assert [ask(number) for number in range(3, 60)][-1] < before + (20 << 20)


HELD = """
    import os, time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            while not os.path.exists({go!r}):
                time.sleep(0.01)
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
                for request in requests
            ]
"""


def test_what_waits_for_a_busy_model_is_bounded(tmp_path: Path) -> None:
    go = tmp_path / "go"
    write_model(tmp_path / "models", "held", HELD.format(go=str(go)))
    write_model(tmp_path / "models", "echo")
    text = json.dumps(
        {"id": "x" * 1_000_000, "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]}
    )
    body = gzip.compress(text.encode())
    assert len(body) < 30_000
    with Serving(tmp_path / "models", "--shm-limit=64M") as server:
        process = psutil.Process(server.process.pid)
        clients = [server.connect() for _ in range(100)]
        for client in clients:
            client.request("POST", "/v2/models/held/infer", body, {"Content-Encoding": "gzip"})
        # Those for which there is no room are told at once.
        refused = selectors.DefaultSelector()
        for client in clients:
            refused.register(client.sock, selectors.EVENT_READ, client)
        answered: list[int] = []
        while len(answered) < 30:
            events = refused.select(60)
            assert events
            for key, _ in events:
                refused.unregister(key.fileobj)
                response = key.data.getresponse()
                assert b"--shm-limit" in response.read()
                answered.append(response.status)
        assert set(answered) == {503}
        assert process.memory_info().rss < (64 + 150) * MIB
        assert server.infer_array("echo", np.zeros(4, np.float32)).status == 200
        go.touch()
        # Served or refused, every one is answered.
        for key in list(refused.get_map().values()):
            assert key.data.getresponse().status in (200, 503)
        for client in clients:
            client.close()


@pytest.mark.slow
def test_what_is_made_of_compressed_bodies_lies_in_the_arena(tmp_path: Path) -> None:
    write_model(tmp_path, "echo")
    bomb = gzip.compress(b'{"id":"' + b"x" * (56 * MIB) + b'","inputs":[]}', 1)
    with Serving(tmp_path, "--shm-limit=256M") as server:
        rest = Watch(server.process.pid).sample().own
        with Watch(server.process.pid) as watch:
            clients = [server.connect() for _ in range(8)]
            for client in clients:
                client.request("POST", "/v2/models/echo/infer", bomb, {"Content-Encoding": "gzip"})
            with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", compression=grpc.Compression.Gzip) as channel:
                call = channel.unary_unary(INFER)
                called = [call.future(message("echo", id="x" * (56 * MIB))) for _ in range(3)]
                assert all(one.exception() is not None for one in called)
            statuses = {client.getresponse().status for client in clients}
        assert statuses <= {400, 503}
        assert watch.peak.own - rest < 60
        for client in clients:
            client.close()


def test_the_text_of_large_answers_lies_in_the_arena(tmp_path: Path) -> None:
    write_model(tmp_path, "big", BIG)
    with Serving(tmp_path, "--shm-limit=256M") as server:
        rest = Watch(server.process.pid).sample().own
        with Watch(server.process.pid) as watch:
            ask = {"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [12 * MIB]}
            answer = server.request("POST", "/v2/models/big/infer", json.dumps({"inputs": [ask]}).encode())
        assert answer.status == 200
        assert len(answer.body) > 30 * MIB
        assert watch.peak.own - rest < 25


def test_a_large_compressed_body_is_its_own_until_it_is_read(server: Serving) -> None:
    def ask(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(8):
            array = random.integers(0, 1 << 30, 1 << 20).astype(np.float32)
            path, body, headers = binary_request("echo", array)
            answer = server.request("POST", path, gzip.compress(body, 1), {**headers, "Content-Encoding": "gzip"})
            assert answer.status == 200, answer.body[:300]
            np.testing.assert_array_equal(binary_output(answer), array)

    with ThreadPoolExecutor(6) as clients:
        list(clients.map(ask, range(6)))


@pytest.mark.parametrize("coding", [None, "gzip"])
def test_large_answers_and_requests_are_whole_in_every_form(tmp_path: Path, coding: str | None) -> None:
    write_model(tmp_path, "echo")
    write_model(tmp_path, "texts", config=io_config("STRING"))
    values = np.random.default_rng(1).random(200_000).astype(np.float32)
    texts = [f"text {number}" for number in range(50_000)]
    accept = {"Accept-Encoding": coding} if coding else {}
    with Serving(tmp_path) as server:
        connection = server.connect()

        def ask(model: str, item: dict[str, Any], **more: Any) -> dict[str, Any]:
            body = json.dumps({"id": "one", "inputs": [item], **more}).encode()
            headers = dict(accept)
            if coding:
                body = gzip.compress(body)
                headers["Content-Encoding"] = coding
            connection.request("POST", f"/v2/models/{model}/infer", body, headers)
            response = connection.getresponse()
            data = response.read()
            assert response.headers.get("Content-Encoding") == coding
            document: dict[str, Any] = json.loads(gzip.decompress(data) if coding else data)
            assert (response.status, document["id"]) == (200, "one"), document
            return document["outputs"][0]

        numbers = {"name": "INPUT0", "datatype": "FP32", "shape": [len(values)], "data": values.tolist()}
        output = ask("echo", numbers)
        assert output["shape"] == [len(values)]
        np.testing.assert_array_equal(np.array(output["data"], np.float32), values)
        strings = {"name": "INPUT0", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
        assert ask("texts", strings)["data"] == texts
        classes = ask("echo", numbers, outputs=[{"name": "OUTPUT0", "parameters": {"classification": 100_000}}])
        order = [int(text.split(":")[1]) for text in classes["data"]]
        np.testing.assert_array_equal(values[order], np.sort(values)[::-1][:100_000])
        connection.close()


def test_a_client_that_goes_while_its_answer_is_made_leaves_nothing(tmp_path: Path) -> None:
    write_model(tmp_path, "big", BIG)
    body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [4_000_000]}]}
    with Serving(tmp_path, "--shm-limit=64M") as server:
        for _ in range(12):
            connection = server.connect()
            connection.request("POST", "/v2/models/big/infer", json.dumps(body).encode())
            # Another's request is answered while the large answer is made, or before.
            assert server.get("/v2/health/live").status == 200
            connection.close()
        answer = server.infer_json("big", body["inputs"])
        while answer.status == 503:  # the memory of those that are gone comes back as their connections are closed
            answer = server.infer_json("big", body["inputs"])
        assert answer.json()["outputs"][0]["data"] == [0.0] * 4_000_000
