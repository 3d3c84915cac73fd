"""One HTTP connection: a uvicorn protocol class that knows inference.

The bytes of a request are read where they are wanted. Heads and small bodies land in one scratch buffer that all
connections share (a read and its callback are one step of the event loop, so nobody else can be in it). A large
inference body goes straight into the arena: once the head has told its length, `get_buffer` gives the socket the rest
of a block, placed so that the first tensor, behind the JSON header of known length, begins on a 64-byte boundary.
What comes with the head has to be copied there, so a connection whose last request was large reads little at first.

Requests on a connection are handled one after the other. While one is being answered nothing more is read, so neither
pipelining nor a client that does not read its answers can make the server collect memory. A request for another route
is passed, byte for byte, to uvicorn's own protocol on the same transport.

States: HEAD (collecting a head), BODY (collecting a body in `_body`, or in the arena), SKIP (throwing a body away whose
answer is already known), PASS (passing a body on to the fallback), BUSY (a request is being answered), CLOSED.
"""

from __future__ import annotations

import asyncio
import enum
import functools
import logging
from collections.abc import Callable
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.server import ServerState

from stubserve.errors import ServeError, internal, invalid
from stubserve.inference.memory import Block
from stubserve.inference.request import Request, Response
from stubserve.protocols.http.body import MAX_BODY_BYTES, ArenaBody, refusal
from stubserve.protocols.http.chunked import ChunkedBody, TooManyChunks
from stubserve.protocols.http.fallback import Fallback
from stubserve.protocols.http.head import MAX_HEAD_BYTES, BadRequest, Head
from stubserve.protocols.http.infer import InferCall
from stubserve.protocols.http.infer_encode import encode_error
from stubserve.protocols.http.repeat import Repeat
from stubserve.protocols.http.reply import JSON, Reply, keep_sending_warm, reply_head
from stubserve.protocols.http.shared import SCRATCH_BYTES, Connections
from stubserve.protocols.stall import STALL_S

log = logging.getLogger("stubserve.http")


class State(enum.Enum):
    HEAD = enum.auto()
    BODY = enum.auto()
    SKIP = enum.auto()
    PASS = enum.auto()
    BUSY = enum.auto()
    CLOSED = enum.auto()


# Bound once: in Python 3.10 and 3.11 looking up a member of an enum costs as much as a function call.
HEAD, BODY, SKIP, PASS, BUSY, CLOSED = State


