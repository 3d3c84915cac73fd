"""What other machines answer the server: those of the backends `remote` and `video`, which ask over HTTP.

An input is all that is sent on a connection. Nothing of it reaches another machine: addresses lead to loopback alone.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import NoReturn

from stubserve_stub.backends.remote.connection import Call, Unanswered
from stubserve_stub.backends.remote.exchange import ALL_JSON_BYTES, LENGTH, Body, Server, decoded
from stubserve_stub.backends.video.networks import Networks
from stubserve_stub.backends.video.web import Web
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire.datatypes import BY_NAME

from ..finding import Finding

MOST_LETTERS = 10_000
WANTED = {"Y": BY_NAME["FP32"], "I": BY_NAME["INT64"], "S": BY_NAME["BYTES"]}


class Peer:
    """Sends the same on each connection, once a request has come, and closes it."""

    def __init__(self) -> None:
        self.said = b""
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection, contextlib.suppress(OSError):
                if not connection.recv(1 << 16):
                    return  # it is over
                connection.sendall(self.said)
                connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        socket.create_connection(("127.0.0.1", self.port)).close()
        self._thread.join()
        self._listener.close()


@contextlib.contextmanager
def running() -> Iterator[None]:
    """What all inputs share."""
    global _peer, _server
    _peer = Peer()
    _server = Server([f"http://127.0.0.1:{_peer.port}"], {})
    try:
        yield
    finally:
        _peer.close()


_peer: Peer
_server: Server


def fuzz_one(data: bytes) -> None:
    _peer.said = data
    try:
        reply = _server.ask(Call(60), Body(ALL_JSON_BYTES), "POST", "/v2/models/m/infer", [b"{}"])
        if reply.status == 200:
            decoded(reply, WANTED, ALL_JSON_BYTES)
        elif len(reply.error[0]) > MOST_LETTERS:
            raise Finding("an error is passed on whole", f"{len(reply.error[0])} letters")
    except (Unanswered, OSError):
        pass  # the caller's sentence for it says nothing of the answer
    with contextlib.suppress(Refusal, OSError):
        file = Web(Networks("127.0.0.1/32", "networks"), 60.0, _give_up).open(f"http://127.0.0.1:{_peer.port}/a")
        try:
            while file.read(1 << 16):
                pass
        finally:
            file.close()


def _give_up(refusal: Refusal) -> NoReturn:
    raise refusal


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "\r\n"]
    return "\r\n".join(lines).encode() + body


def told(*outputs: object, data: bytes = b"") -> bytes:
    text = json.dumps({"model_name": "m", "outputs": outputs, "parameters": {"a": 1}}).encode()
    return answer(text + data, f"{LENGTH}: {len(text)}")


BINARY = {"name": "Y", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
STRINGS = {"name": "S", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 5}}
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
SEEDS = [
    told(BINARY, STRINGS, data=bytes(8) + b"\x01\0\0\0a"),
    told({"name": "I", "datatype": "INT64", "shape": [2], "data": [1, 2]}),
    told({"name": "S", "datatype": "BYTES", "shape": [2], "data": ["a", "b"]}),
    answer(b'{"error":"no room"}', status="503 Service Unavailable"),
    answer(b"", "Location: /b", status="302 Found"),
    CHUNKED + b'd\r\n{"outputs":[]\r\n1\r\n}\r\n0\r\n\r\n',
    b"HTTP/1.1 100 Continue\r\n\r\n" * 3 + answer(b"{}"),
    answer(b"x" * 1000, "Accept-Ranges: bytes")[:500],
]
WORDS = [
    b"HTTP/1.1 200 OK\r\n",
    b"Content-Length: 5\r\n",
    b"Content-Length: -5\r\n",
    b"Content-Length: 18446744073709551616\r\n",
    LENGTH.encode() + b": -5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Connection: close\r\n",
    b"\r\n\r\n",
    b"\x0b5\r\n",
    b"0\r\n\r\n",
    b'"binary_data_size":-8',
    b'"shape":[-1]',
    b'"shape":[4611686018427387904,4]',
    b'"datatype":"BYTES"',
    b"null",
    b"[]",
]
