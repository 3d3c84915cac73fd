"""A client's HTTP/2 connection, read and written on the event loop.

Why there is one: `grpc.aio` serves 2,300 small requests per second where real Triton serves 6,600, as every RPC crosses
between its C core's threads and the event loop several times, and copies large messages three times. A gRPC server
needs little of HTTP/2: no priorities, no push, no dynamic table of its own. What it needs is here: `reader` takes bytes
apart to frames, `heads` knows header blocks, `stream` is one RPC, `sender` what leaves, `pings` keep the connection.

Guarantees:
- what arrives is parsed where it lies and copied once: small messages to bytes, large ones to the arena;
- everything that one turn of the event loop makes to be sent leaves in one write;
- windows are honoured both ways, and a client that does not read its socket is not read from either;
- what a client can make the server hold or do without asking for inference is bounded: header blocks
  (`reader.MAX_BLOCK_BYTES`), open streams (MAX_STREAMS), streams that it opens only to cancel them (MAX_RESETS), pings
  (the `--grpc-http2-*` flags). Beyond that the connection ends with a GOAWAY that says why.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from stubserve.protocols.grpc.http2 import frames
from stubserve.protocols.grpc.http2.frames import ConnectionFault
from stubserve.protocols.grpc.http2.heads import (
    ACCEPTED,
    MAX_HEADER_LIST_BYTES,
    NOT_GRPC,
    OPENING,
    Head,
    HeadDecoder,
    trailers,
)
from stubserve.protocols.grpc.http2.pings import Pings
from stubserve.protocols.grpc.http2.reader import MAX_FRAME_BYTES, Reader
from stubserve.protocols.grpc.http2.sender import Sender
from stubserve.protocols.grpc.http2.stream import RECEIVE_WINDOW, Stream
from stubserve.protocols.grpc.transport import UNIMPLEMENTED, Method

if TYPE_CHECKING:
    from stubserve.protocols.grpc.http2.server import Http2Transport

log = logging.getLogger("stubserve.grpc")

MAX_STREAMS = 1024
MAX_RESETS = 1000


class Connection(asyncio.BufferedProtocol):
    """One connection of a transport."""

    def __init__(self, shared: Http2Transport) -> None:
        # Global state
        self._shared = shared
        self.ingress = shared.ingress
        self.sent_memory = shared.sent_memory
        self.stall_watch = shared.stall_watch
        self.compression_level = shared.compression_level
        self._loop = asyncio.get_running_loop()
        # The two ways; what sends and pings is there when the transport is
        self._transport: asyncio.Transport
        self.sender: Sender
        self._pings: Pings
        self._reader = Reader(self)
        self._heads = HeadDecoder()
        # Streams: those open, and the last that the client opened
        self.streams: dict[int, Stream] = {}
        self.last_id = 0
        self._resets = 0
        # Its end
        self._age: asyncio.TimerHandle | None = None
        self._closing = False

    # What the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._shared.connections.add(self)
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
                    frames.MAX_HEADER_LIST_SIZE: MAX_HEADER_LIST_BYTES,
                }
            )
            + frames.window_update(0, frames.MAX_WINDOW - frames.DEFAULT_WINDOW)
        )

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._shared.scratch_view

    def buffer_updated(self, nbytes: int) -> None:
        self._pings.heard = self._loop.time()
        try:
            self._reader.feed(self._shared.scratch_view[:nbytes])
        except ConnectionFault as fault:
            self._fail(fault.code, str(fault))
        except Exception:
            log.exception("a gRPC connection failed inside the server")
            self._fail(frames.INTERNAL_ERROR, "")
        self.sender.flush()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.sender.lose()
        self._pings.stop()
        self._shared.forget(self)
        if self._age is not None:
            self._age.cancel()
        for stream in list(self.streams.values()):
            stream.reset_by_client()

    def pause_writing(self) -> None:
        self.sender.pause()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()
        self.sender.resume()

    # For the transport

    def go_away(self) -> None:
        """No new streams; the connection ends with the last that is open."""
        if not self._closing:
            self._closing = True
            self.sender.write(frames.goaway(self.last_id, frames.NO_ERROR))
        if not self.streams:
            self.close()

    def close(self) -> None:
        self.sender.close()

    # For streams

    def compression(self, method: Method, head: Head) -> str | None:
        """The encoding of a stream's answers, None for none."""
        wanted = self._shared.response_encoding
        return wanted if wanted is not None and method.infers and wanted in head.accepts else None

    def forget(self, stream: Stream) -> None:
        """Both sides of a stream are closed."""
        if self.streams.pop(stream.id, None) is not None and self._resets:
            self._resets -= 1
        self.sender.waiting.pop(stream, None)
        if self._closing and not self.streams:
            self._loop.call_soon(self.close)

    # For the reader

    def take_block(self, id: int, block: bytes, ends: bool) -> None:
        """A complete header block; with `ends` its stream has nothing else. Raises ConnectionFault."""
        head = self._heads.decode(block)
        stream = self.streams.get(id)
        if stream is not None or id <= self.last_id:
            # Trailers, which gRPC clients do not have, end the stream all the same.
            if stream is not None and ends and not stream.half_closed:
                stream.ended_by_client()
            return
        self.last_id = id
        if self._closing or len(self.streams) >= MAX_STREAMS:
            self.sender.write(frames.rst_stream(id, frames.REFUSED_STREAM))
            return
        if not head.is_grpc:
            self._refuse(id, NOT_GRPC, ends)
            return
        method = self._shared.methods.get(head.path)
        if method is None:
            self._refuse(id, OPENING + ACCEPTED + trailers(UNIMPLEMENTED, ""), ends)
            return
        stream = Stream(self, id, head, method)
        self.streams[id] = stream
        stream.begin()
        if ends and not stream.closed:
            stream.ended_by_client()

    def take_frame(self, kind: int, flags: int, id: int, payload: memoryview) -> None:
        """A complete frame that is neither DATA nor of a header block. Raises ConnectionFault."""
        if kind == frames.WINDOW_UPDATE:
            self._widen(id, _uint32(payload) & 0x7FFF_FFFF)
        elif kind == frames.SETTINGS:
            if id:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "settings of a stream")
            if not flags & frames.ACK:
                self.sender.apply(payload, self.streams.values())
            elif payload:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, "acknowledged settings of a wrong length")
        elif kind == frames.PING:
            self._pings.answer(flags, payload)
        elif kind == frames.RST_STREAM:
            _uint32(payload)
            self._reset(id)
        elif kind == frames.PUSH_PROMISE:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "a client cannot push")
        # GOAWAY: the client opens no more streams. PRIORITY and unknown types mean nothing here.

    def _refuse(self, id: int, block: bytes, ends: bool) -> None:
        self.sender.write(frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, id, block))
        if not ends:
            self.sender.write(frames.rst_stream(id, frames.NO_ERROR))

    def _widen(self, id: int, increment: int) -> None:
        if not increment:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "a window that does not grow")
        if id == 0:
            self.sender.widen(increment)
            return
        stream = self.streams.get(id)
        if stream is not None:
            stream.widened += increment
            if self.sender.stream_window + stream.widened > frames.MAX_WINDOW:
                raise ConnectionFault(frames.FLOW_CONTROL_ERROR, f"the window of stream {id} is too large")
            stream.pump()

    def _reset(self, id: int) -> None:
        stream = self.streams.get(id)
        if stream is not None:
            self._resets += 2
            if self._resets > MAX_RESETS:
                raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "too many cancelled streams")
            stream.reset_by_client()

    # The end

    def _too_old(self) -> None:
        self.go_away()
        grace = self._shared.options.max_connection_age_grace
        self._age = None if grace is None else self._loop.call_later(grace / 1000, self._transport.abort)

    def _fail(self, code: int, text: str) -> None:
        log.info("closing a gRPC connection: %s", text)
        self._closing = True
        self.sender.write(frames.goaway(self.last_id, code, text))
        self.close()


def _uint32(payload: memoryview) -> int:
    if len(payload) != 4:
        raise ConnectionFault(frames.FRAME_SIZE_ERROR, "a frame of a wrong length")
    value: int = frames.UINT32.unpack(payload)[0]
    return value
