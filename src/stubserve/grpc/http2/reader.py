"""Takes the bytes that arrive on a connection apart to frames, where they lie, and acts on the frames.

The payload of DATA goes to its stream as it comes, and that of header blocks to their decoder, the beginning of a frame
before its end: no frame is collected, however long. All other frames that matter are short, and are read as complete
frames; the rest are skipped.

A breach of the protocol on one stream resets that stream with the reason. It costs the client as much as its own reset,
or it could make the server reset its streams for free.
"""

from __future__ import annotations

import asyncio
import logging

from stubserve.grpc.http2 import frames
from stubserve.grpc.http2.budget import ClientBudget
from stubserve.grpc.http2.endpoint import Endpoint
from stubserve.grpc.http2.frames import ConnectionFault, StreamFault
from stubserve.grpc.http2.heads import CALL_TOO_LARGE, NOT_GRPC, TOO_LARGE, UNKNOWN_METHOD, HeadDecoder, RpcHead
from stubserve.grpc.http2.stream import Http2Stream
from stubserve.grpc.http2.writer import FrameWriter

log = logging.getLogger("stubserve.grpc")

MAX_STREAMS = 1024
MAX_FRAME_BYTES = 1 << 20

# For all but DATA and header blocks: the longest is the client's settings.
_MAX_PAYLOAD_BYTES = 1024
_PRIORITY_BYTES = 5
# Frames that are read as a whole; all others, but DATA and header blocks, mean nothing to a server.
_SHORT = frozenset(
    (frames.PRIORITY, frames.RST_STREAM, frames.SETTINGS, frames.PUSH_PROMISE, frames.PING, frames.WINDOW_UPDATE)
)
# The frames that contain one number
_NUMBERS = frozenset((frames.RST_STREAM, frames.WINDOW_UPDATE))
# The connection's own window stops nobody (the streams' do): it is opened all the way, and again after so many bytes.
_GRANT_BYTES = 1 << 28


