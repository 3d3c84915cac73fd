"""The bytes that arrive on a connection: heads, and the bodies behind them, each to where it is wanted.

Heads and small bodies land in one scratch buffer that all connections share (a read and its callback are one step of
the event loop, so nobody else can be in it). A large inference body goes straight into the arena: once the head has
told its length, the socket is given the rest of a block, placed so that the first tensor, behind the JSON header of
known length, begins on a 64-byte boundary. What comes with the head has to be copied there, so a connection whose last
request was large reads little at first.

Requests are handled one after the other. While one is being answered nothing more is read, so neither pipelining nor a
client that does not read its answers can make the server collect memory.
"""

from __future__ import annotations

from stubserve.connections.arrival import ArenaArrival, HeapArrival
from stubserve.errors import ServeError, invalid
from stubserve.http.body import MAX_BODY_BYTES, place, refusal
from stubserve.http.chunked import ChunkedBody, TooManyChunks
from stubserve.http.exchange import Exchange
from stubserve.http.head import BadRequest, Http2Preface, RequestHead, check_beginning
from stubserve.http.infer_encode import encode_error
from stubserve.http.reply import Reply
from stubserve.http.shared import SCRATCH_BYTES, Connections
from stubserve.http.state import BODY, BUSY, CLOSED, HEAD, PASS, SKIP
from stubserve.memory.heap_account import FREE_BYTES


