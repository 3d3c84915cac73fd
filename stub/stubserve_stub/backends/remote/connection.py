"""A connection to another server, and the messages of HTTP/1.1 on it.

Everything on it is part of a call, which has one deadline for all that it does, and an end that may come from another
thread at any moment. Nothing here waits but in `Call.wait`.

What the other server sends is read strictly and within limits: a head has at most 64 KiB and 256 fields, at most eight
heads of the kind "100 Continue" come before it, and a body fits into what its reader allows. Bytes that are no answer
end the connection.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import ssl
import struct
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

# An attempt to connect takes no longer: the next address may be reached.
_CONNECT_S = 10.0
_HEAD_BYTES, _FIELDS, _INTERIM_HEADS = 64 << 10, 256, 8
_LINE_BYTES = 4096
_READ_BYTES = 64 << 10

_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [\t\x20-\x7e\x80-\xff]*)?")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")
_NUMBER = re.compile(rb"[0-9]{1,15}")

# (whether it is TLS, host, port)
Address = Tuple[bool, str, int]
_Target = Tuple[int, int, int, Any]


class Unanswered(Exception):
    """No answer came, or none that can be used. The text says why."""


class Call:
    """One request and its answer: how long they may take, and whether they are not wanted any more (`over`)."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = time.monotonic() + seconds
        self._guard = threading.Lock()
        self._socket: Optional[socket.socket] = None
        self.over = False

    def end(self) -> None:
        """The answer is not wanted any more: whoever waits for it is turned away at once. Safe on any thread."""
        with self._guard:
            self.over = True
            if self._socket is not None:
                _shut_down(self._socket)

    def use(self, connection: Optional[socket.socket]) -> None:
        """`end` breaks this connection off from now on. Raises Unanswered after it."""
        with self._guard:
            self._socket = connection
        if connection is not None:
            self.left()

    def wait(self, connection: socket.socket, event: int, seconds: float = 0.0) -> None:
        """Waits for an event of a connection, for `seconds` at most, 0 for no other limit. Raises Unanswered."""
        left = self.left()
        waiting = select.poll()  # no `select`, which takes no descriptor above 1,023
        waiting.register(connection, event)
        found = waiting.poll(1000 * min(left, seconds or left))
        if not found and left > seconds > 0:
            raise Unanswered(f"no connection within {seconds:g} s")
        self.left()

    def resolve(self, host: str, port: int) -> List[_Target]:
        """The socket addresses of a host. Raises Unanswered."""
        found: List[Any] = []
        done = threading.Event()

        def look_up() -> None:
            try:
                found.extend(socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM))
            except OSError as error:
                found.append(error)
            done.set()

        # On a thread of its own: it cannot be ended.
        threading.Thread(target=look_up, daemon=True).start()
        while not done.wait(min(self.left(), 0.1)):
            pass
        if found and isinstance(found[0], OSError):
            raise Unanswered(str(found[0]))
        return [(family, kind, protocol, target) for family, kind, protocol, _, target in found]

    def left(self) -> float:
        """Seconds that are left. Raises Unanswered when the call is over."""
        if self.over:
            raise Unanswered("the client has gone")
        left = self._until - time.monotonic()
        if left <= 0:
            raise Unanswered(f"there was no whole answer within {self._seconds:g} s")
        return left


class Head(NamedTuple):
    """The head of an answer; names of fields are in lower case. `length` is None where the body tells its end."""

    status: int
    fields: Dict[bytes, bytes]
    length: Optional[int]
    chunked: bool
    keeps: bool

    def number(self, name: bytes) -> int:
        """The value of a field that is a number, 0 without one. Raises Unanswered."""
        return _number(self.fields.get(name, b"0"), name.decode())


# (how many bytes of a body are there, how many are announced) -> memory for these and at least one more, the former in
# it. Raises Unanswered where the body gets too long.
Room = Callable[[int, int], memoryview]


