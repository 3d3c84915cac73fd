"""A gRPC client for load: HTTP/2 on a bare socket, requests built once, answers counted and not read.

grpcio's own clients cost more processor time per call than the servers that they would measure. This one spends some
15 µs on a small unary call and 1 µs on a response of a stream. It behaves as gRPC's clients do where that matters to a
server: the first request puts its headers into the connection's table and the next ones refer to it, both windows and
the server's settings are honoured, pings are answered. Its own windows are as large as HTTP/2 has them.

Every answer is checked as far as counting goes: one message per unary call, none shorter than a right one, no error in
a stream, and status 0.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import Any

from hpack import Decoder

from .wrk import LoadError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
INFER = "/inference.GRPCInferenceService/ModelInfer"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 4, 5
LARGEST_WINDOW = (1 << 31) - 1
LARGEST_FRAME = (1 << 24) - 1
# How much may arrive before windows are widened again, and how many frames go into one system call.
WIDEN_BYTES = 1 << 29
FRAMES_PER_CALL = 64
SCRATCH = memoryview(bytearray(1 << 20))

# Length and type share a word; then flags and stream.
HEAD = Struct(">IBI")
UINT32 = Struct(">I")
SETTING = Struct(">HI")
INFER_RESPONSE = 0x12  # of a ModelStreamInferResponse; an error would come before it


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def framed(message: bytes) -> memoryview:
    """A gRPC message as its stream carries it."""
    return memoryview(b"\0" + UINT32.pack(len(message)) + message)


def header_blocks(path: str, metadata: Sequence[tuple[str, str]] = ()) -> tuple[bytes, bytes]:
    """The header block of a connection's first request, which fills its table, and that of all further ones."""
    names = [(b":path", path.encode()), (b"te", b"trailers"), (b"content-type", b"application/grpc")]
    names += [(b"user-agent", b"bench"), (b"grpc-accept-encoding", b"identity"), (b":authority", b"127.0.0.1")]
    names += [(name.encode(), value.encode()) for name, value in metadata]
    # In HPACK's static table: `:method: POST`, `:scheme: http`. Pseudo-headers go first.
    names.sort(key=lambda item: not item[0].startswith(b":"))
    static = b"\x83\x86"
    first = b"".join(b"\x40%c%b%c%b" % (len(name), name, len(value), value) for name, value in names)
    # The newest entry of the table is number 62.
    return static + first, static + bytes(0x80 | (61 + age) for age in range(len(names), 0, -1))


def call(
    stream: int, data: bytes = b"", ends: bool = False, path: str = INFER, metadata: Sequence[tuple[str, str]] = ()
) -> bytes:
    """The frames that open a stream and send the beginning of its data."""
    headers = frame(HEADERS, END_HEADERS, stream, header_blocks(path, metadata)[0])
    return headers + frame(DATA, END_STREAM if ends else 0, stream, data) if data or ends else headers