class RequestReader:
    """The reader of one connection. `inbox` is where the next read goes, unless there is an `arena_body`: then into its
    rest."""

    def __init__(self, connection: Exchange, shared: Connections) -> None:
        self._connection = connection
        self._shared = shared
        self._server = shared.server
        # Per-connection state: `pending` has been read and waits for its turn
        self.inbox = shared.scratch_view
        self.pending = b""
        self.paused = False
        self._watched = False
        # Per-request state
        self.arena_body: ArenaArrival | None = None
        self._left = 0
        # A body that is not received into the arena: a short one, or a longer one or one of unknown length
        self._short_body = bytearray()
        self._body: HeapArrival | None = None
        self._chunked: ChunkedBody | None = None
        # The answer to one that is not wanted. Not its error, whose traceback knows this reader, and what was read.
        self._refusal: Reply | None = None

    def feed(self, data: bytes) -> None:
        """Takes what a read brought."""
        if self.pending:
            data = self.pending + data
            self.pending = b""
        self._process(data)

    def arena_body_has(self, nbytes: int) -> None:
        """The socket has written so many bytes into the arena's block."""
        arena_body = self.arena_body
        assert arena_body is not None
        try:
            complete = arena_body.advance(nbytes)
        except ServeError as error:
            self.give_up(error)
            return
        if complete:
            self._arena_body_is_complete(arena_body)

    def _arena_body_is_complete(self, arena_body: ArenaArrival) -> None:
        self.arena_body = None
        self._connection.state = BUSY
        self._unwatch()
        try:
            self._connection.infer(arena_body.view, arena_body.block, arena_body.offset)
        finally:
            arena_body.drop()

    def give_up(self, error: ServeError) -> None:
        """There is no memory for the body at hand: the rest of it is thrown away, and then the client told."""
        arena_body, self.arena_body = self.arena_body, None
        if arena_body is not None:
            self._left = arena_body.length - arena_body.moved
        self._forget_body(arena_body)
        self._refusal = encode_error(error)
        self._connection.state = SKIP

    def _forget_body(self, arena_body: ArenaArrival | None) -> None:
        self._short_body = bytearray()
        body, self._body = self._body, None
        for arrival in (arena_body, body):
            if arrival is not None:
                arrival.drop()

    def go_on(self) -> None:
        """Another request may be read: first what is there of it already."""
        connection = self._connection
        if connection.state is not HEAD or connection.write_paused:
            return
        data, self.pending = self.pending, b""
        if data:
            self._process(data)
        if self.paused and connection.can_read():
            self.paused = False
            connection.transport.resume_reading()
            self._watch_or_not()

    def close(self) -> None:
        """The connection is gone. What came on it goes now, not when the garbage collector finds its objects."""
        self._unwatch()
        self.pending = b""
        arena_body, self.arena_body = self.arena_body, None
        self._forget_body(arena_body)

    def _process(self, data: bytes) -> None:
        connection = self._connection
        position = 0
        end = len(data)
        try:
            while position < end:
                state = connection.state
                if state is HEAD:
                    if connection.write_paused:
                        break
                    while data.startswith(b"\r\n", position):
                        position += 2
                    split = data.find(b"\r\n\r\n", position)
                    if split < 0:
                        if position < end:
                            check_beginning(data, position)
                        break
                    head_end = split + 4
                    raw = data[position:head_end]
                    position = self._begin(self._shared.heads.get(raw), raw, data, head_end)
                elif state is BODY or state is SKIP or state is PASS:
                    position = self._take_body(data, position)
                else:
                    break
        except BadRequest as error:
            connection.answer_and_close(error.status, str(error))
            return
        except Http2Preface:
            connection.answer_and_close(400, self._shared.where_http2_is())
            return
        except TooManyChunks as error:
            connection.answer_and_close(400, str(error))
            return
        if position < end and connection.state is not CLOSED:
            self.pending = data[position:]
            if connection.state is BUSY or connection.write_paused:
                # Also where it is paused: the fallback has flow control of its own, which may have resumed it.
                self.paused = True
                connection.transport.pause_reading()
        self._watch_or_not()

    def _begin(self, head: RequestHead, raw: bytes, data: bytes, position: int) -> int:
        """A head is complete: decides what to do with its body. Returns the position behind what it used of it."""
        connection = self._connection
        connection.head = head
        self.inbox = self._shared.scratch_view
        self._left = length = head.content_length
        self._chunked = ChunkedBody() if head.chunked else None
        if head.infer is None:
            return self._begin_passing_on(raw, data, position)
        access = self._shared.access
        error = None if access is None else access.inference_refusal(head)
        if length > len(data) - position or head.chunked:
            error = error or refusal(head, self._server)
            if error is not None:
                self._refusal = encode_error(error)
                if head.expects_continue or length > MAX_BODY_BYTES:
                    # The client may not send the body after this answer, or would send for ever: no way to go on.
                    connection.closing = True
                    connection.reply(self._refusal)
                    return len(data)
                connection.state = SKIP
            elif head.expects_continue:
                connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        elif error is not None:
            connection.state = BUSY
            connection.reply(encode_error(error))
            return position + length
        if connection.state is HEAD and length > SCRATCH_BYTES:
            return self._begin_in_arena(head, data, position)
        if connection.state is HEAD:
            if not head.chunked and length <= len(data) - position:
                # The common case: the whole request came in one read.
                connection.state = BUSY
                connection.infer(data[position : position + length], None, 0)
                return position + length
            connection.state = BODY
            if head.chunked or length > FREE_BYTES:
                self._body = self._server.arrivals.into_heap(connection, self)
        return position

    def _begin_in_arena(self, head: RequestHead, data: bytes, position: int) -> int:
        try:
            arena_body = place(self._server, head, self._connection, self)
        except ServeError as error:
            self._refusal = encode_error(error)
            self._connection.state = SKIP
            return position
        end = min(position + self._left, len(data))
        self._connection.state = BODY
        self.arena_body = arena_body
        # The next request is probably as large: all of its body but what comes in so short a read needs no copy.
        self.inbox = self._shared.head_view
        try:
            arena_body.add(memoryview(data)[position:end])
        except ServeError as error:
            self.give_up(error)
            return position + arena_body.moved
        if arena_body.complete:
            self._arena_body_is_complete(arena_body)
        return end

    def _begin_passing_on(self, raw: bytes, data: bytes, position: int) -> int:
        if self._chunked is None and self._left <= len(data) - position:
            end = position + self._left
            self._connection.pass_on(raw + data[position:end], last=True)
            return end
        self._connection.state = PASS
        self._connection.pass_on(raw, last=False)
        return position

    def _take_body(self, data: bytes, position: int) -> int:
        """Takes what is there of the body, wherever it goes, and acts when it is complete."""
        connection = self._connection
        start = position
        if self._chunked is not None:
            pieces, position = self._chunked.feed(data, position)
            complete = self._chunked.done
        else:
            pieces = [data[position : position + self._left]]
            position += len(pieces[0])
            self._left -= len(pieces[0])
            complete = self._left == 0
        if connection.state is PASS:
            connection.pass_on(data[start:position], last=complete)
            return position
        if connection.state is BODY:
            try:
                self._keep(pieces)
            except ServeError as error:
                self._forget_body(None)
                self._refusal = encode_error(error)
                connection.state = SKIP
        if complete and connection.state is SKIP:
            assert self._refusal is not None
            connection.state = BUSY
            connection.reply(self._refusal)
        elif complete:
            connection.state = BUSY
            if self._body is None:
                body, self._short_body = bytes(self._short_body), bytearray()
                connection.infer(body, None, 0)
            else:
                arrival, self._body = self._body, None
                body, share = arrival.finish()
                connection.infer(body, None, 0, share)
        return position

    def _keep(self, pieces: list[bytes]) -> None:
        """Raises ServeError where the body is too long, or there is no memory for it."""
        body = self._body
        if body is None:
            for piece in pieces:
                self._short_body += piece
            return
        limit = max(self._server.max_input_size, 1 << 20)
        for piece in pieces:
            if body.moved + len(piece) > limit:
                raise invalid(
                    f"request body exceeds the maximum of {limit} bytes for a chunked body. "
                    "Use --http-max-input-size to increase the limit, or send a Content-Length."
                )
            body.add(piece)

    def _watch_or_not(self) -> None:
        """A client has to go on with what it has begun to send, where it may."""
        state = self._connection.state
        if (state is HEAD and self.pending and not self.paused) or state in (BODY, SKIP, PASS):
            if not self._watched:
                self._watched = True
                self._shared.slow_clients.watch_arriving(self._connection)
        elif self._watched:
            self._unwatch()

    def _unwatch(self) -> None:
        if self._watched:
            self._watched = False
            self._shared.slow_clients.unwatch_arriving(self._connection)
