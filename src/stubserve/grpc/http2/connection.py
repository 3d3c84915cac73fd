"""A client's HTTP/2 connection, read and written on the event loop.

Why there is one: `grpc.aio` serves 2,300 small requests per second where real Triton serves 6,600, as every RPC crosses
between its C core's threads and the event loop several times, and copies large messages three times. A gRPC server
needs little of HTTP/2: no priorities, no push, no dynamic table of its own. What it needs is here: `reader` takes bytes
apart to frames, `fields` and `heads` know header blocks, `stream` is one RPC, `sender` what leaves, `pings` keep the
connection.

Guarantees:
- what arrives is parsed where it lies and copied once: small messages to bytes, large ones to the arena;
- everything that one turn of the event loop makes to be sent leaves in one write;
- windows are honoured both ways, and a client that does not read its socket is not read from either;
- what breaks the protocol costs what RFC 9113 says: one stream where the others can go on, else the connection, with a
  GOAWAY that says why;
- what a client can make the server hold or do without asking for inference is bounded: header blocks (`fields`,
  `reader.MAX_BLOCK_BYTES`), open streams (MAX_STREAMS), pings (the `--grpc-http2-*` flags), streams that it opens only
  to end or to break them, and frames that move nothing (`idling`). Beyond that the connection ends.
"""

from __future__ import annotations

import asyncio
import logging
from time import perf_counter
from typing import cast

from stubserve.api.fair_queues import peer_name
from stubserve.connections.sent_memory import unsent
from stubserve.errors import ServeError
from stubserve.grpc.http2 import frames
from stubserve.grpc.http2.fields import MAX_LIST_BYTES
from stubserve.grpc.http2.frames import ConnectionFault, StreamFault
from stubserve.grpc.http2.heads import CALL_TOO_LARGE, NOT_GRPC, TOO_LARGE, UNKNOWN_METHOD, RpcHead
from stubserve.grpc.http2.identifiers import StreamIdentifiers
from stubserve.grpc.http2.idling import Idling
from stubserve.grpc.http2.inbox import RECEIVE_WINDOW
from stubserve.grpc.http2.pings import Pings
from stubserve.grpc.http2.read_share import SHORT_BYTES, ReadShare
from stubserve.grpc.http2.reader import MAX_FRAME_BYTES, FrameReader
from stubserve.grpc.http2.sender import Sender, Sending
from stubserve.grpc.http2.shared import SharedByConnections
from stubserve.grpc.http2.stream import Stream
from stubserve.grpc.transport import Method

log = logging.getLogger("stubserve.grpc")

MAX_STREAMS = 1024