class GrpcConnection:
    """One connection with one call at a time.

    It sends the next of `messages`, as `framed` gives them, with each request; connections may share them. With
    `per_request` None a call is unary. Otherwise all requests go out on one bidirectional stream, each when the
    one before has had that many responses. `on_done` is called after each request.
    """

    def __init__(
        self,
        port: int,
        path: str,
        messages: Iterator[memoryview],
        shortest: int,
        per_request: int | None,
        on_done: Callable[[GrpcConnection], None],
    ) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.reconnects = False
        self.began = 0.0  # for code that takes the time of requests
        self.responses = 0
        self.cut_short = 0  # a stream that ends early is an error here
        self._on_done = on_done
        self._shortest = shortest
        self._per_request = per_request
        # Sending
        self._blocks = header_blocks(path)
        self._messages_to_send = messages
        self._body = memoryview(b"")
        self._stream = -1
        self._window = 65_535
        self._stream_window = 0
        self._initial_window = 65_535
        self._max_frame = 16_384
        greeting = SETTING.pack(INITIAL_WINDOW_SIZE, LARGEST_WINDOW) + SETTING.pack(MAX_FRAME_SIZE, LARGEST_FRAME)
        self._out: list[Any] = [
            PREFACE + frame(SETTINGS, 0, 0, greeting),
            frame(WINDOW_UPDATE, 0, 0, UINT32.pack(LARGEST_WINDOW - 65_535)),
        ]
        # Receiving: an incomplete frame; what is left of a DATA frame and of a message; a message's incomplete prefix
        self._pending = b""
        self._data_left = 0
        self._message_left = 0
        self._prefix = b""
        self._messages = 0
        self._unacknowledged = 0
        self._decoder = Decoder()
        self._good_blocks: set[bytes] = set()

    def request(self) -> None:
        """Begins the next request. The last one must be answered."""
        self._messages = 0
        if self._per_request is None or self._stream < 0:
            block = self._blocks[self._stream > 0]
            self._stream += 2
            self._stream_window = self._initial_window
            self._out.append(frame(HEADERS, END_HEADERS, self._stream, block))
        self._body = next(self._messages_to_send)
        self.write()

    def write(self) -> None:
        """Sends what socket and windows take."""
        while True:
            while self._body and len(self._out) < FRAMES_PER_CALL:
                length = min(len(self._body), self._window, self._stream_window, self._max_frame)
                if not length:
                    break
                last = self._per_request is None and length == len(self._body)
                self._out.append(HEAD.pack(length << 8, END_STREAM if last else 0, self._stream))
                self._out.append(self._body[:length])
                self._body = self._body[length:]
                self._window -= length
                self._stream_window -= length
            if not self._out:
                return
            try:
                sent = self.socket.sendmsg(self._out)
            except BlockingIOError:
                return
            for number, piece in enumerate(self._out):
                if sent < len(piece):
                    self._out[:number] = []
                    self._out[0] = memoryview(piece)[sent:]
                    break
                sent -= len(piece)
            else:
                self._out.clear()

    @property
    def wants_to_write(self) -> bool:
        return bool(self._out)

    def read(self) -> None:
        """Takes what has arrived. Raises LoadError for anything but the answers awaited."""
        try:
            count = self.socket.recv_into(SCRATCH)
        except BlockingIOError:
            return
        if not count:
            raise LoadError("the server closed a connection")
        data = SCRATCH[:count]
        if self._pending:
            data = memoryview(self._pending + bytes(data))
            self._pending = b""
        at, end = 0, len(data)
        while at < end:
            if self._data_left:
                taken = min(self._data_left, end - at)
                self._take(data[at : at + taken])
                self._data_left -= taken
                at += taken
                continue
            if end - at < 9:
                break
            word, flags, stream = HEAD.unpack_from(data, at)
            length = word >> 8
            if word & 0xFF == DATA:
                at += 9
                self._acknowledge(length)
                if flags & ~END_STREAM:
                    raise LoadError("this client does not know padded frames")
                self._data_left = length
                continue
            if at + 9 + length > end:
                break
            at += 9 + length
            self._take_frame(word & 0xFF, flags, stream, bytes(data[at - length : at]))
        self._pending = bytes(data[at:])
        if self._out or self._body:
            self.write()

    def _take(self, data: memoryview) -> None:
        """Data of the stream, as far as it is there."""
        at, end = 0, len(data)
        while at < end:
            if self._message_left:
                taken = min(self._message_left, end - at)
                self._message_left -= taken
                at += taken
            else:
                # With the first byte behind it, which says in a stream whether it is an error
                missing = 6 - len(self._prefix)
                prefix = self._prefix + bytes(data[at : at + missing])
                at += missing
                if len(prefix) < 6:
                    self._prefix = prefix
                    return
                self._prefix = b""
                length = UINT32.unpack_from(prefix, 1)[0]
                if length < self._shortest:
                    raise LoadError(f"an answer has {length} bytes, right ones at least {self._shortest}")
                if self._per_request is not None and prefix[5] != INFER_RESPONSE:
                    raise LoadError("a response of a stream is an error")
                self._message_left = length - 1
            if not self._message_left:
                self.responses += 1
                self._messages += 1
                if self._messages == self._per_request:
                    self._on_done(self)

    def _take_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == HEADERS:
            self._check(payload)
            if flags & END_STREAM:
                if self._per_request is not None or self._messages != 1:
                    raise LoadError(f"a call ended after {self._messages} messages")
                self._on_done(self)
        elif kind == WINDOW_UPDATE:
            if stream == 0:
                self._window += UINT32.unpack(payload)[0]
            elif stream == self._stream:
                self._stream_window += UINT32.unpack(payload)[0]
        elif kind == SETTINGS and not flags & ACK:
            for setting, value in SETTING.iter_unpack(payload):
                if setting == INITIAL_WINDOW_SIZE:
                    self._stream_window += value - self._initial_window
                    self._initial_window = value
                elif setting == MAX_FRAME_SIZE:
                    self._max_frame = value
            self._out.append(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self._out.append(frame(PING, ACK, 0, payload))
        elif kind == GOAWAY or (kind == RST_STREAM and any(payload)):
            raise LoadError(f"the server ended {'the connection' if kind == GOAWAY else 'a call'}: {payload!r}")

    def _check(self, block: bytes) -> None:
        """A block that was good once is good as long as the table stays as it was then."""
        if block in self._good_blocks:
            return
        entries: Any = self._decoder.header_table.dynamic_entries
        before = len(entries), entries[0] if entries else None
        headers = dict(self._decoder.decode(block))
        if headers.get(":status", "200") != "200" or headers.get("grpc-status", "0") != "0":
            raise LoadError(f"a call failed: {headers}")
        if before == (len(entries), entries[0] if entries else None):
            self._good_blocks.add(block)
        else:
            self._good_blocks.clear()

    def _acknowledge(self, length: int) -> None:
        self._unacknowledged += length
        if self._unacknowledged >= WIDEN_BYTES:
            more = UINT32.pack(self._unacknowledged)
            self._out.append(frame(WINDOW_UPDATE, 0, 0, more))
            if self._per_request is not None:
                self._out.append(frame(WINDOW_UPDATE, 0, self._stream, more))
            self._unacknowledged = 0
