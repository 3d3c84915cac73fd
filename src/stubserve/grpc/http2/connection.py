"""Clients' HTTP/2 connections, read and written on the event loop, and the transport that accepts them.

Why our own: `grpc.aio` serves 2,300 small requests per second where real Triton serves 6,600, because every RPC crosses
between its C core's threads and the event loop several times, and large messages are copied three times. A gRPC server
needs little of HTTP/2: no priorities, no push, no dynamic table of its own. Here `reader` takes bytes apart to frames
and acts on them, `fields` and `heads` read header blocks, `stream` is one RPC, `writer` sends. Pings find out whether a
client is still there (the `--grpc-keepalive-*` flags).

Guarantees:
- arriving bytes are parsed where they lie and copied once: small messages to bytes, large messages to the arena;
- everything that one turn of the event loop makes to be sent leaves in one write;
- windows are honoured both ways, and the server does not read from a client that does not read its socket;
- a breach of the protocol costs what RFC 9113 says: one stream where the others can go on, else the connection, with a
  GOAWAY that gives the reason;
- without asking for inference a client can cause only bounded memory and work: header blocks (`fields`,
  `heads.MAX_BLOCK_BYTES`), open streams (`reader.MAX_STREAMS`), and what `budget` counts. Beyond that the connection
  ends.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from time import perf_counter
from typing import cast

from stubserve.api.inference_server import InferenceServer
from stubserve.connections.listening import BACKLOG, HANDSHAKE_S, listen
from stubserve.connections.paced_transport import PacedProtocol
from stubserve.connections.sent_memory import unsent
from stubserve.errors import ServeError
from stubserve.grpc.http2 import frames
from stubserve.grpc.http2.budget import SHORT_BYTES, ClientBudget
from stubserve.grpc.http2.endpoint import Endpoint
from stubserve.grpc.http2.fields import MAX_LIST_BYTES
from stubserve.grpc.http2.frames import ConnectionFault
from stubserve.grpc.http2.reader import MAX_FRAME_BYTES, MAX_STREAMS, FrameReader
from stubserve.grpc.http2.receive_stream import RECEIVE_WINDOW
from stubserve.grpc.http2.writer import FrameWriter
from stubserve.grpc.service import Service
from stubserve.settings.fronts import GrpcSettings

log = logging.getLogger("stubserve.grpc")

_ANY_STREAM = (1 << 31) - 1


class Http2Connection(asyncio.BufferedProtocol):
    """One connection of a transport."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._loop = asyncio.get_running_loop()
        self._budget = ClientBudget(endpoint.options, endpoint.server.offload, endpoint.scratch_view)
        # Both exist from `connection_made` on
        self._transport: asyncio.Transport
        self._reader: FrameReader
        self._writer: FrameWriter
        # Whether the connection waits for its turn to read on
        self._rests = False
        self.bytes_received = 0
        self._watched = False
        # When the client last sent anything, in the event loop's time; the timer that asks whether it is there
        self._heard = self._loop.time()
        self._keepalive: asyncio.TimerHandle | None = None
        self._age: asyncio.TimerHandle | None = None

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._writer = FrameWriter(self._transport, self._loop)
        self._reader = FrameReader(self._endpoint, self._writer, self._budget)
        if not self._endpoint.open.add(self, transport.get_extra_info("socket").fileno()):
            self._transport.abort()
        options = self._endpoint.options
        self._keepalive = self._loop.call_later(options.keepalive_time / 1000, self._ask)
        if options.max_connection_age is not None:
            self._age = self._loop.call_later(options.max_connection_age / 1000, self._too_old)
        self._writer.write(
            frames.settings(
                {
                    frames.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
                    frames.INITIAL_WINDOW_SIZE: RECEIVE_WINDOW,
                    frames.MAX_FRAME_SIZE: MAX_FRAME_BYTES,
                    frames.MAX_HEADER_LIST_SIZE: MAX_LIST_BYTES,
                }
            )
            + frames.window_update(0, frames.MAX_WINDOW - frames.DEFAULT_WINDOW)
        )
        self._watch_or_not()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._budget.room

    def buffer_updated(self, nbytes: int) -> None:
        began = perf_counter() if nbytes > SHORT_BYTES else 0.0
        self._heard = self._loop.time()
        self.bytes_received += nbytes
        try:
            self._reader.feed(self._endpoint.scratch_view[:nbytes])
        except ConnectionFault as fault:
            self._fail(fault.code, str(fault))
        except Exception:
            log.exception("a gRPC connection failed inside the server")
            self._fail(frames.INTERNAL_ERROR, "")
        if self._reader.unfinished != self._watched:
            self._watch_or_not()
        self._writer.flush()
        if began and self._budget.read_took(perf_counter() - began) and not self._rests:
            self._rests = True
            self._transport.pause_reading()
            self._endpoint.server.offload.in_turn(self._read_on)

    def _read_on(self) -> None:
        self._rests = False
        if not self._transport.is_closing() and not self._writer.paused:
            self._transport.resume_reading()

    def _watch_or_not(self) -> None:
        """Watches a client that has begun something for which all else on the connection waits."""
        self._watched = self._reader.unfinished and not self._reader.closing
        clients = self._endpoint.slow_clients
        (clients.watch_receiver if self._watched else clients.unwatch_receiver)(self)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._writer.abort()
        self._endpoint.slow_clients.unwatch_unread(self)
        self._endpoint.slow_clients.unwatch_receiver(self)
        self._endpoint.open.forget(self)
        for timer in (self._keepalive, self._age):
            if timer is not None:
                timer.cancel()
        for stream in list(self._reader.streams.values()):
            stream.reset_by_client()

    def pause_writing(self) -> None:
        self._writer.paused = True
        self._endpoint.slow_clients.watch_unread(self)
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._endpoint.slow_clients.unwatch_unread(self)
        if not self._transport.is_closing() and not self._rests:
            self._transport.resume_reading()
        self._writer.resume()

    # For the sweep over all clients

    @property
    def unsent(self) -> int:
        return unsent(self._transport)

    def give_up(self, error: ServeError) -> None:
        """The client does not read its answers, and other requests need the memory."""
        log.info("closing a gRPC connection: %s", error.message)
        self._transport.abort()

    def send_timed_out(self) -> None:
        self._transport.abort()

    @property
    def idle(self) -> bool:
        return not self._reader.streams and not self._reader.unfinished

    def close_idle(self) -> None:
        self._go_away()
        self._writer.close()

    def close_after_answer(self) -> None:
        """Takes no new streams; the connection ends with the last open stream."""
        self._go_away()
        if not self._reader.streams:
            self._writer.close()

    def stalled(self) -> None:
        """The client has not sent the whole preface, or has not ended a header block."""
        self._fail(frames.ENHANCE_YOUR_CALM, "the preface or a header block did not arrive completely")

    def ask_to_leave(self) -> None:
        """Begins no end: calls that the client has begun before it hears of this are answered, too (RFC 9113, §6.8)."""
        if not self._reader.closing:
            self._writer.write(frames.goaway(_ANY_STREAM, frames.NO_ERROR))

    # Whether the client is there

    def _ask(self) -> None:
        options = self._endpoint.options
        period = options.keepalive_time / 1000
        silent = self._loop.time() - self._heard
        if silent < period or not (self._reader.streams or options.keepalive_permit_without_calls):
            left = period - silent if silent < period else period
            self._keepalive = self._loop.call_later(left, self._ask)
            return
        self._writer.write(frames.frame(frames.PING, 0, 0, b"stubserv"))
        self._keepalive = self._loop.call_later(options.keepalive_timeout / 1000, self._expect, self._heard)

    def _expect(self, heard: float) -> None:
        if self._heard == heard:
            log.info("closing a gRPC connection whose client does not answer pings")
            self._transport.abort()
        else:
            self._ask()

    # The end

    def _too_old(self) -> None:
        self.close_after_answer()
        grace = self._endpoint.options.max_connection_age_grace
        self._age = None if grace is None else self._loop.call_later(grace / 1000, self._transport.abort)

    def _go_away(self) -> None:
        if not self._reader.closing:
            self._reader.closing = True
            self._writer.write(frames.goaway(self._budget.last_stream, frames.NO_ERROR))

    def _fail(self, code: int, text: str) -> None:
        log.info("closing a gRPC connection: %s", text)
        self._reader.closing = True
        self._writer.write(frames.goaway(self._budget.last_stream, code, text))
        self._writer.close()


