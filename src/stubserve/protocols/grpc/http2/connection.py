"""A client's HTTP/2 connection, read and written on the event loop.

Why there is one: `grpc.aio` serves 2,300 small requests per second where real Triton serves 6,600, as every RPC crosses
between its C core's threads and the event loop several times, and copies large messages three times. A gRPC server
needs little of HTTP/2: no priorities, no push, no dynamic table of its own. What it needs is here: frames, both flow
controls, pings, GOAWAY; `heads` knows header blocks, `stream` one RPC.

Guarantees:
- what arrives is parsed where it lies and copied once: small messages to bytes, large ones to the arena;
- everything that one turn of the event loop makes to be sent leaves in one write;
- windows are honoured both ways, and a client that does not read its socket is not read from either;
- what a client can make the server hold or do without asking for inference is bounded: header blocks
  (MAX_BLOCK_BYTES), open streams (MAX_STREAMS), streams that it opens only to cancel them (MAX_RESETS), pings
  (the `--grpc-http2-*` flags). Beyond that the connection ends with a GOAWAY that says why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
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
from stubserve.protocols.grpc.http2.stream import RECEIVE_WINDOW, Stream
from stubserve.protocols.grpc.transport import OK, UNIMPLEMENTED, Method

if TYPE_CHECKING:
    from stubserve.protocols.grpc.http2.server import Http2Transport

log = logging.getLogger("stubserve.grpc")

SCRATCH_BYTES = 256 * 1024
MAX_FRAME_BYTES = 1 << 20
# Longer answers are not put together with their frames' heads, but sent from where they lie.
MAX_WHOLE_BYTES = 64 * 1024
MAX_BLOCK_BYTES = 64 * 1024
MAX_STREAMS = 1024
MAX_RESETS = 1000

_PING_INTERVAL_WITHOUT_CALLS_S = 7200.0
_END = frames.END_HEADERS | frames.END_STREAM
# What every plain unary answer is made of, around its message.
_OPENING = OPENING
_CLOSING = trailers(OK, "")


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
        self._transport: asyncio.Transport
        # Reading: bytes of a frame that is not complete; the DATA frame whose payload is arriving
        self._pending = b""
        self._greeted = False
        self._data_left = 0
        self._data_stream: Stream | None = None
        self._data_pad = 0
        self._data_ends = False
        self._heads = HeadDecoder()
        self._block: bytearray | None = None
        self._block_cost = 0
        self._block_stream = 0
        self._block_ends = False
        self._received = 0
        # Writing
        self._out: list[bytes | memoryview] = []
        self._flush_is_due = False
        self._write_paused = False
        self._send_window = frames.DEFAULT_WINDOW
        self._peer_window = frames.DEFAULT_WINDOW
        self._peer_frame = frames.DEFAULT_FRAME_SIZE
        # Streams: those open, and those of them that wait for a window
        self._streams: dict[int, Stream] = {}
        self.waiting: set[Stream] = set()
        self._last_id = 0
        self._resets = 0
        # Pings and age
        self._last_ping = 0.0
        self._strikes = 0
        self._heard = 0.0
        self._keepalive: asyncio.TimerHandle | None = None
        self._age: asyncio.TimerHandle | None = None
        self._closing = False
        self._lost = False

    # What the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._shared.connections.add(self)
        self._heard = self._loop.time()
        options = self._shared.options
        self._keepalive = self._loop.call_later(options.keepalive_time / 1000, self._keep_alive)
        if options.max_connection_age is not None:
            self._age = self._loop.call_later(options.max_connection_age / 1000, self._too_old)
        self.write(
            frames.settings(
                {
                    frames.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
                    frames.INITIAL_WINDOW_SIZE: RECEIVE_WINDOW,
                    frames.MAX_FRAME_SIZE: MAX_FRAME_BYTES,
                    frames.MAX_HEADER_LIST_SIZE: MAX_HEADER_LIST_BYTES,
                }
            )
            # The connection's own window never stops anybody: the streams' do.
            + frames.window_update(0, frames.MAX_WINDOW - frames.DEFAULT_WINDOW)
        )

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._shared.scratch_view

    def buffer_updated(self, nbytes: int) -> None:
        data = self._shared.scratch_view[:nbytes]
        if self._pending:
            data = memoryview(self._pending + bytes(data))
            self._pending = b""
        try:
            at = self._process(data)
            if at < len(data):
                self._pending = bytes(data[at:])
        except ConnectionFault as fault:
            self._fail(fault.code, str(fault))
        except Exception:
            log.exception("a gRPC connection failed inside the server")
            self._fail(frames.INTERNAL_ERROR, "")
        self._flush()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._shared.forget(self)
        for timer in (self._keepalive, self._age):
            if timer is not None:
                timer.cancel()
        for stream in list(self._streams.values()):
            stream.reset_by_client()
        self._out.clear()

    def pause_writing(self) -> None:
        self._write_paused = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        if not self._transport.is_closing():
            self._transport.resume_reading()
        self._pump()

    # For the transport

    @property
    def idle(self) -> bool:
        return not self._streams

    def go_away(self) -> None:
        """No new streams; the connection ends with the last that is open."""
        if not self._closing:
            self._closing = True
            self.write(frames.goaway(self._last_id, frames.NO_ERROR))
        if not self._streams:
            self.close()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    # For streams

    def compression(self, method: Method, head: Head) -> str | None:
        """The encoding of a stream's answers, None for none."""
        wanted = self._shared.response_encoding
        return wanted if wanted is not None and method.infers and wanted in head.accepts else None

    def room(self) -> int:
        """How many bytes the next DATA frame may have, as far as the connection decides it."""
        return 0 if self._write_paused else min(self._send_window, self._peer_frame)

    def send_data(self, stream: int, length: int, pieces: Sequence[bytes | memoryview]) -> None:
        self._send_window -= length
        self._last_ping, self._strikes = 0.0, 0
        self.write(frames.data_head(length, stream), *pieces)

    def send_whole(self, stream: Stream, size: int, parts: Sequence[bytes | memoryview]) -> bool:
        """Sends a unary RPC's whole answer, if nothing stands against sending it in one frame."""
        length = size + 5
        limit = min(self._peer_frame, MAX_WHOLE_BYTES, self._send_window, stream.send_window)
        if length > limit or self._write_paused:
            return False
        self._send_window -= length
        self._last_ping, self._strikes = 0.0, 0
        id = stream.id
        opening = frames.HEAD.pack(len(_OPENING) << 8 | frames.HEADERS, frames.END_HEADERS, id)
        data = frames.HEAD.pack(length << 8, 0, id)
        closing = frames.HEAD.pack(len(_CLOSING) << 8 | frames.HEADERS, _END, id)
        self.write(
            b"%b%b%b\0%b%b%b%b" % (opening, _OPENING, data, size.to_bytes(4, "big"), b"".join(parts), closing, _CLOSING)
        )
        return True

    def write(self, *pieces: bytes | memoryview) -> None:
        """Puts bytes into what leaves at the end of this turn of the event loop."""
        self._out += pieces
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def forget(self, stream: Stream) -> None:
        """Both sides of a stream are closed."""
        if self._streams.pop(stream.id, None) is not None and self._resets:
            self._resets -= 1
        self.waiting.discard(stream)
        if self._data_stream is stream:
            self._data_stream = None
        if self._closing and not self._streams:
            self._loop.call_soon(self.close)

    def _flush(self) -> None:
        self._flush_is_due = False
        out, self._out = self._out, []
        if not out or self._lost:
            return
        if len(out) == 1:
            self._transport.write(out[0])
        elif sum(map(len, out)) <= SCRATCH_BYTES:
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(out)

    def _pump(self) -> None:
        waiting, self.waiting = self.waiting, set()
        for stream in waiting:
            stream.pump()

    # Reading

    def _process(self, data: memoryview) -> int:
        """Takes all complete frames, and what is there of a DATA frame; returns the position behind."""
        at, end = 0, len(data)
        self._heard = self._loop.time()
        if not self._greeted:
            size = len(frames.PREFACE)
            if bytes(data[:size]) != frames.PREFACE[: min(size, end)]:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "this is the port of gRPC, which is HTTP/2")
            if end < size:
                return 0
            self._greeted = True
            at = size
        while at < end:
            if self._data_left:
                at = self._take_data(data, at, end)
                continue
            if end - at < frames.HEAD_BYTES:
                break
            word, flags, id = frames.HEAD.unpack_from(data, at)
            length, kind = word >> 8, word & 0xFF
            id &= 0x7FFF_FFFF
            if length > MAX_FRAME_BYTES or (kind != frames.DATA and length > frames.DEFAULT_FRAME_SIZE * 4):
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            if self._block is not None and kind != frames.CONTINUATION:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "a header block was not continued")
            payload = at + frames.HEAD_BYTES
            if kind == frames.DATA:
                if flags & frames.PADDED and payload >= end:
                    break
                at = self._begin_data(data, payload, length, flags, id)
                continue
            if payload + length > end:
                break
            at = payload + length
            self._take_frame(kind, flags, id, data[payload:at])
        return at

    def _begin_data(self, data: memoryview, at: int, length: int, flags: int, id: int) -> int:
        pad = 0
        if flags & frames.PADDED:
            pad = data[at] + 1
            at += 1
            if pad > length:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "more padding than frame")
        stream = self._streams.get(id)
        if stream is None and (id == 0 or id > self._last_id):
            raise ConnectionFault(frames.PROTOCOL_ERROR, f"data on stream {id}, which is not open")
        self._received += length
        if self._received >= 1 << 28:
            self.write(frames.window_update(0, self._received))
            self._received = 0
        if stream is not None:
            stream.receive_window -= length
            if stream.receive_window < 0:
                raise ConnectionFault(frames.FLOW_CONTROL_ERROR, f"stream {id} was sent more than its window")
            if stream.half_closed:
                raise ConnectionFault(frames.STREAM_CLOSED, f"data on stream {id}, which its client has closed")
        self._data_stream = stream
        self._data_pad = max(pad - 1, 0)
        self._data_left = length - (1 if pad else 0)
        self._data_ends = bool(flags & frames.END_STREAM)
        if not self._data_left:
            self._end_data(id)
        return at

    def _take_data(self, data: memoryview, at: int, end: int) -> int:
        take = min(self._data_left, end - at)
        content = min(take, max(self._data_left - self._data_pad, 0))
        self._data_left -= take
        stream = self._data_stream
        if stream is not None:
            id = stream.id
            if self._data_ends and not self._data_left:
                # Known before its last message is taken: the answer to that may then close the stream.
                stream.half_closed = True
            if content:
                stream.data_received(data[at : at + content])
            if not self._data_left:
                self._end_data(id)
        return at + take

    def _end_data(self, id: int) -> None:
        stream, self._data_stream = self._data_stream, None
        if self._data_ends and stream is not None and not stream.closed:
            stream.ended_by_client()

    def _take_frame(self, kind: int, flags: int, id: int, payload: memoryview) -> None:
        if kind == frames.HEADERS:
            if id % 2 == 0:
                raise ConnectionFault(frames.PROTOCOL_ERROR, f"a client cannot open stream {id}")
            self._begin_block(id, flags, frames.unpadded(payload, flags))
        elif kind == frames.CONTINUATION:
            if self._block is None or id != self._block_stream:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "a continuation of nothing")
            self._continue_block(flags, payload)
        elif kind == frames.WINDOW_UPDATE:
            self._widen(id, _uint32(payload) & 0x7FFF_FFFF)
        elif kind == frames.SETTINGS:
            self._apply(flags, payload)
        elif kind == frames.PING:
            self._answer_ping(flags, payload)
        elif kind == frames.RST_STREAM:
            _uint32(payload)
            self._reset(id)
        elif kind == frames.PUSH_PROMISE:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "a client cannot push")
        # GOAWAY: the client opens no more streams. PRIORITY and unknown types mean nothing here.

    # Header blocks

    def _begin_block(self, id: int, flags: int, block: memoryview) -> None:
        self._block_stream = id
        self._block_ends = bool(flags & frames.END_STREAM)
        if flags & frames.END_HEADERS:
            self._take_block(bytes(block))
        else:
            self._block = bytearray(block)
            self._block_cost = len(block)

    def _continue_block(self, flags: int, more: memoryview) -> None:
        assert self._block is not None
        self._block += more
        # An empty one costs its sender nothing: each counts as a frame's head.
        self._block_cost += len(more) + frames.HEAD_BYTES
        if self._block_cost > MAX_BLOCK_BYTES:
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "a header block without end")
        if flags & frames.END_HEADERS:
            block, self._block = bytes(self._block), None
            self._take_block(block)

    def _take_block(self, block: bytes) -> None:
        id = self._block_stream
        head = self._heads.decode(block)
        stream = self._streams.get(id)
        if stream is not None or id <= self._last_id:
            # Trailers, which gRPC clients do not have, end the stream all the same.
            if stream is not None and self._block_ends and not stream.half_closed:
                stream.ended_by_client()
            return
        self._last_id = id
        if self._closing or len(self._streams) >= MAX_STREAMS:
            self.write(frames.rst_stream(id, frames.REFUSED_STREAM))
            return
        if not head.is_grpc:
            self._refuse(id, NOT_GRPC)
            return
        method = self._shared.methods.get(head.path)
        if method is None:
            self._refuse(id, OPENING + ACCEPTED + trailers(UNIMPLEMENTED, ""))
            return
        stream = Stream(self, id, head, method, self._peer_window)
        self._streams[id] = stream
        stream.begin()
        if self._block_ends and not stream.closed:
            stream.ended_by_client()

    def _refuse(self, id: int, block: bytes) -> None:
        self.write(frames.frame(frames.HEADERS, _END, id, block))
        if not self._block_ends:
            self.write(frames.rst_stream(id, frames.NO_ERROR))

    # The other frames

    def _widen(self, id: int, increment: int) -> None:
        if not increment:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "a window that does not grow")
        if id == 0:
            self._send_window += increment
            if self._send_window > frames.MAX_WINDOW:
                raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "the connection's window is too large")
            self._pump()
            return
        stream = self._streams.get(id)
        if stream is not None:
            stream.send_window += increment
            if stream.send_window > frames.MAX_WINDOW:
                raise ConnectionFault(frames.FLOW_CONTROL_ERROR, f"the window of stream {id} is too large")
            if stream in self.waiting:
                self.waiting.discard(stream)
                stream.pump()

    def _apply(self, flags: int, payload: memoryview) -> None:
        if flags & frames.ACK:
            return
        if len(payload) % frames.SETTING.size:
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, "settings of a wrong length")
        for setting, value in frames.SETTING.iter_unpack(payload):
            if setting == frames.INITIAL_WINDOW_SIZE:
                if value > frames.MAX_WINDOW:
                    raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "too large an initial window")
                for stream in self._streams.values():
                    stream.send_window += value - self._peer_window
                self._peer_window = value
            elif setting == frames.MAX_FRAME_SIZE:
                if not frames.DEFAULT_FRAME_SIZE <= value < 1 << 24:
                    raise ConnectionFault(frames.PROTOCOL_ERROR, f"a maximum frame size of {value}")
                self._peer_frame = value
        self.write(frames.frame(frames.SETTINGS, frames.ACK, 0))
        self._pump()

    def _answer_ping(self, flags: int, payload: memoryview) -> None:
        if len(payload) != 8:
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, "a ping of a wrong length")
        if flags & frames.ACK:
            return
        options = self._shared.options
        now = self._loop.time()
        interval = (
            options.min_recv_ping_interval_without_data / 1000
            if self._streams or options.keepalive_permit_without_calls
            else _PING_INTERVAL_WITHOUT_CALLS_S
        )
        # Whatever was sent since excuses a ping.
        if self._last_ping and now - self._last_ping < interval:
            self._strikes += 1
            if options.max_ping_strikes and self._strikes > options.max_ping_strikes:
                raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "too_many_pings")
        self._last_ping = now
        self.write(frames.frame(frames.PING, frames.ACK, 0, bytes(payload)))

    def _reset(self, id: int) -> None:
        stream = self._streams.get(id)
        if stream is not None:
            self._resets += 2
            if self._resets > MAX_RESETS:
                raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "too many cancelled streams")
            stream.reset_by_client()

    # Pings of our own, age, and the end

    def _keep_alive(self) -> None:
        options = self._shared.options
        period = options.keepalive_time / 1000
        silent = self._loop.time() - self._heard
        if silent < period or not (self._streams or options.keepalive_permit_without_calls):
            left = period - silent if silent < period else period
            self._keepalive = self._loop.call_later(left, self._keep_alive)
            return
        self.write(frames.frame(frames.PING, 0, 0, b"stubserv"))
        self._keepalive = self._loop.call_later(options.keepalive_timeout / 1000, self._gone, self._heard)

    def _gone(self, heard: float) -> None:
        if self._heard == heard:
            log.info("closing a gRPC connection whose client does not answer pings")
            self._transport.abort()
        else:
            self._keep_alive()

    def _too_old(self) -> None:
        self.go_away()
        grace = self._shared.options.max_connection_age_grace
        self._age = None if grace is None else self._loop.call_later(grace / 1000, self._transport.abort)

    def _fail(self, code: int, text: str) -> None:
        log.info("closing a gRPC connection: %s", text)
        self._closing = True
        self.write(frames.goaway(self._last_id, code, text))
        self._pending = b""
        self.close()


def _uint32(payload: memoryview) -> int:
    if len(payload) != 4:
        raise ConnectionFault(frames.FRAME_SIZE_ERROR, "a frame of a wrong length")
    value: int = frames.UINT32.unpack(payload)[0]
    return value