class FrameReader:
    """The reader of one connection, and its streams. `feed` raises ConnectionFault if the protocol is broken.

    `unfinished` says that the client has not sent the whole preface, or is within a header block: until it goes on
    nothing else can be read. Once `closing` is set no stream is opened, and the connection ends with the last.
    """

    def __init__(self, endpoint: Endpoint, writer: FrameWriter, budget: ClientBudget) -> None:
        self._endpoint = endpoint
        self._writer = writer
        self._budget = budget
        self._heads = HeadDecoder()
        self.streams: dict[int, Http2Stream] = {}
        self.closing = False
        self._greeted = False
        self.unfinished = True
        # Bytes of an incomplete frame head or short frame
        self._pending = b""
        self._skip_left = 0
        self._data_left = 0
        self._data_stream: Http2Stream | None = None
        self._data_pad = 0
        self._data_ends = False
        # Bytes of DATA since the connection's window was last opened
        self._received = 0

    def feed(self, data: memoryview) -> None:
        """Takes the bytes of a read. Bytes that it cannot use at once are few, and are copied."""
        if self._pending:
            data = memoryview(self._pending + bytes(data))
            self._pending = b""
        at, end = 0, len(data)
        if not self._greeted:
            size = len(frames.PREFACE)
            if bytes(data[:size]) != frames.PREFACE[: min(size, end)]:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "this is the port of gRPC, which is HTTP/2")
            if end < size:
                self._pending = bytes(data)
                return
            self._greeted = True
            self.unfinished = False
            at = size
        while at < end:
            if self._data_left:
                at = self._take_data(data, at, end)
                continue
            if self._heads.left:
                at = self._take_block(data, at, end)
                continue
            if self._skip_left:
                skipped = min(self._skip_left, end - at)
                self._skip_left -= skipped
                at += skipped
                continue
            if end - at < frames.HEAD_BYTES:
                break
            word, flags, id = frames.HEAD.unpack_from(data, at)
            length, kind = word >> 8, word & 0xFF
            id &= 0x7FFF_FFFF
            if length > MAX_FRAME_BYTES:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            if self._heads.stream and kind != frames.CONTINUATION:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "a header block was not continued")
            payload = at + frames.HEAD_BYTES
            if kind == frames.DATA:
                if flags & frames.PADDED and payload >= end:
                    break
                at = self._begin_data(data, payload, length, flags, id)
            elif kind == frames.HEADERS:
                needed = (1 if flags & frames.PADDED else 0) + (_PRIORITY_BYTES if flags & frames.HAS_PRIORITY else 0)
                if payload + min(needed, length) > end:
                    break
                at = self._begin_block(data, payload, length, flags, id)
            elif kind == frames.CONTINUATION:
                at = self._continue_block(data, payload, length, flags, id)
            elif kind in _SHORT:
                if length > _MAX_PAYLOAD_BYTES:
                    raise ConnectionFault(frames.ENHANCE_YOUR_CALM, f"a frame of {length} bytes that moves nothing")
                if payload + length > end:
                    break
                at = payload + length
                try:
                    self._take_frame(kind, flags, id, data[payload:at])
                except StreamFault as fault:
                    self._fail_stream(fault)
            else:
                self._budget.take_idle_frame()
                self._skip_left = length
                at = payload
        if at < end:
            self._pending = bytes(data[at:])

    def forget(self, stream: Http2Stream) -> None:
        if self.streams.pop(stream.id, None) is not None and self._budget.resets:
            self._budget.resets -= 1
        self._writer.waiting.pop(stream.id, None)
        if self.closing and not self.streams:
            asyncio.get_running_loop().call_soon(self._writer.close)

    # DATA

    def _begin_data(self, data: memoryview, at: int, length: int, flags: int, id: int) -> int:
        pad = 0
        if flags & frames.PADDED:
            pad = data[at] + 1
            at += 1
            if pad > length:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "more padding than frame")
        stream = self.streams.get(id)
        if stream is None and (id % 2 == 0 or id > self._budget.last_stream):
            raise ConnectionFault(frames.PROTOCOL_ERROR, f"data on stream {id}, which is not open")
        self._received += length
        if self._received >= _GRANT_BYTES:
            self._writer.write(frames.window_update(0, self._received))
            self._received = 0
        self._data_ends = bool(flags & frames.END_STREAM)
        if stream is not None:
            stream.receive_window -= length
            if stream.receive_window < 0:
                raise ConnectionFault(frames.FLOW_CONTROL_ERROR, f"stream {id} was sent more than its window")
            if stream.half_closed:
                self._fail_stream(StreamFault(id, frames.STREAM_CLOSED, "data on a stream that is closed"))
                stream = None
        if length == pad and not self._data_ends:
            self._budget.take_idle_frame()
        self._data_stream = stream
        self._data_pad = max(pad - 1, 0)
        self._data_left = length - (1 if pad else 0)
        return self._take_data(data, at, len(data))

    def _take_data(self, data: memoryview, at: int, end: int) -> int:
        take = min(self._data_left, end - at)
        content = min(take, max(self._data_left - self._data_pad, 0))
        self._data_left -= take
        stream = self._data_stream
        if stream is not None:
            ends = self._data_ends and not self._data_left
            if ends:
                # Set before its last message is taken: the answer may then close the stream.
                stream.half_closed = True
            if content:
                stream.data_received(data[at : at + content])
            if not self._data_left:
                self._data_stream = None
                if ends and not stream.closed:
                    stream.ended_by_client()
        return at + take

    # Header blocks

    def _begin_block(self, data: memoryview, at: int, length: int, flags: int, id: int) -> int:
        if id % 2 == 0:
            raise ConnectionFault(frames.PROTOCOL_ERROR, f"a client cannot open stream {id}")
        end = at + length
        pad = 0
        if flags & frames.PADDED:
            if not length:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, "an empty padded frame")
            pad = data[at]
            at += 1
        if flags & frames.HAS_PRIORITY:
            at += _PRIORITY_BYTES
        if at + pad > end:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "more padding than frame")
        last = bool(flags & frames.END_HEADERS)
        if last and end <= len(data):
            # The usual case: all of it is here.
            block = bytes(data[at : end - pad])
            self._take_head(
                id, self._heads.known.get(block) or self._heads.decode(block), bool(flags & frames.END_STREAM)
            )
            return end
        self.unfinished = True
        self._heads.begin(id, bool(flags & frames.END_STREAM))
        self._heads.piece(end - pad - at, last)
        # Only the frame that begins a block has padding, and a continuation or the next frame follows it.
        self._skip_left = pad
        return self._take_block(data, at, len(data))

    def _continue_block(self, data: memoryview, at: int, length: int, flags: int, id: int) -> int:
        if not self._heads.stream or id != self._heads.stream:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "a continuation of nothing")
        self._heads.piece(length, bool(flags & frames.END_HEADERS))
        return self._take_block(data, at, len(data))

    def _take_block(self, data: memoryview, at: int, end: int) -> int:
        take = min(self._heads.left, end - at)
        id = self._heads.stream
        head = self._heads.feed(bytes(data[at : at + take]))
        if head is not None:
            self.unfinished = False
            self._take_head(id, head, self._heads.ends)
        return at + take

    def _take_head(self, id: int, head: RpcHead, ends: bool) -> None:
        """Takes a header block; with `ends` its stream has nothing else."""
        stream = self.streams.get(id)
        method = self._endpoint.methods.get(head.path)
        try:
            if stream is not None:
                stream.trailers_received(head, ends)
            elif not self._budget.open_stream(id):
                self._budget.take_idle_frame()
            elif self.closing or len(self.streams) >= MAX_STREAMS:
                self._budget.take_reset()
                self._writer.write(frames.rst_stream(id, frames.REFUSED_STREAM))
            elif head.too_large:
                self._refuse(id, CALL_TOO_LARGE if head.is_grpc else TOO_LARGE, ends)
            elif head.fault:
                raise StreamFault(id, frames.PROTOCOL_ERROR, head.fault)
            elif not head.is_grpc:
                self._refuse(id, NOT_GRPC, ends)
            elif method is None:
                self._refuse(id, UNKNOWN_METHOD, ends)
            else:
                stream = Http2Stream(self._endpoint, self._writer, self.forget, id, head, method)
                if not stream.closed:  # else the stream has been refused
                    self.streams[id] = stream
                    if ends:
                        stream.ended_by_client()
        except StreamFault as fault:
            self._fail_stream(fault)

    def _refuse(self, id: int, block: bytes, ends: bool) -> None:
        self._writer.send_head(id, block, ends=True)
        if not ends:
            self._writer.write(frames.rst_stream(id, frames.NO_ERROR))

    # Other frames

    def _take_frame(self, kind: int, flags: int, id: int, payload: memoryview) -> None:
        """Acts on a complete frame other than DATA and header blocks. Raises ConnectionFault and StreamFault."""
        budget = self._budget
        if kind in _NUMBERS and len(payload) != 4:
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, "a frame of a wrong length")
        if kind == frames.WINDOW_UPDATE:
            increment = int.from_bytes(payload, "big") & 0x7FFF_FFFF
            stream = self.streams.get(id)
            if id and stream is None:
                budget.refuse_unopened(id, "a window")
            if not increment and id:
                raise StreamFault(id, frames.PROTOCOL_ERROR, "a window that does not grow")
            if not increment:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "a window that does not grow")
            if stream is not None:
                stream.widened += increment
                if self._writer.stream_window + stream.widened > frames.MAX_WINDOW:
                    raise StreamFault(id, frames.FLOW_CONTROL_ERROR, "the window is too large")
                stream.pump()
            elif not id:
                self._writer.widen(increment)
            budget.take_update(self._writer.data_bytes)
        elif kind == frames.SETTINGS:
            budget.take_idle_frame()
            if id:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "settings of a stream")
            if not flags & frames.ACK:
                self._writer.apply(payload, self._pump_all)
            elif payload:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, "acknowledged settings of a wrong length")
        elif kind == frames.PING:
            if id:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "a ping of a stream")
            if len(payload) != 8:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, "a ping of a wrong length")
            if not flags & frames.ACK:
                budget.take_ping(self._writer.data_bytes, bool(self.streams))
                self._writer.write(frames.PONG_HEAD, bytes(payload))
        elif kind == frames.RST_STREAM:
            budget.refuse_unopened(id, "the end")
            stream = self.streams.get(id)
            if stream is None:
                budget.take_idle_frame()
            else:
                budget.take_reset()
                stream.reset_by_client()
        elif kind == frames.PRIORITY:
            budget.take_idle_frame()
            if not id:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "a priority of no stream")
            if len(payload) != _PRIORITY_BYTES and id in self.streams:
                raise StreamFault(id, frames.FRAME_SIZE_ERROR, "a priority of a wrong length")
        else:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "a client cannot push")

    def _pump_all(self) -> None:
        for stream in list(self.streams.values()):
            stream.pump()

    def _fail_stream(self, fault: StreamFault) -> None:
        log.debug("a gRPC stream breaks the protocol: %s", fault)
        self._budget.take_reset()
        self._writer.write(frames.rst_stream(fault.stream, fault.code))
        stream = self.streams.get(fault.stream)
        if stream is not None:
            stream.reset_by_client()