class Http2Transport:
    """A listening gRPC server for a service. `port` is the port that it got. Raises OSError."""

    def __init__(self, server: InferenceServer, service: Service, options: GrpcSettings) -> None:
        self._endpoint = Endpoint(server, service.methods, options)
        self._service = service
        self._tls: ssl.SSLContext | None = None
        if options.tls is not None:
            from stubserve.connections.tls import tls_context

            self._tls = tls_context(options.tls, ["h2"])
        self._listener = listen(options.address, options.port, options.reuse_port)
        self.port: int = self._listener.getsockname()[1]
        self._accepting: asyncio.Server | None = None

    async def start(self) -> None:
        self._accepting = await asyncio.get_running_loop().create_server(
            self._make if self._tls is None else lambda: PacedProtocol(self._make()),
            sock=self._listener,
            backlog=BACKLOG,
            ssl=self._tls,
            ssl_handshake_timeout=None if self._tls is None else HANDSHAKE_S,
        )

    def _make(self) -> Http2Connection:
        return Http2Connection(self._endpoint)

    def begin_leaving(self) -> None:
        """Asks the clients that are connected to use other connections; new ones are served as ever."""
        for connection in self._endpoint.open:
            cast(Http2Connection, connection).ask_to_leave()

    async def stop(self, grace_s: float) -> None:
        """Takes no new RPCs; running RPCs end, or are cut off after `grace_s`."""
        if self._accepting is None:
            self._listener.close()
        else:
            self._accepting.close()
        self._service.stop()
        await self._endpoint.open.end(grace_s)
