"""One HTTP connection: a uvicorn protocol class that knows inference.

`reader` takes apart what arrives, `calls` starts inference and hears of its answers, and here they are sent. A request
for another route is passed, byte for byte, to uvicorn's own protocol on the same transport (`fallback`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.server import ServerState

from stubserve.connections.sent_memory import keep_sending_warm, unsent
from stubserve.errors import ServeError
from stubserve.http.calls import Calls
from stubserve.http.fallback import Fallback
from stubserve.http.head import RequestHead
from stubserve.http.infer_encode import encode_error
from stubserve.http.reader import RequestReader
from stubserve.http.reply import JSON, Reply, reply_head
from stubserve.http.shared import Connections
from stubserve.http.state import BUSY, CLOSED, HEAD, PASS, ConnectionState
from stubserve.memory.blocks import Block
from stubserve.memory.heap_account import FREE_BYTES, HeapShare

log = logging.getLogger("stubserve.http")

# How long a refused client may send nothing before its connection is closed, and how often it may have sent more
_LINGER_S = 1.0
_LINGERS = 30


class HttpConnection(asyncio.BufferedProtocol):
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
        self._server = shared.server
        self._server_state = server_state
        self._make_fallback: Callable[[], Fallback] = functools.partial(
            Fallback, config, server_state, app_state, _loop
        )
        # Per-connection state
        self.transport: asyncio.Transport
        self._reader = RequestReader(self, shared)
        self._calls = Calls(self, shared)
        self._fallback: Fallback | None = None
        self.closing = False
        self.write_paused = False
        self._sends_large = False
        self._lingering: asyncio.TimerHandle | None = None
        self.bytes_received = 0
        # Per-request state
        self.state: ConnectionState = HEAD
        self.head: RequestHead
        self._answered_early = False

    # What the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if not self._shared.open.add(self, transport.get_extra_info("socket").fileno()):
            self._answer_last(503, "too many connections; the server's log says what to do")
            self.transport.close()
            return
        # What the kernel has not taken is not collected: a client has to read one answer before it gets another.
        self.transport.set_write_buffer_limits(high=FREE_BYTES)
        self._server_state.connections.add(self)  # type: ignore[arg-type]  # uvicorn lists its own classes

    def get_buffer(self, sizehint: int) -> memoryview:
        arena_body = self._reader.arena_body
        return self._reader.inbox if arena_body is None else arena_body.rest

    def buffer_updated(self, nbytes: int) -> None:
        self.bytes_received += nbytes
        reader = self._reader
        if reader.arena_body is not None:
            reader.arena_body_has(nbytes)
            return
        data = bytes(self._shared.scratch_view[:nbytes])
        free = self.state is HEAD and not reader.pending and not self.write_paused
        if free and self._calls.begin_known(data):
            return
        reader.feed(data)

    def eof_received(self) -> bool:
        # A client that is gone and one that only closed its side look the same; the first is common, so: gone.
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._server_state.connections.discard(self)
        self._shared.open.forget(self)
        self.state = CLOSED
        self._reader.close()
        if self._lingering is not None:
            self._lingering.cancel()
        if self._fallback is not None:
            self._fallback.connection_lost(exc)
        self._calls.close()

    def pause_writing(self) -> None:
        self.write_paused = True
        self._shared.slow_clients.watch_unread(self)
        if self._fallback is not None:
            self._fallback.pause_writing()

    def resume_writing(self) -> None:
        self.write_paused = False
        if self._fallback is not None:
            self._fallback.resume_writing()
        self._reader.go_on()

    def shutdown(self) -> None:
        """uvicorn is shutting down; whether and when that ends a connection is `OpenConnections.drain`'s to say."""

    # For the lists of connections

    @property
    def idle(self) -> bool:
        return self.state is HEAD or self._lingering is not None

    def close_idle(self) -> None:
        self.closing = True
        self.state = CLOSED
        self.transport.close()

    def close_after_answer(self) -> None:
        self.closing = True

    @property
    def unsent(self) -> int:
        return unsent(self.transport)

    def send_timed_out(self) -> None:
        self.transport.abort()

    def give_up(self, error: ServeError) -> None:
        """Others need the memory of the answer that its client does not read."""
        log.info("closing a connection whose answer was %s", error)
        self.transport.abort()

    def stalled(self) -> None:
        """The client does not send the rest of its request, or too slowly."""
        log.info(
            "closing a connection whose request did not arrive completely: it fell behind --request-min-rate=%d "
            "or took longer than --request-timeout-secs=%d",
            *self._shared.slow_clients.pace,
        )
        self.transport.close()

    # For the reader

    def can_read(self) -> bool:
        return self.state is not BUSY and not self.write_paused and not self.transport.is_closing()

    def pass_on(self, data: bytes, last: bool) -> None:
        """Passes on the bytes of a request that is not inference, or some of them."""
        if self._shared.log_requests and self.state is HEAD:
            self._calls.log_request()
        if self._fallback is None:
            self._fallback = self._make_fallback()
            self._fallback.attach(self.transport, self.done)
        if last:
            # Before the app has it: the answer may come at once, and must find that it is awaited.
            self.state = BUSY
        self._fallback.data_received(data)
        if last and self._answered_early:
            self._answered_early = False
            self.done()

    def infer(self, body: bytes | memoryview, block: Block | None, offset: int, share: HeapShare | None = None) -> None:
        self._calls.infer(body, block, offset, share)

    # Answering

    def reply(self, reply: Reply) -> None:
        keep_alive = self.head.keep_alive and not self.closing
        total = sum(map(len, reply.parts))
        length = None if reply.chunked else total
        headers = reply.headers
        cors = self._shared.cors
        if cors is not None:
            headers = (*headers, *cors.headers(self.head))
        head = reply_head(reply.status, reply.content_type, length, reply.json_length, headers, keep_alive)
        if reply.blocks or total > FREE_BYTES:
            try:
                parts = [self._kept(part, reply) for part in reply.parts]
            except ServeError as error:
                self.reply(encode_error(error))
                return
            self.transport.writelines([head, *parts])
            if not self.write_paused:
                self._shared.slow_clients.watch_unread(self)
        else:
            self.transport.write(b"".join([head, *reply.parts]))
        if self._shared.log_answers:
            self._calls.log_answer(reply.status, total)
        if keep_alive:
            self.done()
        else:
            self.state = CLOSED
            self.transport.close()

    def _kept(self, part: bytes | memoryview, reply: Reply) -> bytes | memoryview:
        """A part of a large reply, held and counted until the client has taken it. Raises ServeError."""
        sent_memory = self._shared.sent_memory
        if not isinstance(part, bytes):
            if not self._sends_large:
                self._sends_large = True
                keep_sending_warm(self.transport)
            return sent_memory.wrap(part, reply.blocks)
        if len(part) <= FREE_BYTES:
            return part
        share = self._server.heap.share()
        share.add(len(part))
        return sent_memory.wrap_text(part, share)

    def answer_and_close(self, status: int, message: str) -> None:
        self._reader.close()
        self._answer_last(status, message)
        if self.transport.can_write_eof():  # not over TLS
            self.transport.write_eof()
        self._linger(-1, _LINGERS)

    def _answer_last(self, status: int, message: str) -> None:
        body = b'{"error":"' + message.encode().replace(b'"', b'\\"') + b'"}'
        self.transport.write(reply_head(status, JSON, len(body), keep_alive=False) + body)
        self.state = CLOSED

    def _linger(self, seen: int, times: int) -> None:
        """Reads on, for nothing: with something unread the kernel would take the answer back as it closes."""
        if self.bytes_received == seen or not times:
            self.transport.close()
        else:
            loop = asyncio.get_running_loop()
            self._lingering = loop.call_later(_LINGER_S, self._linger, self.bytes_received, times - 1)

    def done(self) -> None:
        if self.state is PASS:
            # The app answered without waiting for the body: what is still to come of it is thrown away.
            self._answered_early = True
            self.closing = self.closing or self.head.expects_continue
            if not self.closing:
                return
        if self.closing:
            self.state = CLOSED
            self.transport.close()
            return
        self.state = HEAD
        reader = self._reader
        if (reader.pending or reader.paused) and not self.write_paused:
            # From the event loop, not from here: a long pipeline must not become a deep recursion. And in turn: those
            # who ask without waiting for answers get one in each pass, all together.
            self._server.offload.in_turn(reader.go_on)
