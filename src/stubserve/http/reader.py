"""Takes apart the bytes that arrive on a connection: heads, and bodies, which it puts where they are needed.

Heads and small bodies land in one scratch buffer that all connections share: a read and its callback are one step of
the event loop, so no two connections use the buffer at once. A large inference body goes straight into the arena. Once
the head has told its length, the socket reads into the rest of a block, placed so that the first tensor, behind the
JSON header of known length, begins on a 64-byte boundary. The part of the body that comes with the head has to be
copied, so after a large request a connection reads little at first.

The connection says when the reader takes the next head and what happens to the body: it is collected, thrown away
because the answer is known already, or passed on as it came. While a request is being answered nothing more is read. So
neither pipelining nor a client that does not read its answers can make the server collect memory.
"""

# Compiled by mypyc.
from __future__ import annotations

import asyncio
import logging
import re

from stubserve.api.inference_server import InferenceServer
from stubserve.connections.receive_buffers import ArenaBuffer, HeapBuffer
from stubserve.errors import ServeError, invalid
from stubserve.http.body import ChunkedBody, body_buffer
from stubserve.http.infer_encode import encode_error
from stubserve.http.message import BadRequest, Http2Preface, Reply, RequestHead, check_beginning, parse_head
from stubserve.memory.blocks import Block
from stubserve.memory.heap_account import FREE_BYTES, HeapShare

log = logging.getLogger("stubserve.http")

SCRATCH_BYTES = 64 * 1024
# The first read of a request that will be large: a head and the JSON of a few tensors
_FIRST_BYTES = 4 * 1024

# Seconds of silence after which a refused client's connection is closed, and how often it is waited for
_LINGER_S = 1.0
_LINGERS = 30

_KNOWN_LINES = 1024
_KNOWN_HEAD_BYTES = 1024

# Kinds of lines that matter to the server, by their names below; _PLAIN is any other line
_PLAIN, _HOST_LINE, _ACCEPT_ENCODING, _CONTENT_LENGTH, _HEADER_LENGTH, _TRACE_PARENT = range(6)
_KINDS = {
    b"host": _HOST_LINE,
    b"accept-encoding": _ACCEPT_ENCODING,
    b"content-length": _CONTENT_LENGTH,
    b"inference-header-content-length": _HEADER_LENGTH,
    b"traceparent": _TRACE_PARENT,
}
# Only the names of these lines are remembered: their values hardly ever come again.
_OWN_VALUE = frozenset((_CONTENT_LENGTH, _HEADER_LENGTH, _TRACE_PARENT))
# The parser reads a head with one of these, except `Connection: keep-alive`, which changes nothing.
_NEVER_KNOWN = frozenset(
    (b"connection", b"proxy-connection", b"transfer-encoding", b"upgrade", b"expect", b"content-encoding")
)
_KEEPS_ALIVE = (b"connection", b"keep-alive")
# Values that httptools accepts. A length with more digits than this may be too large, so the parser reads it.
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*").fullmatch
_LENGTH_DIGITS = 18


