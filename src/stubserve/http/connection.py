"""One HTTP connection: a uvicorn protocol class that serves inference.

`reader` takes apart the bytes that arrive. The connection starts an inference call and writes the answer, or passes the
bytes of another route to uvicorn's own protocol on the same transport (`fallback`).
"""

# Compiled by mypyc.
from __future__ import annotations

import asyncio
import enum
import functools
import logging
import time
from collections.abc import Callable
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.server import ServerState

from stubserve.api.access import AUTHORIZATION
from stubserve.api.fair_queues import peer_name
from stubserve.connections.sent_memory import keep_sending_warm, unsent
from stubserve.errors import ServeError, internal
from stubserve.http.body import MAX_BODY_BYTES, refusal
from stubserve.http.endpoint import HttpEndpoint
from stubserve.http.fallback import Fallback
from stubserve.http.generate import GenerateCall
from stubserve.http.infer import HttpInferCall
from stubserve.http.infer_encode import encode_error
from stubserve.http.message import JSON, BadRequest, Reply, RequestHead, reply_head
from stubserve.http.reader import RequestReader
from stubserve.memory.heap_account import FREE_BYTES

log = logging.getLogger("stubserve.http")


class ConnectionState(enum.Enum):
    """Where a connection is in a request."""

    HEAD = "collecting a head"
    BODY = "collecting a body, or throwing it away because its answer is already known"
    PASS = "passing a body on to the fallback"
    BUSY = "the request is complete and is being answered"
    CLOSED = "closed, or about to be"


# Bound once: in Python 3.10 and 3.11 looking up a member of an enum costs as much as a function call.
HEAD, BODY, PASS, BUSY, CLOSED = ConnectionState