class Http2Connection(asyncio.BufferedProtocol):
    """One connection of a transport."""

    def __init__(self, shared: SharedByConnections) -> None:
        # Global state
        self._shared = shared
        self.server = shared.server
        self.small_room = shared.small_room
        self.sent_memory = shared.sent_memory
        self.slow_clients = shared.slow_clients
        self.compression_level = shared.compression_level
        self._loop = asyncio.get_running_loop()
        # The two ways; what sends and pings is there when the transport is
        self._transport: asyncio.Transport
        self.sender: Sender
        self._pings: Pings
        self._reader = FrameReader(self)
        # What it may read at once, and whether it waits for its turn to read on
        self._read_share = ReadShare(shared.server.offload, shared.scratch_view)
        self._rests = False
        # Streams: those open, and the identifiers of all
        self.streams: dict[int, Stream] = {}
        self.stream = self.streams.get
        self.identifiers = StreamIdentifiers()
        # What the client does that is of no use
        self._idling = Idling()
        self.take_idle_frame = self._idling.take_frame
        self.bytes_received = 0
        self._peer: str | None = None
        self._watched = False
        # Its end
        self._age: asyncio.TimerHandle | None = None
        self._closing = False

    # What the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._shared.add(self, transport.get_extra_info("socket").fileno()):
            self._transport.abort()
        options = self._shared.options
        self.sender = Sender(self._transport, self._loop)
        self._pings = Pings(self._transport, self._loop, self.sender, options, self.streams)
        if options.max_connection_age is not None:
            self._age = self._loop.call_later(options.max_connection_age / 1000, self._too_old)
        self.sender.write(
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
        return self._read_share.room

    def buffer_updated(self, nbytes: int) -> None:
        began = perf_counter() if nbytes > SHORT_BYTES else 0.0
        self._pings.heard = self._loop.time()
        self.bytes_received += nbytes
        try:
            self._reader.feed(self._shared.scratch_view[:nbytes])
        except ConnectionFault as fault:
            self._fail(fault.code, str(fault))
        except Exception:
            log.exception("a gRPC connection failed inside the server")
            self._fail(frames.INTERNAL_ERROR, "")
        if self._reader.unfinished != self._watched:
            self._watch_or_not()
        self.sender.flush()
        if began and self._read_share.took(perf_counter() - began) and not self._rests:
            self._rests = True
            self._transport.pause_reading()
            self.server.offload.in_turn(self._read_on)

    def _read_on(self) -> None:
        self._rests = False
        if not self._transport.is_closing() and not self.sender.paused:
            self._transport.resume_reading()

    def _watch_or_not(self) -> None:
        """The client has to go on where it has begun what keeps all else waiting."""
        self._watched = self._reader.unfinished and not self._closing
        clients = self.slow_clients
        (clients.watch_arriving if self._watched else clients.unwatch_arriving)(self)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.sender.lose()
        self.slow_clients.unwatch_unread(self)
        self.slow_clients.unwatch_arriving(self)
        self._pings.stop()
        self._shared.forget(self)
        if self._age is not None:
            self._age.cancel()
        for stream in list(self.streams.values()):
            stream.reset_by_client()

    def pause_writing(self) -> None:
        self.sender.pause()
        self.slow_clients.watch_unread(self)
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self.slow_clients.unwatch_unread(self)
        if not self._transport.is_closing() and not self._rests:
            self._transport.resume_reading()
        self.sender.resume()

    @property
    def unsent(self) -> int:
        return unsent(self._transport)

    def give_up(self, error: ServeError) -> None:
        """The client does not read what was sent to it, and others need the memory."""
        log.info("closing a gRPC connection: %s", error.message)
        self._transport.abort()

    def send_timed_out(self) -> None:
        self._transport.abort()

    # For the transport

    def go_away(self) -> None:
        """No new streams; the connection ends with the last that is open."""
        if not self._closing:
            self._closing = True
            self.sender.write(frames.goaway(self.identifiers.last, frames.NO_ERROR))
        if not self.streams:
            self.close()

    def close(self) -> None:
        self.sender.close()

    @property
    def idle(self) -> bool:
        return not self.streams and not self._reader.unfinished

    def close_idle(self) -> None:
        self.go_away()

    def close_after_answer(self) -> None:
        self.go_away()

    def stalled(self) -> None:
        """The client has not said that it speaks HTTP/2, or has not ended a header block."""
        self._fail(frames.ENHANCE_YOUR_CALM, "the preface or a header block did not arrive completely")

    # For streams

    @property
    def peer(self) -> str:
        if self._peer is None:
            self._peer = peer_name(self._transport.get_extra_info("peername"))
        return self._peer

    def compression(self, method: Method, head: RpcHead) -> str | None:
        """The encoding of a stream's answers, None for none."""
        wanted = self._shared.response_encoding
        return wanted if wanted is not None and method.infers and wanted in head.accepts else None

    def forget(self, stream: Sending) -> None:
        """Both sides of a stream are closed."""
        if self.streams.pop(stream.id, None) is not None and self._idling.resets:
            self._idling.resets -= 1
        self.sender.waiting.pop(stream, None)
        if self._closing and not self.streams:
            self._loop.call_soon(self.close)

    # For the reader

    def take_head(self, id: int, head: RpcHead, ends: bool) -> None:
        stream = self.streams.get(id)
        if stream is not None:
            # Trailers, which gRPC clients do not have, end the stream all the same.
            if stream.half_closed:
                raise StreamFault(id, frames.STREAM_CLOSED, "headers on a stream that is closed")
            if not ends or head.trailer_fault:
                fault = head.trailer_fault or "trailers that do not end the stream"
                raise StreamFault(id, frames.PROTOCOL_ERROR, fault)
            stream.ended_by_client()
            return
        if not self.identifiers.open(id):
            self.take_idle_frame()
            return
        if self._idling.frames > 0:
            self._idling.excuse_frames()
        if self._closing or len(self.streams) >= MAX_STREAMS:
            self.sender.write(frames.rst_stream(id, frames.REFUSED_STREAM))
        elif head.too_large:
            self._refuse(id, CALL_TOO_LARGE if head.is_grpc else TOO_LARGE, ends)
        elif head.fault:
            raise StreamFault(id, frames.PROTOCOL_ERROR, head.fault)
        elif not head.is_grpc:
            self._refuse(id, NOT_GRPC, ends)
        else:
            self._begin(id, head, ends)

    def take_frame(self, kind: int, flags: int, id: int, payload: memoryview) -> None:
        if kind == frames.WINDOW_UPDATE:
            self._widen(id, frames.uint32(payload) & 0x7FFF_FFFF)
        elif kind == frames.SETTINGS:
            self.take_idle_frame()
            if id:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "settings of a stream")
            if not flags & frames.ACK:
                self.sender.apply(payload, self.streams.values())
            elif payload:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, "acknowledged settings of a wrong length")
        elif kind == frames.PING:
            if id:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "a ping of a stream")
            self._pings.answer(flags, payload)
        elif kind == frames.RST_STREAM:
            frames.uint32(payload)
            self.identifiers.refuse_idle(id, "the end")
            self._reset(id)
        elif kind == frames.PRIORITY:
            self.take_idle_frame()
            if not id:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "a priority of no stream")
            if len(payload) != 5 and id in self.streams:
                raise StreamFault(id, frames.FRAME_SIZE_ERROR, "a priority of a wrong length")
        else:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "a client cannot push")

    def fail_stream(self, fault: StreamFault) -> None:
        # It costs its client as much as a reset of its own: otherwise it could have the server reset its streams.
        log.debug("a gRPC stream breaks the protocol: %s", fault)
        self._idling.take_reset()
        self.sender.write(frames.rst_stream(fault.stream, fault.code))
        stream = self.streams.get(fault.stream)
        if stream is not None:
            stream.reset_by_client()

    def grant(self, nbytes: int) -> None:
        self.sender.write(frames.window_update(0, nbytes))

    def _begin(self, id: int, head: RpcHead, ends: bool) -> None:
        method = self._shared.methods.get(head.path)
        if method is None:
            self._refuse(id, UNKNOWN_METHOD, ends)
            return
        stream = Stream(self, id, head, method)
        self.streams[id] = stream
        stream.begin()
        if ends and not stream.closed:
            stream.ended_by_client()

    def _refuse(self, id: int, block: bytes, ends: bool) -> None:
        self.sender.send_head(id, block, ends=True)
        if not ends:
            self.sender.write(frames.rst_stream(id, frames.NO_ERROR))

    def _widen(self, id: int, increment: int) -> None:
        stream = self.streams.get(id)
        if id:
            self.identifiers.refuse_idle(id, "a window")
            if not increment:
                raise StreamFault(id, frames.PROTOCOL_ERROR, "a window that does not grow")
            if stream is not None:
                stream.widened += increment
                if self.sender.stream_window + stream.widened > frames.MAX_WINDOW:
                    raise StreamFault(id, frames.FLOW_CONTROL_ERROR, "the window is too large")
                stream.pump()
        elif increment:
            self.sender.widen(increment)
        else:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "a window that does not grow")
        self._idling.take_update(self.sender.data_bytes)

    def _reset(self, id: int) -> None:
        stream = self.streams.get(id)
        if stream is None:
            self.take_idle_frame()
        else:
            self._idling.take_reset()
            stream.reset_by_client()

    # The end

    def _too_old(self) -> None:
        self.go_away()
        grace = self._shared.options.max_connection_age_grace
        self._age = None if grace is None else self._loop.call_later(grace / 1000, self._transport.abort)

    def _fail(self, code: int, text: str) -> None:
        log.info("closing a gRPC connection: %s", text)
        self._closing = True
        self.sender.write(frames.goaway(self.identifiers.last, code, text))
        self.close()