class KnownHeads:
    """The lines of heads that were seen before: a client sends the same ones again, except for lengths and ids.

    Request lines are remembered with their routes, other lines with their meaning. Of some lines only the name is
    remembered, and the value may be any. Known lines make the same head as `parse_head`; a property test compares both.
    If a line is unknown or may not stand there, the parser reads the head. Lines that mean more than their field, such
    as `Transfer-Encoding`, are never remembered. At most 1,024 lines of a kind are, and none of a head above a KiB.
    """

    def __init__(self) -> None:
        # By request line: a head that has this line; by other line: its kind and field; by name: its kind
        self._routes: dict[bytes, RequestHead] = {}
        self._lines: dict[bytes, tuple[int, tuple[bytes, bytes]]] = {}
        self._names: dict[bytes, int] = {}

    def read(self, data: bytes) -> RequestHead:
        """As `parse_head`."""
        if (head := self.known(data)) is not None:
            return head
        head = parse_head(data)
        if len(data) <= _KNOWN_HEAD_BYTES and (head.infer is not None or head.generate is not None):
            self._learn(data, head)
        return head

    def known(self, data: bytes) -> RequestHead | None:
        """The head that remembered lines make; None if a line is unknown or may not stand there."""
        lines = data.split(b"\r\n")
        route = self._routes.get(lines[0])
        if route is None or len(data) > _KNOWN_HEAD_BYTES:
            return None
        head = RequestHead()
        head.method = route.method
        head.target = route.target
        head.infer = route.infer
        head.generate = route.generate
        fields = head.headers
        hosts = lengths = 0
        for line in lines[1:-2]:
            found = self._lines.get(line)
            if found is not None:
                kind, field = found
                if kind == _HOST_LINE:
                    hosts += 1
                elif kind == _ACCEPT_ENCODING:
                    head.accept_encoding = field[1]
            else:
                name, _, value = line.partition(b":")
                field = name, value = name, value.lstrip(b" \t")
                kind = self._names.get(name, -1)
                if kind == _CONTENT_LENGTH:
                    if not value.isdigit() or len(value) > _LENGTH_DIGITS:
                        return None
                    lengths += 1
                    head.content_length = int(value)
                elif kind < 0 or _VALUE(value) is None:
                    return None
                elif kind == _HEADER_LENGTH:
                    head.header_length = value
                elif kind == _TRACE_PARENT and head.trace_parent is None:
                    head.trace_parent = value
            fields.append(field)
        return head if hosts == 1 and lengths <= 1 else None

    def _learn(self, data: bytes, head: RequestHead) -> None:
        """Remembers the lines of a parsed head, unless one of them means more than its field."""
        route, *lines = data.split(b"\r\n")[:-2]
        if not route.endswith(b" HTTP/1.1") or list(map(_field, lines)) != head.headers:
            return
        fields = [(name, name.lower(), value.lower()) for name, value in head.headers]
        if any(lower in _NEVER_KNOWN and (lower, value) != _KEEPS_ALIVE for _, lower, value in fields):
            return
        for memory in (self._routes, self._lines, self._names):
            if len(memory) >= _KNOWN_LINES:
                memory.clear()
        self._routes[route] = head
        for line, field, (name, lower, _) in zip(lines, head.headers, fields, strict=True):
            kind = _KINDS.get(lower, _PLAIN)
            if kind in _OWN_VALUE:
                self._names[name] = kind
            else:
                self._lines[line] = kind, field
                if kind == _PLAIN and lower not in _NEVER_KNOWN:
                    self._names[name] = kind


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name, value.lstrip(b" \t")