class HttpConnection(asyncio.BufferedProtocol):
    """A client's connection."""

    def __init__(
        self,
        endpoint: HttpEndpoint,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._server_state = server_state
        self._make_fallback = functools.partial(Fallback, config, server_state, app_state, _loop)
        # Per-connection state
        self._transport: asyncio.Transport
        self._reader: RequestReader
        self._fallback: Fallback | None = None
        self._closing = False
        self._write_paused = False
        self._sends_large = False
        # Per-request state
        self._state: ConnectionState = HEAD
        self._call: HttpInferCall | GenerateCall | None = None
        self._answered_early = False
        # For the access log: when the request was complete, and the size of its body
        self._began_ns = 0
        self._body_bytes = 0

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._peer: Callable[[], str] = lambda: peer_name(transport.get_extra_info("peername"))
        self._reader = self._endpoint.reader(self._transport)
        if not self._endpoint.open.add(self, transport.get_extra_info("socket").fileno()):
            self._answer_last(503, "too many connections; the server's log says what to do")
            self._transport.close()
            return
        # Nothing is collected behind the kernel's buffer: a client has to read one answer before it gets another.
        self._transport.set_write_buffer_limits(high=FREE_BYTES)
        self._server_state.connections.add(self)  # type: ignore[arg-type]  # uvicorn lists its own classes

    def get_buffer(self, sizehint: int) -> memoryview:
        arena_body = self._reader.arena_body
        return self._reader.inbox if arena_body is None else arena_body.rest

    def buffer_updated(self, nbytes: int) -> None:
        self._reader.received(nbytes)
        self._read_on()

    def eof_received(self) -> bool:
        # A client that has gone and a client that only closed its side look the same. The first is common, so: gone.
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._server_state.connections.discard(self)
        self._endpoint.open.forget(self)
        self._state = CLOSED
        self._reader.close()
        if self._reader.lingering is not None:
            self._reader.lingering.cancel()
        if self._fallback is not None:
            self._fallback.connection_lost(exc)
        call, self._call = self._call, None
        if call is not None:
            if call.request is not None:
                log.debug("cancelling a request to model '%s': its client has closed the connection", call.model.name)
            call.cancel()

    def pause_writing(self) -> None:
        self._write_paused = True
        self._endpoint.slow_clients.watch_unread(self)
        if self._fallback is not None:
            self._fallback.pause_writing()

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._fallback is not None:
            self._fallback.resume_writing()
        self._read_on()

    def shutdown(self) -> None:
        """uvicorn is shutting down. `OpenConnections.drain` decides whether and when that ends a connection."""

    # For the lists of connections

    @property
    def idle(self) -> bool:
        return self._state is HEAD or self._reader.lingering is not None

    @property
    def bytes_received(self) -> int:
        return self._reader.bytes_received

    def close_idle(self) -> None:
        self._closing = True
        self._state = CLOSED
        self._transport.close()

    def close_after_answer(self) -> None:
        self._closing = True

    @property
    def unsent(self) -> int:
        return unsent(self._transport)

    def send_timed_out(self) -> None:
        self._transport.abort()

    def give_up(self, error: ServeError) -> None:
        """Other requests need the memory of the answer that this client does not read."""
        log.info("closing a connection whose answer was %s", error)
        self._transport.abort()

    # Requests

    def _read_on(self) -> None:
        """Takes requests out of the data, up to a request that must be answered before the next."""
        reader = self._reader
        try:
            while True:
                state = self._state
                if state is HEAD:
                    if self._write_paused or not reader.take_head():
                        break
                    self._begin(reader.head)
                elif state is BODY:
                    if not reader.take_body(True):
                        break
                    self._on_body()
                elif state is PASS:
                    last = reader.take_body(False)
                    if reader.raw:
                        self._pass_on(reader.raw, last)
                    if not last:
                        break
                else:
                    break
        except BadRequest as error:
            self._answer_and_close(error.status, str(error))
        if self._state is CLOSED:
            reader.close()
        else:
            reader.pause_or_resume(self._state is BUSY or self._write_paused)

    def _begin(self, head: RequestHead) -> None:
        """A head has come: decides what happens to its body."""
        reader = self._reader
        if self._endpoint.log_answers:
            self._began_ns, self._body_bytes = time.monotonic_ns(), head.content_length
        access = self._endpoint.access
        refused = None if access is None else access.inference_refusal(head)
        # A complete call of `generate` needs nothing of its route, so it is answered here.
        can_generate = head.generate is not None and reader.has_whole_body and refused is None
        if head.infer is None and (not can_generate or head.content_length > self._endpoint.server.max_input_size):
            if self._endpoint.log_requests:
                self._endpoint.log_request(head)
            self._state = PASS
            return
        self._state = BODY
        if not reader.has_whole_body:
            refused = refused or refusal(head, self._endpoint.server)
            if refused is None:
                if head.expects_continue:
                    self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                reader.collect()
                return
            if head.expects_continue or head.content_length > MAX_BODY_BYTES:
                # After this answer the client may omit the body, or never end sending it: close the connection.
                self._closing = True
                self._state = BUSY
                self._reply(encode_error(refused))
                return
        reader.refusal = None if refused is None else encode_error(refused)

    def _on_body(self) -> None:
        """The request is complete: starts its call, or answers why there is none."""
        self._state = BUSY
        reader = self._reader
        if reader.refusal is not None:
            self._reply(reader.refusal)
            return
        head = reader.head
        route = head.infer or head.generate or ("", "")
        body, block, offset, share = reader.body()
        server = self._endpoint.server
        if self._endpoint.log_requests:
            self._endpoint.log_request(head)
        if self._endpoint.log_answers:
            self._began_ns, self._body_bytes = time.monotonic_ns(), len(body)
        try:
            model = server.find_model(*route)
            fair = server.fair_queues
            client = None if fair is None else fair.client_of(self._peer(), lambda: head.values(AUTHORIZATION))
            if head.infer is not None:
                infer = self._call = HttpInferCall(model, head, server, self._reply)
                infer.client, infer.peer = client, self._peer
                infer.start(body, block, offset, share)
            else:
                generate = self._call = GenerateCall(model, head, server, False, lambda call: self._reply(call.reply()))
                generate.client, generate.peer = client, self._peer
                generate.start(bytes(body))
        except ServeError as error:
            if self._call is None and share is not None:
                share.drop()
            self._reply(encode_error(error))
        except Exception:
            log.exception("a request to model '%s' failed inside the server", route[0])
            self._reply(encode_error(internal("unexpected error while the request was handled; see the server's log")))
        finally:
            if block is not None:
                block.drop()

    def _pass_on(self, data: bytes, last: bool) -> None:
        """Passes bytes of a request for another route to the app; `last` with the end of the request."""
        if self._fallback is None:
            self._fallback = self._make_fallback()
            self._fallback.attach(self._transport, self._done)
        if last:
            # Set first: the app may answer at once, and the connection must be waiting for that answer.
            self._state = BUSY
        self._fallback.data_received(data)
        if self._closing:
            self._fallback.close_after_answer()
        if last and self._answered_early:
            self._answered_early = False
            self._done()

    # Answers

    def _reply(self, reply: Reply) -> None:
        """Answers the current request, unless its client has gone."""
        if self._state is not BUSY:
            return
        endpoint = self._endpoint
        head = self._reader.head
        parts = reply.parts
        total = sum(map(len, parts))
        if is_large := total > FREE_BYTES or bool(reply.blocks):
            if reply.blocks and not self._sends_large:
                self._sends_large = True
                keep_sending_warm(self._transport)
            try:
                parts = [endpoint.kept(part, reply.blocks) for part in parts]
            except ServeError as error:
                self._reply(encode_error(error))
                return
        keep_alive = head.keep_alive and not self._closing
        headers = reply.headers if endpoint.cors is None else (*reply.headers, *endpoint.cors.headers(head))
        length = None if reply.chunked else total
        start = reply_head(reply.status, reply.content_type, length, reply.json_length, headers, keep_alive)
        if is_large:
            self._transport.writelines([start, *parts])
            if not self._write_paused:
                endpoint.slow_clients.watch_unread(self)
        else:
            self._transport.write(b"".join([start, *parts]))
        call, self._call = self._call, None
        if endpoint.log_answers:
            id = call.id if call is not None else ""
            sent = total - len(parts[0]) - len(parts[-1]) if reply.chunked else total  # without the chunks' framing
            endpoint.log_answer(self._peer(), head, id, reply.status, self._began_ns, self._body_bytes, sent)
        if keep_alive:
            self._done()
        else:
            self._state = CLOSED
            self._transport.close()

    def _done(self) -> None:
        """The current request is answered; takes the next."""
        if self._state is PASS:
            # The app answered without waiting for the body: the rest of the body is thrown away.
            self._answered_early = True
            self._closing = self._closing or self._reader.head.expects_continue
            if not self._closing:
                return
        if self._closing:
            self._state = CLOSED
            self._transport.close()
            return
        self._state = HEAD
        if self._reader.paused and not self._write_paused:
            # The event loop calls this, so that a long pipeline is no deep recursion. All clients that send requests
            # without waiting for answers share one turn: together they get one answer in each pass of the loop.
            self._endpoint.server.offload.in_turn(self._read_on)

    def _answer_and_close(self, status: int, message: str) -> None:
        """Answers bytes after which no further request can be read."""
        self._reader.close()
        self._answer_last(status, message)
        if self._transport.can_write_eof():  # not over TLS
            self._transport.write_eof()
        self._reader.linger()

    def _answer_last(self, status: int, message: str) -> None:
        body = b'{"error":"' + message.encode().replace(b'"', b'\\"') + b'"}'
        self._transport.write(reply_head(status, JSON, len(body), keep_alive=False) + body)
        self._state = CLOSED
