"""What the remote backend makes of what another server sends: real connections to a listener that says anything."""

from __future__ import annotations

import collections
import fcntl
import json
import queue
import re
import resource
import select
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from stubserve_stub.backends.remote.connection import Call, Connection, Unanswered
from stubserve_stub.backends.remote.exchange import Body, Reply, Server, decoded
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire.datatypes import BY_NAME

from tests.real_server import PATIENCE_S

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


class Listener:
    """Accepts connections, and has `says` speak on each, on a thread of its own."""

    def __init__(self, says: Callable[[socket.socket], None]) -> None:
        self._says = says
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = (False, "127.0.0.1", self._socket.getsockname()[1])
        self.ended = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        try:
            while True:
                connection, _ = self._socket.accept()
                with connection:
                    self._says(connection)
        except OSError:
            pass
        self.ended.set()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        assert self.ended.wait(PATIENCE_S)


@pytest.fixture
def listening() -> Iterator[Callable[[Callable[[socket.socket], None]], Listener]]:
    listeners: list[Listener] = []

    def make(says: Callable[[socket.socket], None]) -> Listener:
        listeners.append(Listener(says))
        return listeners[-1]

    yield make
    for listener in listeners:
        listener.close()


Listening = Callable[[Callable[[socket.socket], None]], Listener]


