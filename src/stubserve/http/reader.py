"""The bytes that arrive on a connection, taken apart: heads, and the bodies behind them, each to where it is wanted.

Heads and small bodies land in one scratch buffer that all connections share (a read and its callback are one step of
the event loop, so nobody else can be in it). A large inference body goes straight into the arena: once the head has
told its length, the socket is given the rest of a block, placed so that the first tensor, behind the JSON header of
known length, begins on a 64-byte boundary. What comes with the head has to be copied there, so after a large
request a connection reads little at first.

The reader knows nothing of its connection, which says when the next head is taken and what becomes of the body: it is
collected, thrown away because the answer is known already, or passed on as it came. While a request is being answered
nothing more is read, so neither pipelining nor a client that does not read its answers can make the server collect
memory.
"""

from __future__ import annotations

import asyncio
import logging

from stubserve.connections.arrival import ArenaArrival, HeapArrival
from stubserve.errors import ServeError, invalid
from stubserve.http.body import ChunkedBody, place
from stubserve.http.infer_encode import encode_error
from stubserve.http.message import BadRequest, Http2Preface, Reply, RequestHead, check_beginning
from stubserve.http.shared import SCRATCH_BYTES, Connections
from stubserve.memory.blocks import Block
from stubserve.memory.heap_account import FREE_BYTES, HeapShare

log = logging.getLogger("stubserve.http")

# How long a refused client may send nothing before its connection is closed, and how often it may have sent more
_LINGER_S = 1.0
_LINGERS = 30


class RequestReader:
    """The reader of one connection. `inbox` is where the next read goes, unless there is an `arena_body`: then into its
    rest."""

    def __init__(self, shared: Connections, transport: asyncio.Transport) -> None:
        self._shared = shared
        self._server = shared.server
        self._transport = transport
        # Per-connection state: `data` has been read and waits for its turn
        self.inbox = shared.scratch_view
        self.data = b""
        self.bytes_received = 0
        self.paused = False
        self.lingering: asyncio.TimerHandle | None = None
        self._watched = False
        # Per-request state. The request begins at `_start` in the data, and what has not been taken of it at `_at`.
        self.head: RequestHead
        self._start = 0
        self._at = 0
        # Whether there is more of its body to take: so many bytes, or up to the end that is found there
        self._in_body = False
        self._left = 0
        self._chunked: ChunkedBody | None = None
        # Whether all of it has come with its head
        self.has_whole_body = False
        # Where it is kept, unless there is a reason to throw it away: the arena, the heap with an account, or here
        # The answer to one that is not wanted. Not its error: the traceback knows this reader, and what was read.
        self.refusal: Reply | None = None
        self.arena_body: ArenaArrival | None = None
        self._heap_body: HeapArrival | None = None
        self._short_body = b""
        self.raw = b""

    def received(self, nbytes: int) -> None:
        """So many bytes were read, to where the next read was to go."""
        self.bytes_received += nbytes
        arena_body = self.arena_body
        if arena_body is None:
            self.data += bytes(self._shared.scratch_view[:nbytes])
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
            self.head = head = self._shared.heads.read(data[at:end])
        except Http2Preface:
            raise BadRequest(self._shared.where_http2_is()) from None
        self._start, self._at = at, end
        self.inbox = self._shared.scratch_view
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
                self.arena_body = place(self._server, self.head, self, self)
            except ServeError as error:
                self.refusal = encode_error(error)
                return
            # The next request is probably as large: all of its body but what comes in so short a read needs no copy.
            self.inbox = self._shared.head_view
        elif self._chunked is not None or self._left > FREE_BYTES:
            self._heap_body = self._server.arrivals.into_heap(self, self)

    def take_body(self, keep: bool) -> bool:
        """Takes what has come of the body; whether that was the last of it. Raises BadRequest.

        It is kept for `body`, unless there is a `refusal`. What is not to be kept is `raw`, as it came, with the head
        before it.
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

    def _keep_in_heap(self, body: HeapArrival, piece: bytes) -> None:
        """Raises ServeError where the body is too long, or there is no memory for it."""
        limit = max(self._server.max_input_size, 1 << 20)
        if body.moved + len(piece) > limit:
            raise invalid(
                f"request body exceeds the maximum of {limit} bytes for a chunked body. "
                "Use --http-max-input-size to increase the limit, or send a Content-Length."
            )
        body.add(piece)

    def body(self) -> tuple[bytes | memoryview, Block | None, int, HeapShare | None]:
        """The body, once it is complete: where it lies in the arena, and the share in which it is counted in the heap.

        All of that is the caller's from now on, the block's first hold included.
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
        """There is no memory for the body at hand: the rest of it is thrown away, and then the client told."""
        self._forget_body()
        self.refusal = encode_error(error)

    def settle(self, waits: bool) -> None:
        """All is taken that could be. What is left `waits` until a request is answered, or for more to come."""
        if waits and self.data:
            # Also where it is paused: the fallback has flow control of its own, which may have resumed it.
            self.paused = True
            self._transport.pause_reading()
        elif self.paused and not waits and not self._transport.is_closing():
            self.paused = False
            self._transport.resume_reading()
        # A client has to go on with what it has begun to send, where it may.
        arriving = self._in_body or (self.data != b"" and not self.paused)
        if arriving != self._watched:
            self._watched = arriving
            clients = self._shared.slow_clients
            (clients.watch_arriving if arriving else clients.unwatch_arriving)(self)

    def stalled(self) -> None:
        """The client does not send the rest of its request, or too slowly."""
        log.info(
            "closing a connection whose request did not arrive completely: it fell behind --request-min-rate=%d "
            "or took longer than --request-timeout-secs=%d",
            *self._shared.slow_clients.pace,
        )
        self._transport.close()

    def linger(self, seen: int = -1, times: int = _LINGERS) -> None:
        """Reads on, for nothing: with something unread the kernel would take an answer back as it closes."""
        if self.bytes_received == seen or not times:
            self._transport.close()
        else:
            loop = asyncio.get_running_loop()
            self.lingering = loop.call_later(_LINGER_S, self.linger, self.bytes_received, times - 1)

    def close(self) -> None:
        """No request is taken any more. What came goes now, not when the garbage collector finds its objects."""
        self.data = b""
        self._in_body = False
        self._forget_body()
        self.settle(True)

    def _forget_body(self) -> None:
        self._short_body = b""
        arena_body, self.arena_body = self.arena_body, None
        if arena_body is not None:
            arena_body.drop()
        heap_body, self._heap_body = self._heap_body, None
        if heap_body is not None:
            heap_body.drop()
