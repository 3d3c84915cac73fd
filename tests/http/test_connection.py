"""The connection class, over raw sockets: framing in all its forms, and clients that misbehave."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.real_server import IDENTITY, PATIENCE_S, Serving, binary_request, io_config, write_model

SMALL = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[2],"data":[1,2]}]}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "echo")
    write_model(
        repository,
        "waits",
        """
        import time
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                print("waiting", flush=True)
                while not requests[0].is_cancelled():
                    time.sleep(0.01)
                print("cancelled", flush=True)
                return [pb_utils.InferenceResponse(error=pb_utils.TritonError("gone")) for _ in requests]
        """,
    )
    write_model(
        repository,
        "held",
        f"""
        import os, time
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                while not os.path.exists("{repository}/go"):
                    time.sleep(0.01)
                return [pb_utils.InferenceResponse([]) for _ in requests]
        """,
    )
    write_model(
        repository,
        "slow",
        "import time\n"
        + IDENTITY.replace("    import triton", "import triton", 1)
        .replace("\n    ", "\n")
        .replace("return [", "print('slow one', flush=True); time.sleep(0.3); return [", 1),
        io_config(max_batch_size=0),
    )
    with Serving(repository, "--http-max-input-size=1000000", "--shm-limit=64M") as running:
        yield running


class Client:
    """A raw connection that reads whole answers."""

    def __init__(self, server: Serving) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)
        self.stream = self.socket.makefile("rb")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()
        self.socket.close()

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.socket.sendall(piece)

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        status = int(self.stream.readline().split()[1])
        headers = {}
        while (line := self.stream.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            headers[name.decode().lower()] = value.strip().decode()
        return status, headers, self.stream.read(int(headers.get("content-length", 0)))

    def closed(self) -> bool:
        """Whether the server has closed the connection (waits for it)."""
        return self.stream.read(1) == b""


def post(body: bytes, model: str = "echo", *headers: str, length: int | None = None) -> bytes:
    lines = [f"POST /v2/models/{model}/infer HTTP/1.1", "Host: here", *headers]
    if length != -1:
        lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def values(body: bytes) -> list[float]:
    found: list[float] = json.loads(body)["outputs"][0]["data"]
    return found


def test_keep_alive(server: Serving) -> None:
    with Client(server) as client:
        for _ in range(3):
            client.send(post(SMALL))
            status, _, body = client.answer()
            assert (status, values(body)) == (200, [1, 2])


def test_pipelined_requests_of_all_kinds_are_answered_in_order(server: Serving) -> None:
    with Client(server) as client:
        client.send(
            post(SMALL, "slow")
            + b"GET /v2/health/ready HTTP/1.1\r\nHost: here\r\n\r\n"
            + post(SMALL.replace(b"1,2", b"3,4"))
            + b"GET /v2/models/echo HTTP/1.1\r\nHost: here\r\n\r\n"
            + post(b"{")
            + post(SMALL)
        )
        assert values(client.answer()[2]) == [1, 2]
        assert client.answer()[0] == 200
        assert values(client.answer()[2]) == [3, 4]
        assert json.loads(client.answer()[2])["name"] == "echo"
        assert client.answer()[0] == 500
        assert values(client.answer()[2]) == [1, 2]


def test_a_long_pipeline_is_no_deep_recursion(server: Serving) -> None:
    count = 3000
    with Client(server) as client:
        sender = threading.Thread(target=lambda: client.send(post(SMALL) * count))
        sender.start()
        for _ in range(count):
            assert client.answer()[0] == 200
        sender.join()


def test_a_client_that_reads_nothing_stops_being_read(server: Serving) -> None:
    array = np.zeros(250_000, np.float32)
    path, body, headers = binary_request("echo", array)
    request = post(body, "echo", *(f"{name}: {value}" for name, value in headers.items()))
    with Client(server) as client:
        client.socket.settimeout(2)
        with pytest.raises(TimeoutError):
            # Two hundred megabytes: more than the buffers of both sockets, far more than the server may keep.
            client.send(*[request] * 200)


def test_a_client_whose_request_is_being_answered_stops_being_read(server: Serving) -> None:
    """Also where uvicorn has had reading paused and resumed, for a body that it got."""
    body = json.dumps({"INPUT0": [1] * 100_000}).encode()
    try:
        with Client(server) as client:
            client.send(post(body, "held").replace(b"/infer", b"/generate") + b"GET /v2 HTTP/1.1\r\nX: ")
            client.socket.settimeout(2)
            sent = 0
            with contextlib.suppress(TimeoutError):
                while sent < 32 << 20:
                    sent += client.socket.send(bytes(65536))
            assert sent < 16 << 20
    finally:
        Path(server.command[4], "go").touch()


def test_one_byte_at_a_time(server: Serving) -> None:
    with Client(server) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request = post(SMALL)
        client.send(*(request[at : at + 1] for at in range(len(request))))
        assert values(client.answer()[2]) == [1, 2]


@pytest.mark.parametrize("size", [10, 3000, 20_000, 100_000])
@pytest.mark.parametrize("cut", [1, 1000, 70_000])
def test_binary_bodies_of_all_sizes_in_pieces(server: Serving, size: int, cut: int) -> None:
    array = np.arange(size, dtype=np.float32)
    path, body, headers = binary_request("echo", array)
    request = post(body, "echo", *(f"{name}: {value}" for name, value in headers.items()))
    cut = min(cut, len(request) - 1)
    with Client(server) as client:
        client.send(request[:cut], request[cut:])
        status, answer_headers, answer = client.answer()
        assert status == 200
        head = int(answer_headers["inference-header-content-length"])
        np.testing.assert_array_equal(np.frombuffer(answer[head:], np.float32), array)


def test_chunked_bodies(server: Serving) -> None:
    chunks = [SMALL[:5], SMALL[5:6], SMALL[6:]]
    coded = b"".join(b"%x;extension=1\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\nTrailer: 1\r\n\r\n"
    head = post(b"", "echo", "Transfer-Encoding: chunked", length=-1)
    with Client(server) as client:
        client.send(head + coded + post(SMALL.replace(b"1,2", b"5,6")))
        assert values(client.answer()[2]) == [1, 2]
        assert values(client.answer()[2]) == [5, 6]
        client.send(head, *(coded[at : at + 1] for at in range(len(coded))))
        assert values(client.answer()[2]) == [1, 2]
        client.send(head + b"zz\r\n")
        assert client.answer()[0] == 400
        assert client.closed()


@pytest.mark.parametrize(
    ("coded", "told"),
    [
        (b"\x0b5\r\n", "Invalid chunk size"),
        (b" 5\r\n", "Invalid chunk size"),
        (b"5\x0c\r\n", "Invalid chunk size"),
        (b"0x5\r\n", "Invalid chunk size"),
        (b"5;a\0\r\n", "Invalid chunk size"),
        (b"0\r\nno field\r\n", "Invalid trailer"),
        (b"0\r\nA: \0\r\n", "Invalid trailer"),
        (b"0\r\n folded: 1\r\n", "Invalid trailer"),
        (b"0\r\n" + b"A: b\r\n" * 257, "Invalid trailer"),
    ],
)
def test_chunks_and_trailers_that_are_none(server: Serving, coded: bytes, told: str) -> None:
    with Client(server) as client:
        client.send(post(b"", "echo", "Transfer-Encoding: chunked", length=-1) + coded)
        status, _, body = client.answer()
        assert (status, json.loads(body)["error"]) == (400, told)
        assert client.closed()


@pytest.mark.parametrize("line", [b"GET /v2/health/live", b"GET /v2/health/live HTTP/0.9"])
def test_http_0_9_is_not_served(server: Serving, line: bytes) -> None:
    with Client(server) as client:
        client.send(line + b"\r\nHost: a\r\n\r\n")
        assert client.answer()[0] == 505
        assert client.closed()


@pytest.mark.parametrize(
    ("refused", "told"),
    [(b"1\r\n \r\n", "exceeds maximum of 65536 non-empty chunks"), (b"zz\r\n", "Invalid chunk size")],
)
def test_a_client_that_sends_on_what_is_refused_has_its_answer(server: Serving, refused: bytes, told: str) -> None:
    """It reads when all is sent. Megabytes that are closed away unread would take the answer with them."""
    with Client(server) as client:
        client.send(post(b"", "echo", "Transfer-Encoding: chunked", length=-1), *[refused * 10_000] * 100)
        status, _, body = client.answer()
        assert (status, told in json.loads(body)["error"]) == (400, True)
        assert client.closed()


def test_expect_100_continue(server: Serving) -> None:
    with Client(server) as client:
        client.send(post(b"", "echo", "Expect: 100-continue", length=len(SMALL)))
        assert client.stream.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert client.stream.readline() == b"\r\n"
        client.send(SMALL)
        assert values(client.answer()[2]) == [1, 2]
    with Client(server) as client:
        client.send(post(b"", "nobody", "Expect: 100-continue", length=len(SMALL)))
        assert client.answer()[0] == 404
        assert client.closed()


def test_a_body_over_the_limit_is_not_kept_and_the_connection_goes_on(server: Serving) -> None:
    with Client(server) as client:
        client.send(post(b" " * 1_000_001))
        status, _, body = client.answer()
        assert status == 400
        assert "Use --http-max-input-size" in json.loads(body)["error"]
        client.send(post(SMALL))
        assert client.answer()[0] == 200


def test_an_absurd_length_of_the_json(server: Serving) -> None:
    with Client(server) as client:
        client.send(post(bytes(100_000), "echo", f"Inference-Header-Content-Length: {'9' * 5000}"))
        status, _, body = client.answer()
        assert status == 400
        assert "value is out of range" in json.loads(body)["error"]
        client.send(post(SMALL))
        assert client.answer()[0] == 200


def test_who_offers_http_2_is_answered_in_http_1(server: Serving) -> None:
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
    with Client(server) as client:
        for _ in range(2):
            client.send(post(b"{}", "echo", *offer).replace(b"/v2/models/echo/infer", b"/v2/repository/index"))
            assert client.answer()[0] == 200
            client.send(post(SMALL, "echo", *offer))
            assert client.answer()[0] == 200
    assert "upgrade" not in server.output


def test_an_absurd_length_is_refused_at_once(server: Serving) -> None:
    with Client(server) as client:
        client.send(post(b"", "echo", "Inference-Header-Content-Length: 10", length=1 << 40))
        status, _, body = client.answer()
        assert status == 400
        assert "value is out of range" in json.loads(body)["error"]
        assert client.closed()


INFER = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\n"
LIVE = b"GET /v2/health/live HTTP/1.1\r\n"


@pytest.mark.parametrize(
    ("junk", "status", "text"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, ""),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "this port speaks HTTP, not HTTPS"),
        (b"\x00", 400, "Invalid request line"),
        (b"GET\r\n\r\n", 400, ""),
        (INFER + b"Content-Length: abc\r\n\r\n", 400, ""),
        (INFER + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n", 400, ""),
        (INFER + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "Transfer-Encoding"),
        (INFER + b"Transfer-Encoding: gzip\r\n\r\n", 400, ""),
        (b"GET / HTTP/1.1\r\nX: " + b"y" * 70_000, 431, "too large"),
        (LIVE + b"Host: x\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", 431, "too large"),
        (LIVE + b"Host: x\r\n" + b"x: y\r\n" * 256 + b"\r\n", 431, "257 fields"),
        (LIVE + b"\r\n", 400, "one Host header"),
        (LIVE + b"Host: a\r\nHost: a\r\n\r\n", 400, "one Host header"),
        (LIVE + b"Host: a b\r\n\r\n", 400, "one Host header"),
        (LIVE + b"Host: a/b\r\n\r\n", 400, "one Host header"),
    ],
)
def test_junk_is_refused_and_the_connection_closed(server: Serving, junk: bytes, status: int, text: str) -> None:
    with Client(server) as client:
        client.send(junk)
        got, _, body = client.answer()
        assert got == status
        assert text in json.loads(body)["error"]
        assert client.closed()


@pytest.mark.parametrize("host", [b"", b"here", b"here:8000", b"127.0.0.1:80", b"[::1]:8000", b"a-b.c_d"])
def test_hosts(server: Serving, host: bytes) -> None:
    with Client(server) as client:
        client.send(LIVE + b"Host: " + host + b"\r\n\r\n")
        assert client.answer()[0] == 200


@pytest.mark.parametrize("version", [b"HTTP/1.0", b"HTTP/1.1"])
def test_without_a_host_only_the_old_version_is_served(server: Serving, version: bytes) -> None:
    with Client(server) as client:
        client.send(b"GET /v2/health/live " + version + b"\r\n\r\n")
        assert client.answer()[0] == (200 if version == b"HTTP/1.0" else 400)


def test_who_speaks_http_2_is_told_the_port_of_grpc(server: Serving) -> None:
    with Client(server) as client:
        client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        status, _, body = client.answer()
        assert status == 400
        text = f"this port speaks HTTP/1.1, not HTTP/2; gRPC is served on port {server.grpc_port}"
        assert json.loads(body)["error"] == text
        assert client.closed()


def test_other_routes_with_bodies_do_not_disturb_the_connection(server: Serving) -> None:
    body = json.dumps({"ready": True}).encode()
    head = b"POST /v2/repository/index HTTP/1.1\r\nHost: here\r\n"
    with Client(server) as client:
        for piece in (1, 7, len(body)):
            client.send(head + b"Content-Length: %d\r\n\r\n" % len(body) + body[:piece], body[piece:] + post(SMALL))
            assert client.answer()[0] == 200
            assert client.answer()[0] == 200
        client.send(head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) + post(SMALL))
        assert client.answer()[0] == 200
        assert client.answer()[0] == 200
        # A route that answers before it has read the body: the rest of it must not be taken for a request.
        client.send(b"POST /nowhere HTTP/1.1\r\nHost: here\r\nContent-Length: 300000\r\n\r\n", b"x" * 300_000)
        assert client.answer()[0] == 404
        client.send(post(SMALL))
        assert client.answer()[0] == 200


def test_http_1_0_and_connection_close(server: Serving) -> None:
    with Client(server) as client:
        client.send(post(SMALL).replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert client.answer()[0] == 200
        assert client.closed()
    with Client(server) as client:
        # Nobody told it that the connection would stay open.
        client.send(post(SMALL, "echo", "Connection: keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert client.answer()[1]["connection"] == "close"
        assert client.closed()
    for body in (SMALL, b""):
        with Client(server) as client:
            client.send(post(body, "echo", "Connection: close"))
            assert client.answer()[1]["connection"] == "close"
            assert client.closed()


def test_a_client_that_goes_cancels_its_request(server: Serving) -> None:
    with Client(server) as client:
        client.send(post(SMALL, "waits"))
        server.wait_for("waiting")
    server.wait_for("cancelled")


def test_clients_that_vanish_in_the_middle_of_a_body_leave_nothing(server: Serving) -> None:
    array = np.zeros(200_000, np.float32)
    path, body, headers = binary_request("echo", array)
    request = post(body, "echo", *(f"{name}: {value}" for name, value in headers.items()))
    for cut in (10, 500, 5000, 300_000, len(request) - 1, len(request)):
        for reset in (False, True):
            with Client(server) as client:
                client.send(request[:cut])
                if reset:
                    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    answer = server.infer_array("echo", array)
    assert answer.status == 200


@pytest.mark.parametrize("target", ["", "http://here"])
@pytest.mark.parametrize("coding", ["identity", "gzip"])
def test_bodies_are_bounded_by_shared_memory_however_they_come(server: Serving, coding: str, target: str) -> None:
    """A body of 200 MiB for a server that may take 64: refused, and thrown away as it comes."""
    headers = ("Inference-Header-Content-Length: 10", f"Content-Encoding: {coding}")
    with Client(server) as client:
        client.send(post(b"", "echo", *headers, length=200 << 20).replace(b" /v2", f" {target}/v2".encode()))
        client.send(*[bytes(1 << 20)] * 200)
        status, _, body = client.answer()
        assert (status, "raise --shm-limit" in json.loads(body)["error"]) == (503, True)
        client.send(post(SMALL))
        assert client.answer()[0] == 200


@pytest.mark.parametrize("target", ["", "http://here"])
@pytest.mark.parametrize("coding", ["identity", "gzip"])
def test_large_bodies_however_they_come(server: Serving, coding: str, target: str) -> None:
    array = np.arange(100_000, dtype=np.float32)
    path, body, headers = binary_request("echo", array)
    lines = [f"{name}: {value}" for name, value in headers.items()]
    if coding == "gzip":
        body = gzip.compress(body)
    with Client(server) as client:
        request = post(body, "echo", f"Content-Encoding: {coding}", *lines)
        client.send(request.replace(b" /v2", f" {target}/v2".encode(), 1))
        status, answer_headers, answer = client.answer()
        assert status == 200
        head = int(answer_headers["inference-header-content-length"])
        np.testing.assert_array_equal(np.frombuffer(answer[head:], np.float32), array)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/logging", b'{"log_format":"\xff"}'),
        ("/v2/models/echo/generate", b'{"INPUT0":[1],"\xff":[]}'),
        ("/v2/models/echo/infer", b'{"inputs":[{"name":"\xff","datatype":"FP32","shape":[1],"data":[1]}]}'),
    ],
)
def test_errors_quote_bytes_that_are_no_text(server: Serving, path: str, body: bytes) -> None:
    with Client(server) as client:
        client.send(post(body).replace(b"/v2/models/echo/infer", path.encode()))
        status, _, answer = client.answer()
        assert status in (400, 503)
        assert b"\xff" in answer