def read(listening: Listening, answer: bytes, most: int = 1 << 20) -> bytes:
    """The body of an answer, as the backend reads it."""
    call = Call(PATIENCE_S)
    connection = Connection(call, listening(lambda peer: peer.sendall(answer)).address, None)
    try:
        return bytes(connection.body(call, connection.head(call), Body(most).room))
    finally:
        connection.close(call)


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Content-Length: 5\r\n\r\nhello",
        OK + b"Content-Length: 5\r\ncontent-length:5 \r\n\r\nhello and more",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 5\r\n\r\nhello",
        b"HTTP/1.0 200\r\n\r\nhello",
        CHUNKED + b"2\r\nhe\r\n003;name=value\r\nllo\r\n0\r\nSome: trailer\r\n\r\n",
    ],
)
def test_bodies_of_all_kinds(listening: Listening, answer: bytes) -> None:
    assert read(listening, answer) == b"hello"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"hello\r\n", "what it sends is not HTTP/1.1"),
        (b"HTTP/0.9 200 OK\r\n\r\nhello", "what it sends is not HTTP/1.1"),
        (b"HTTP/1.1 99 OK\r\n\r\nhello", "what it sends is not HTTP/1.1"),
        (b"HTTP/1.1 101 Switching\r\n\r\n", "it changes the protocol"),
        (OK + b"Content-Length: 5\n\r\nhello", "does not end with CR and LF"),
        (OK + b"Content Length: 5\r\n\r\nhello", "a line of its head is no field"),
        (OK + b"A: \0\r\n\r\n", "a line of its head is no field"),
        (OK + b" folded: 5\r\n\r\n", "a line of its head is no field"),
        (OK + b"A: b\r\n" * 257 + b"\r\n", "its head has too many fields"),
        (OK + b"A: " + b"b" * (70 << 10), "a line of its answer is too long"),
        (OK + (b"A: " + b"b" * 1000 + b"\r\n") * 70, "a line of its answer is too long"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 9, "it goes on saying that it is going to answer"),
        (OK + b"Content-Length: -5\r\n\r\n", "content-length that is no number"),
        (OK + b"Content-Length: +5\r\n\r\nhello", "content-length that is no number"),
        (OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "its head has content-length twice"),
        (CHUNKED[:-2] + b"Content-Length: 5\r\n\r\n", "leaves open how long the body is"),
        (OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n", "leaves open how long the body is"),
        (OK + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello", "its answer is compressed"),
        (OK + b"Content-Length: 6\r\n\r\nhello", "closed before the answer was complete"),
        (OK + b"Content-Length: 1048577\r\n\r\n", "more than the 1048576 bytes that it may have"),
        (CHUNKED + b"100001\r\n", "more than the 1048576 bytes that it may have"),
        (CHUNKED + b"5\r\nhello", "closed before the answer was complete"),
        (CHUNKED + b"\x0b5\r\nhello\r\n0\r\n\r\n", "the size of a chunk is none"),
        (CHUNKED + b"0x5\r\nhello\r\n0\r\n\r\n", "the size of a chunk is none"),
        (CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n", "the size of a chunk is none"),
        (CHUNKED + b"\r\nhello\r\n0\r\n\r\n", "the size of a chunk is none"),
        (CHUNKED + b"4\r\nhello\r\n0\r\n\r\n", "longer than it says"),
        (CHUNKED + b"0\r\nno trailer\r\n\r\n", "a line of its head is no field"),
        (CHUNKED + b"0\r\n" + b"A: b\r\n" * 257, "its head has too many fields"),
        (b"HTTP/1.0 200\r\n\r\n" + bytes(2 << 20), "more than the 1048576 bytes that it may have"),
    ],
)
def test_bytes_that_are_no_answer(listening: Listening, answer: bytes, why: str) -> None:
    with pytest.raises(Unanswered, match=re.escape(why)):
        read(listening, answer)


def test_an_end_from_another_thread_breaks_off_whatever_the_call_does(listening: Listening) -> None:
    heard = threading.Event()

    def says(peer: socket.socket) -> None:
        peer.sendall(OK)
        heard.set()
        assert not peer.recv(1)

    call = Call(PATIENCE_S)
    connection = Connection(call, listening(says).address, None)
    connection.send(call, [b""])
    threading.Thread(target=lambda: (heard.wait(PATIENCE_S), call.end())).start()
    with pytest.raises(Unanswered):
        connection.head(call)
    connection.close(call)
    with pytest.raises(Unanswered, match="the client has gone"):
        Connection(call, (False, "127.0.0.1", 1), None)


def test_a_call_has_one_deadline_for_all_that_it_does(listening: Listening) -> None:
    """Bytes that come now and then do not move it."""

    def says(peer: socket.socket) -> None:
        try:
            while True:
                peer.sendall(b"HTTP/1.1 100 Continue\r\n" if select.select([peer], [], [], 0.05)[0] else b"A: b\r\n")
        except OSError:
            pass

    call = Call(0.5)
    connection = Connection(call, listening(says).address, None)
    lines = (connection._line(call, 100) for _ in range(1_000_000))
    with pytest.raises(Unanswered, match=re.escape("no whole answer within 0.5 s")):
        collections.deque(lines, 0)
    connection.close(call)


def test_descriptors_beyond_what_select_can_do(listening: Listening) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 2000:
        pytest.skip("the hard limit of descriptors is too low")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2000), before[1]))
    try:
        call = Call(PATIENCE_S)
        listener = listening(lambda peer: peer.sendall(OK + b"Content-Length: 0\r\n\r\n"))
        connection = Connection(call, listener.address, None)
        number = fcntl.fcntl(connection._socket.fileno(), fcntl.F_DUPFD, 1500)
        connection._socket.close()
        connection._socket = socket.socket(fileno=number)
        connection._socket.setblocking(False)
        assert connection.head(call).status == 200
        connection.close(call)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_peer_is_told_at_once_that_its_answer_is_not_wanted(listening: Listening) -> None:
    """It would wait for room that never comes if it only heard of the end of what is sent to it."""
    told: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def says(peer: socket.socket) -> None:
        waiting = select.poll()
        waiting.register(peer, 0)
        told.put(bool(waiting.poll(1000 * PATIENCE_S)))

    call = Call(PATIENCE_S)
    connection = Connection(call, listening(says).address, None)
    call.use(connection._socket)
    call.end()
    connection.close(call)
    assert told.get()


def test_the_next_address_is_taken_where_no_connection_can_be_made(listening: Listening) -> None:
    listener = listening(lambda peer: peer.sendall(OK + b"Connection: close\r\nContent-Length: 2\r\n\r\n{}"))
    server = Server(["http://127.0.0.1:1", f"http://127.0.0.1:{listener.address[2]}"], {})
    assert server.ask(Call(PATIENCE_S), Body(100), "GET", "/").body == b"{}"


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://user:secret@host:8000", "has a user or a password"),
        ("http://secret@host:port", "has a user or a password"),
        ("http://host:port", "must be like"),
        ("http://host:8000/path", "must be like"),
        ("http://host\x0b:8000", "must be like"),
        ("ftp://host", "must be like"),
    ],
)
def test_addresses_that_are_none(url: str, text: str) -> None:
    with pytest.raises(Refusal, match=text) as refused:
        Server([url], {})
    assert "secret" not in str(refused.value)