class Connection:
    """A connection to one address. Raises Unanswered, here and in all methods; then it is to be closed."""

    def __init__(self, call: Call, address: Address, tls: Optional[ssl.SSLContext]) -> None:
        secure, host, port = address
        problem = "it has no address"
        self._data = bytearray()
        self.host = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        for family, kind, protocol, target in call.resolve(host, port):
            self._socket: Union[socket.socket, ssl.SSLSocket] = socket.socket(family, kind, protocol)
            try:
                self._connect(call, target, host if secure else "", tls)
                return
            except (OSError, Unanswered) as error:
                self.close(call)
                problem = str(error)
                call.left()
        raise Unanswered(problem)

    def _connect(self, call: Call, target: Any, name: str, tls: Optional[ssl.SSLContext]) -> None:
        self._socket.setblocking(False)
        call.use(self._socket)
        try:
            self._socket.connect(target)
        except BlockingIOError:
            call.wait(self._socket, select.POLLOUT, _CONNECT_S)
        problem = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if problem:
            raise OSError(problem, os.strerror(problem))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if name:
            assert tls is not None
            call.use(None)
            self._socket = secured = tls.wrap_socket(self._socket, server_hostname=name, do_handshake_on_connect=False)
            call.use(secured)
            self._retry(call, select.POLLIN, secured.do_handshake)
        call.use(None)

    def close(self, call: Call) -> None:
        call.use(None)
        self._socket.close()

    @property
    def fresh(self) -> bool:
        """Whether an idle connection can be used: one that can be read has been closed, or speaks unasked."""
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        return not self._data and not waiting.poll(0)

    def _retry(self, call: Call, event: int, act: Callable[..., Any], *args: Any) -> Any:
        """Does something that would block, as soon as it does not."""
        while True:
            try:
                return act(*args)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError) as blocked:
                if isinstance(blocked, ssl.SSLWantReadError):
                    event = select.POLLIN
                elif isinstance(blocked, ssl.SSLWantWriteError):
                    event = select.POLLOUT
                call.wait(self._socket, event)

    def send(self, call: Call, parts: Sequence[Any]) -> None:
        call.use(self._socket)
        for part in parts:
            left = memoryview(part).cast("B")
            while left:
                left = left[self._retry(call, select.POLLOUT, self._socket.send, left) :]

    # Reading

    def _fill(self, call: Call) -> None:
        data: bytes = self._retry(call, select.POLLIN, self._socket.recv, _READ_BYTES)
        if not data:
            raise Unanswered("the connection was closed before the answer was complete")
        self._data += data

    def _line(self, call: Call, longest: int) -> bytes:
        looked = 0
        while True:
            end = self._data.find(b"\n", looked)
            if end > longest or (end < 0 and len(self._data) > longest):
                raise Unanswered("a line of its answer is too long")
            if end >= 0:
                break
            looked = len(self._data)
            self._fill(call)
        line = bytes(self._data[:end])
        del self._data[: end + 1]
        if not line.endswith(b"\r"):
            raise Unanswered("a line of its answer does not end with CR and LF")
        return line[:-1]

    def _fields(self, call: Call) -> List[Tuple[bytes, bytes]]:
        """The fields of a head, or of a trailer."""
        fields: List[Tuple[bytes, bytes]] = []
        left = _HEAD_BYTES
        while True:
            line = self._line(call, left)
            if not line:
                return fields
            left -= len(line)
            found = _FIELD.fullmatch(line)
            if found is None or len(fields) == _FIELDS:
                raise Unanswered("its head has too many fields" if found else "a line of its head is no field")
            fields.append((found[1].lower(), found[2].rstrip(b" \t")))

    def head(self, call: Call) -> Head:
        for _ in range(_INTERIM_HEADS + 1):
            line = self._line(call, _LINE_BYTES)
            found = _STATUS.fullmatch(line)
            if found is None:
                raise Unanswered("what it sends is not HTTP/1.1")
            status, fields = int(found[2]), self._fields(call)
            if status == 101:
                raise Unanswered("it changes the protocol, which nobody asked for")
            if status >= 200:
                return _head(status, fields, found[1] == b"1")
        raise Unanswered("it goes on saying that it is going to answer")

    def body(self, call: Call, head: Head, room: Room) -> memoryview:
        """Reads a body into what `room` gives."""
        memory, at = room(0, 0), 0
        for nbytes in self._parts(call, head):
            # None: as much as there is
            end = at + (nbytes or 0)
            while nbytes is None or at < end:
                if at == len(memory):
                    memory = room(at, max(end, at + 1))
                if self._data:
                    count = min(len(self._data), len(memory) - at, len(self._data) if nbytes is None else end - at)
                    memory[at : at + count] = self._data[:count]
                    del self._data[:count]
                else:
                    view = memory[at:] if nbytes is None else memory[at:end]
                    count = self._retry(call, select.POLLIN, self._socket.recv_into, view)
                if not count and nbytes is None:
                    return memory[:at]
                if not count:
                    raise Unanswered("the connection was closed before the answer was complete")
                at += count
        return memory[:at]

    def _parts(self, call: Call, head: Head) -> Any:
        """The sizes of the parts of a body, each to be read before the next is asked for."""
        if not head.chunked:
            yield head.length
            return
        while True:
            found = _CHUNK.fullmatch(self._line(call, _LINE_BYTES))
            if found is None:
                raise Unanswered("what it sends as the size of a chunk is none")
            nbytes = int(found[1], 16)
            if not nbytes:
                self._fields(call)
                return
            yield nbytes
            if self._line(call, _LINE_BYTES):
                raise Unanswered("a chunk of its answer is longer than it says")


def _head(status: int, fields: Sequence[Tuple[bytes, bytes]], keeps: bool) -> Head:
    known: Dict[bytes, bytes] = {}
    for name, value in fields:
        if name in _SINGLE and known.get(name, value) != value:
            raise Unanswered(f"its head has {name.decode()} twice")
        known[name] = value
    coding, length = known.get(b"transfer-encoding"), known.get(b"content-length")
    if coding is not None and (coding.lower() != b"chunked" or length is not None):
        raise Unanswered("its head leaves open how long the body is")
    if known.get(b"content-encoding", b"identity").lower() != b"identity":
        raise Unanswered("its answer is compressed, which nobody asked for")
    options = known.get(b"connection", b"").lower().split(b",")
    keeps = keeps and b"close" not in [option.strip() for option in options]
    if status in (204, 304):
        return Head(status, known, 0, False, keeps)
    ends = coding is None and length is None
    nbytes = None if length is None else _number(length, "content-length")
    return Head(status, known, nbytes, coding is not None, keeps and not ends)


_SINGLE = frozenset((b"content-length", b"transfer-encoding", b"content-encoding", b"inference-header-content-length"))


def _number(text: bytes, name: str) -> int:
    if _NUMBER.fullmatch(text) is None:
        raise Unanswered(f"its head has a {name} that is no number")
    return int(text)


def _shut_down(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is not connected, or not any more
        # The peer hears it when the connection is closed, even where it waits to send and is told of no more room.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # Not the method of a TLS connection, which would end the encryption under the thread that reads.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
