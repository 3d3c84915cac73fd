"""The client that sends frames: what it keeps of an answer."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hpack import Encoder

from .http2 import (
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    LAST_STREAM,
    PREFACE,
    RST_STREAM,
    exchange,
    frame,
    number,
    settings,
)
from .request import Frames


@contextmanager
def _server(answer: bytes) -> Iterator[int]:
    """The port of a server that reads a preface, answers once and closes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                received = b""
                while not received.startswith(PREFACE):
                    received += connection.recv(1 << 16)
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def _trailers(stream: int, status: str) -> bytes:
    block = Encoder().encode([(":status", "200"), ("grpc-status", status)])
    return frame(HEADERS, END_HEADERS | END_STREAM, stream, block)


def test_the_first_end_of_each_stream_is_kept() -> None:
    answer = settings() + number(RST_STREAM, 1, 8) + _trailers(1, "13") + _trailers(LAST_STREAM, "0")
    with _server(answer) as port:
        found = exchange(port, Frames(PREFACE, ends=1))
    assert found.events == ((1, "RST_STREAM CANCEL"), (LAST_STREAM, "grpc-status 0"))
    assert found.ending == "served"


def test_the_end_of_the_connection_is_told_apart() -> None:
    with _server(frame(GOAWAY, 0, 0, bytes(7) + b"\x0b" + b"enough")) as port:
        found = exchange(port, Frames(PREFACE, call_behind=False))
    assert found.events == ((0, "GOAWAY ENHANCE_YOUR_CALM"),)
    assert found.ending == "closed"