# Answers


def answered(outputs: Any, binary: bytes = b"", header_length: int | None = None) -> Reply:
    text = json.dumps({"outputs": outputs}).encode() if not isinstance(outputs, bytes) else outputs
    length = len(text) if header_length is None else header_length
    return Reply(200, memoryview(text + binary), length)


def output(
    name: str = "A", datatype: str = "INT32", shape: Any = (2,), size: Any = None, **more: Any
) -> dict[str, Any]:
    told = {} if size is None else {"parameters": {"binary_data_size": size}}
    return {"name": name, "datatype": datatype, "shape": shape, **told, **more}


WANTED = {
    "A": BY_NAME["INT32"],
    "S": BY_NAME["BYTES"],
    "F": BY_NAME["FP32"],
    "B": BY_NAME["BOOL"],
    "L": BY_NAME["INT64"],
}


def test_outputs_as_bytes_and_as_json() -> None:
    outputs = [
        output(size=8),
        output("S", "BYTES", [1], size=5),
        output("F", "FP32", [1, 2], data=[1, 2.5]),
        output("B", "BOOL", data=[True, False]),
        output("L", "INT64", [1], data=[2**63 - 1]),
    ]
    tensors, _ = decoded(answered(outputs, b"\1\0\0\0\2\0\0\0" + b"\1\0\0\0x"), WANTED, 1000)
    assert [tensor.as_numpy().tolist() for tensor in tensors] == [
        [1, 2], [b"x"], [[1, 2.5]], [True, False], [2**63 - 1],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "reply",
    [
        answered(b"[]"),
        answered(b"{}"),
        answered(b'{"outputs": 5}'),
        answered(b'{"outputs": [5]}'),
        answered(b"\xff"),
        answered(b"[" * 100_000),
        answered([output(size=8)], bytes(8), 10_000),
        answered([output(size=8)], bytes(7)),
        answered([output(size=8)], bytes(9)),
        answered([output(size=-8)], bytes(8)),
        answered([output(size=8.0)], bytes(8)),
        answered([output(size="8")], bytes(8)),
        answered([output(size=True)], bytes(1)),
        answered([output(parameters=[1])], bytes(8)),
        answered([output(size=4)], bytes(4)),
        answered([output(shape=[-1, -2], size=8)], bytes(8)),
        answered([output(shape=[True, 2], size=8)], bytes(8)),
        answered([output(shape="2", size=8)], bytes(8)),
        answered([output(shape=[1 << 80], size=8)], bytes(8)),
        answered([output(datatype="FP32", size=8)], bytes(8)),
        answered([output(datatype="ODD", size=8)], bytes(8)),
        answered([output(datatype=["INT32"], size=8)], bytes(8)),
        answered([output("X", size=8)], bytes(8)),
        answered([output(["A"], size=8)], bytes(8)),  # type: ignore[arg-type]
        answered([output(size=8), output(size=8)], bytes(16)),
        answered([output()]),
        answered([output(data=[1])]),
        answered([output(data=[1, [2]])]),
        answered([output(data=["1", "2"])]),
        answered([output(data=[1, 1 << 40])]),
        answered([output(data=[1.5, 2])]),
        answered([output(data={"a": 1})]),
        answered([output("B", "BOOL", data=[1, 0])]),
        answered([output("S", "BYTES", data=[1, 2])]),
        answered([output("S", "BYTES", data=["\ud800", ""])]),
        answered([output("S", "BYTES", [1], size=5)], b"\2\0\0\0x"),
        answered([output("S", "BYTES", [2], size=5)], b"\1\0\0\0x"),
        answered([output(data=[1, 2], more="x" * 2000)], header_length=0),
    ],
)
def test_answers_that_are_none(reply: Reply) -> None:
    with pytest.raises(Unanswered):
        decoded(reply, WANTED, 1000)