class Connection(asyncio.BufferedProtocol):
    """A client's connection."""

    def __init__(
        self,
        shared: Connections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        # Global state
        self._shared = shared
        self._ingress = shared.ingress
        self._server_state = server_state
        self._make_fallback: Callable[[], Fallback] = functools.partial(
            Fallback, config, server_state, app_state, _loop
        )
        # Per-connection state
        self._transport: asyncio.Transport
        self._fallback: Fallback | None = None
        self._pending = b""
        self._closing = False
        self._reading_paused = False
        self._write_paused = False
        self._watched = False
        self._inbox = shared.scratch_view
        self._sends_large = False
        self.bytes_received = 0
        # Per-request state
        self._state = HEAD
        self._head: Head
        self._left = 0
        self._body = bytearray()
        self._chunked: ChunkedBody | None = None
        self._refusal: ServeError | None = None
        self._answered_early = False
        self._arena_body: ArenaBody | None = None
        self._call: InferCall | None = None
        self._repeat: Repeat | None = None
        self._repeated: Request | None = None

    # What the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server_state.connections.add(self)  # type: ignore[arg-type]  # uvicorn lists its own classes

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._arena_body is not None:
            return self._arena_body.rest
        return self._inbox

    def buffer_updated(self, nbytes: int) -> None:
        self.bytes_received += nbytes
        repeat = self._repeat
        if (
            repeat is not None
            and nbytes == repeat.length
            and self._state is HEAD
            and repeat.fits(self._shared.scratch)
            and not self._pending
            and not self._write_paused
            and self._begin_again(repeat)
        ):
            return
        if self._arena_body is not None:
            self._arena_body.filled += nbytes
            if self._arena_body.complete:
                self._infer_from_arena()
            return
        data = bytes(self._shared.scratch_view[:nbytes])
        if self._state is HEAD and not self._pending and not self._write_paused and self._begin_known(data):
            return
        if self._pending:
            data = self._pending + data
            self._pending = b""
        self._process(data)

    def eof_received(self) -> bool:
        # A client that is gone and one that only closed its side look the same; the first is common, so: gone.
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._server_state.connections.discard(self)
        self._state = CLOSED
        self._unwatch()
        if self._arena_body is not None:
            self._arena_body.drop()
            self._arena_body = None
        if self._fallback is not None:
            self._fallback.connection_lost(exc)
        call, self._call = self._call, None
        if call is not None:
            call.cancel()
        request, self._repeated = self._repeated, None
        if request is not None:
            assert self._repeat is not None
            self._repeat.model.cancel(request)

    def pause_writing(self) -> None:
        self._write_paused = True
        if self._fallback is not None:
            self._fallback.pause_writing()

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._fallback is not None:
            self._fallback.resume_writing()
        if self._state is HEAD:
            self._continue()

    def shutdown(self) -> None:
        """uvicorn is shutting down: no further request, but the one that is being answered gets its answer."""
        self._closing = True
        if self._state is HEAD:
            self._transport.close()

    def stalled(self) -> None:
        """The client has not sent anything of the rest of its request for too long."""
        log.info("closing a connection whose request did not arrive completely within %d s", STALL_S)
        self._transport.close()

    # Reading

    def _process(self, data: bytes) -> None:
        position = 0
        end = len(data)
        try:
            while position < end:
                state = self._state
                if state is HEAD:
                    if self._write_paused:
                        break
                    while data.startswith(b"\r\n", position):
                        position += 2
                    split = data.find(b"\r\n\r\n", position)
                    if split < 0:
                        if end - position > MAX_HEAD_BYTES:
                            raise BadRequest("Request head is too large")
                        break
                    head_end = split + 4
                    raw = data[position:head_end]
                    position = self._begin(self._shared.heads.get(raw), raw, data, head_end)
                elif state is BODY or state is SKIP or state is PASS:
                    position = self._take_body(data, position)
                else:
                    break
        except BadRequest as error:
            self._answer_and_close(400, str(error))
            return
        except TooManyChunks as error:
            self._answer_and_close(400, str(error))
            return
        if position < end and self._state is not CLOSED:
            self._pending = data[position:]
            if self._state is BUSY or self._write_paused:
                self._pause_reading()
        if (self._state is HEAD and self._pending) or self._state in (BODY, SKIP, PASS):
            if not self._watched:
                self._watched = True
                self._shared.watch(self)
        elif self._watched:
            self._unwatch()

    def _begin_known(self, data: bytes) -> bool:
        """The short way for the usual case: one whole inference request, with a head that was seen before."""
        body_start = data.find(b"\r\n\r\n") + 4
        head = self._shared.heads.known(data[:body_start])
        if head is None or head.infer is None or head.content_length != len(data) - body_start or head.chunked:
            return False
        self._head = head
        self._state = BUSY
        call = self._infer(data[body_start:], None, 0)
        if call is not None and call.form is not None and call.form.plan.inline and head.repeatable:
            self._repeat = Repeat(head, call.model, call.form, data, body_start)
        return True

    def _begin_again(self, repeat: Repeat) -> bool:
        """The shortest way: a request that differs from the one before in its tensors only."""
        self._head = head = repeat.head
        assert head.infer is not None
        try:
            model = self._ingress.find_model(*head.infer)
            if model is not repeat.model:  # loaded anew since then
                self._repeat = None
                return False
            request = repeat.request(self._shared.scratch_view, self._on_repeated)
            if request is None:
                return False
            self._state = BUSY
            self._repeated = request
            model.submit(request)
        except ServeError as error:
            self._state = BUSY
            self._repeated = None
            self._reply(encode_error(error))
        return True

    def _begin(self, head: Head, raw: bytes, data: bytes, position: int) -> int:
        """A head is complete: decides what to do with its body. Returns the position behind what it used of it."""
        self._head = head
        self._inbox = self._shared.scratch_view
        self._left = length = head.content_length
        self._chunked = ChunkedBody() if head.chunked else None
        if head.infer is None:
            return self._begin_fallback(raw, data, position)
        self._refusal = None
        if length > len(data) - position or head.chunked:
            self._refusal = refusal(head, self._ingress)
            if self._refusal is not None:
                if head.expects_continue or length > MAX_BODY_BYTES:
                    # The client may not send the body after this answer, or would send for ever: no way to go on.
                    self._closing = True
                    self._reply(encode_error(self._refusal))
                    return len(data)
                self._state = SKIP
            elif head.expects_continue:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self._state is HEAD and length > SCRATCH_BYTES and head.content_encoding is None:
            return self._begin_in_arena(data, position)
        if self._state is HEAD:
            self._state = BODY
            if not head.chunked and length <= len(data) - position:
                # The common case: the whole request came in one read.
                self._state = BUSY
                self._infer(data[position : position + length], None, 0)
                return position + length
            self._body = bytearray()
        return position

    def _begin_in_arena(self, data: bytes, position: int) -> int:
        try:
            arena_body = ArenaBody(self._ingress, self._head, self._left)
        except ServeError as error:
            self._refusal = error
            self._state = SKIP
            return position
        end = min(position + self._left, len(data))
        self._state = BODY
        self._arena_body = arena_body
        arena_body.add(memoryview(data)[position:end])
        # The next request is probably as large: all of its body but what comes in so short a read needs no copy.
        self._inbox = self._shared.head_view
        if arena_body.complete:
            self._infer_from_arena()
        return end

    def _take_body(self, data: bytes, position: int) -> int:
        """Takes what is there of the body, wherever it goes, and acts when it is complete."""
        start = position
        if self._chunked is not None:
            pieces, position = self._chunked.feed(data, position)
            complete = self._chunked.done
        else:
            pieces = [data[position : position + self._left]]
            position += len(pieces[0])
            self._left -= len(pieces[0])
            complete = self._left == 0
        if self._state is BODY:
            for piece in pieces:
                self._body += piece
            if self._chunked is not None and len(self._body) > self._chunked_limit():
                self._refusal = invalid(
                    f"request body exceeds the maximum of {self._chunked_limit()} bytes for a chunked body. "
                    "Use --http-max-input-size to increase the limit, or send a Content-Length."
                )
                self._state = SKIP
                self._body = bytearray()
        elif self._state is PASS:
            assert self._fallback is not None
            if complete:
                self._state = BUSY
            self._fallback.data_received(data[start:position])
            if complete and self._answered_early:
                self._done()
            return position
        if complete:
            if self._state is SKIP:
                assert self._refusal is not None
                self._state = BUSY
                self._reply(encode_error(self._refusal))
            else:
                self._state = BUSY
                body, self._body = bytes(self._body), bytearray()
                self._infer(body, None, 0)
        return position

    def _chunked_limit(self) -> int:
        return max(self._ingress.max_input_size, 1 << 20)

    def _begin_fallback(self, raw: bytes, data: bytes, position: int) -> int:
        if self._fallback is None:
            self._fallback = self._make_fallback()
            self._fallback.attach(self._transport, self._done)
        if self._chunked is None and self._left <= len(data) - position:
            # Bound in one piece, so that the answer cannot come before the state says that it is awaited.
            end = position + self._left
            self._state = BUSY
            self._fallback.data_received(raw + data[position:end])
            return end
        self._state = PASS
        self._answered_early = False
        self._fallback.data_received(raw)
        return position

    # Inference

    def _infer_from_arena(self) -> None:
        arena_body, self._arena_body = self._arena_body, None
        assert arena_body is not None
        self._state = BUSY
        self._unwatch()
        try:
            self._infer(arena_body.view, arena_body.block, arena_body.offset)
        finally:
            arena_body.drop()

    def _infer(self, body: bytes | memoryview, block: Block | None, offset: int) -> InferCall | None:
        """Starts the call; None where it is answered already, with an error."""
        assert self._head.infer is not None
        try:
            model = self._ingress.find_model(*self._head.infer)
            call = InferCall(model, self._head, self._ingress, self._on_reply)
            self._call = call
            call.start(body, block, offset)
            return call
        except ServeError as error:
            self._call = None
            self._reply(encode_error(error))
        except Exception:
            log.exception("a request to model '%s' failed inside the server", self._head.infer[0])
            self._call = None
            self._reply(encode_error(internal("unexpected error while the request was handled; see the server's log")))
        return None

    def _on_reply(self, reply: Reply) -> None:
        self._call = None
        if self._state is BUSY:
            self._reply(reply)

    def _on_repeated(self, request: Request, response: Response) -> None:
        self._repeated = None
        repeat = self._repeat
        if self._state is not BUSY or repeat is None:
            return
        reply = repeat.reply(request, response, self._closing)
        if isinstance(reply, bytes):
            self._transport.write(reply)
            self._done()
        else:
            self._reply(reply)

    # Answering

    def _reply(self, reply: Reply) -> None:
        keep_alive = self._head.keep_alive and not self._closing
        total = sum(map(len, reply.parts))
        head = reply_head(reply.status, reply.content_type, total, reply.json_length, reply.headers, keep_alive)
        if reply.blocks:
            if not self._sends_large:
                self._sends_large = True
                keep_sending_warm(self._transport)
            wrap = self._shared.sent_memory.wrap
            self._transport.writelines(
                [head, *(part if isinstance(part, bytes) else wrap(part, reply.blocks) for part in reply.parts)]
            )
        else:
            self._transport.write(b"".join([head, *reply.parts]))
        if keep_alive:
            self._done()
        else:
            self._state = CLOSED
            self._transport.close()

    def _answer_and_close(self, status: int, message: str) -> None:
        body = b'{"error":"' + message.encode().replace(b'"', b'\\"') + b'"}'
        self._transport.write(reply_head(status, JSON, len(body), keep_alive=False) + body)
        self._state = CLOSED
        self._transport.close()

    def _done(self) -> None:
        """The current request is answered; on to the next."""
        if self._state is PASS:
            # The app answered without waiting for the body: what is still to come of it is thrown away.
            self._answered_early = True
            self._closing = self._closing or self._head.expects_continue
            if not self._closing:
                return
        if self._closing:
            self._state = CLOSED
            self._transport.close()
            return
        self._state = HEAD
        if (self._pending or self._reading_paused) and not self._write_paused:
            # From the event loop, not from here: a long pipeline must not become a deep recursion.
            asyncio.get_running_loop().call_soon(self._continue)

    def _continue(self) -> None:
        if self._state is not HEAD or self._write_paused:
            return
        data, self._pending = self._pending, b""
        if data:
            self._process(data)
        if self._reading_paused and self._can_read():
            self._reading_paused = False
            self._transport.resume_reading()

    def _can_read(self) -> bool:
        return self._state is not BUSY and not self._write_paused and not self._transport.is_closing()

    def _pause_reading(self) -> None:
        if not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()

    def _unwatch(self) -> None:
        if self._watched:
            self._watched = False
            self._shared.unwatch(self)