class RequestReader:
    """The reader of one connection. The next read goes into the rest of `arena_body`, or else into `inbox`."""

    def __init__(
        self, server: InferenceServer, heads: KnownHeads, scratch: memoryview, transport: asyncio.Transport
    ) -> None:
        self._server = server
        self._heads = heads
        self._scratch = scratch
        self._transport = transport
        # State of the connection: `data` has been read and waits for its turn.
        self.inbox = scratch
        self.data = b""
        self.bytes_received = 0
        self.paused = False
        self.lingering: asyncio.TimerHandle | None = None
        self._watched = False
        # State of the request: it begins at `_start` in the data, and its bytes up to `_at` have been taken.
        self.head: RequestHead
        self._start = 0
        self._at = 0
        # Whether more of the body is to come: `_left` bytes, or up to the end that `_chunked` finds
        self._in_body = False
        self._left = 0
        self._chunked: ChunkedBody | None = None
        # Whether the whole body came with its head
        self.has_whole_body = False
        # The answer that refuses the request. Not the error: its traceback refers to this reader and to the data. The
        # body is kept in the arena, in the heap with an account, or in `_short_body`; not at all after a refusal.
        self.refusal: Reply | None = None
        self.arena_body: ArenaBuffer | None = None
        self._heap_body: HeapBuffer | None = None
        self._short_body = b""
        self.raw = b""

    def received(self, nbytes: int) -> None:
        """`nbytes` were read, into the place for the next read."""
        self.bytes_received += nbytes
        arena_body = self.arena_body
        if arena_body is None:
            self.data += bytes(self._scratch[:nbytes])
            return
        self._left -= nbytes
        try:
            arena_body.advance(nbytes)
        except ServeError as error:
            self.give_up(error)

    def take_head(self) -> bool:
        """Whether the head of the next request has come; then it is `head`. Raises BadRequest."""
        data, at = self.data, 0
        while data.startswith(b"\r\n", at):
            at += 2
        end = data.find(b"\r\n\r\n", at) + 4
        if end < 4:
            self.data = data = data[at:]
            if data:
                check_beginning(data)
            return False
        try:
            self.head = head = self._heads.read(data[at:end])
        except Http2Preface:
            port = self._server.grpc_port
            where = f"served on port {port}" if port else "not served (--allow-grpc)"
            raise BadRequest(f"this port speaks HTTP/1.1, not HTTP/2; gRPC is {where}") from None
        self._start, self._at = at, end
        self.inbox = self._scratch
        self.refusal = None
        self._in_body = True
        self._left = head.content_length
        self._chunked = ChunkedBody() if head.chunked else None
        self.has_whole_body = not head.chunked and self._left <= len(data) - end
        return True

    def collect(self) -> None:
        """Makes room for a body that is still to come."""
        if self._left > SCRATCH_BYTES:
            try:
                self.arena_body = body_buffer(self._server, self.head, self, self)
            except ServeError as error:
                self.refusal = encode_error(error)
                return
            # The next request is probably as large: with a short first read, only that part of its body is copied.
            self.inbox = self._scratch[:_FIRST_BYTES]
        elif self._chunked is not None or self._left > FREE_BYTES:
            self._heap_body = self._server.receive_buffers.heap_buffer(self, self)

    def take_body(self, keep: bool) -> bool:
        """Takes the part of the body that has come; True with the last part. Raises BadRequest.

        With `keep`, it is kept for `body`, unless there is a `refusal`. Otherwise it goes into `raw`, as it came, after
        the head.
        """
        data = self.data
        if self._chunked is None:
            end = min(self._at + self._left, len(data))
            self._left -= end - self._at
            pieces = [data[self._at : end]]
            complete = self._left == 0
        else:
            pieces, end = self._chunked.feed(data, self._at)
            complete = self._chunked.done
        if not keep:
            self.raw = data[self._start : end]
        elif self.refusal is None:
            try:
                for piece in pieces:
                    if self._heap_body is not None:
                        self._keep_in_heap(self._heap_body, piece)
                    elif self.arena_body is None:
                        self._short_body += piece
                    elif piece:
                        self.arena_body.add(memoryview(piece))
            except ServeError as error:
                self.give_up(error)
        self.data = data[end:]
        self._start = self._at = 0
        self._in_body = not complete
        return complete

    def _keep_in_heap(self, body: HeapBuffer, piece: bytes) -> None:
        """Raises ServeError if the body is too long, or memory is short."""
        limit = max(self._server.max_input_size, 1 << 20)
        if body.moved + len(piece) > limit:
            raise invalid(
                f"request body exceeds the maximum of {limit} bytes for a chunked body. "
                "Use --http-max-input-size to increase the limit, or send a Content-Length."
            )
        body.add(piece)

    def body(self) -> tuple[bytes | memoryview, Block | None, int, HeapShare | None]:
        """The complete body; block and arena offset if it lies in the arena; its share if it counts in the heap.

        The caller owns all of that from now on, the block's first hold included.
        """
        arena_body, self.arena_body = self.arena_body, None
        if arena_body is not None:
            return arena_body.view, arena_body.block, arena_body.offset, None
        heap_body, self._heap_body = self._heap_body, None
        if heap_body is not None:
            data, share = heap_body.finish()
            return data, None, 0, share
        body, self._short_body = self._short_body, b""
        return body, None, 0, None

    def give_up(self, error: ServeError) -> None:
        """Memory is short: the rest of this body is thrown away, and then the client gets `error`."""
        self._forget_body()
        self.refusal = encode_error(error)

    def pause_or_resume(self, waits: bool) -> None:
        """All that could be taken is taken. With `waits` the rest waits for an answer, otherwise for more bytes."""
        if waits and self.data:
            # Even if `paused`: the fallback has its own flow control, which may have resumed reading.
            self.paused = True
            self._transport.pause_reading()
        elif self.paused and not waits and not self._transport.is_closing():
            self.paused = False
            self._transport.resume_reading()
        # A client that has begun to send, and can go on, must do so at the minimum rate.
        receiving = self._in_body or (self.data != b"" and not self.paused)
        if receiving != self._watched:
            self._watched = receiving
            clients = self._server.slow_clients
            (clients.watch_receiver if receiving else clients.unwatch_receiver)(self)

    def stalled(self) -> None:
        """The client does not send the rest of its request, or sends it too slowly."""
        log.info(
            "closing a connection whose request did not arrive completely: it fell behind --request-min-rate=%d "
            "or took longer than --request-timeout-secs=%d",
            *self._server.slow_clients.pace,
        )
        self._transport.close()

    def linger(self, seen: int = -1, times: int = _LINGERS) -> None:
        """Reads on and ignores the bytes: if the kernel closes with unread bytes, the client loses the answer."""
        if self.bytes_received == seen or not times:
            self._transport.close()
        else:
            loop = asyncio.get_running_loop()
            self.lingering = loop.call_later(_LINGER_S, self.linger, self.bytes_received, times - 1)

    def close(self) -> None:
        """Takes no more requests. Frees the data now, not when the garbage collector finds its objects."""
        self.data = b""
        self._in_body = False
        self._forget_body()
        self.pause_or_resume(True)

    def _forget_body(self) -> None:
        self._short_body = b""
        arena_body, self.arena_body = self.arena_body, None
        if arena_body is not None:
            arena_body.drop()
        heap_body, self._heap_body = self._heap_body, None
        if heap_body is not None:
            heap_body.drop()
