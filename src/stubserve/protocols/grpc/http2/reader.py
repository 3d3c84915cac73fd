"""What arrives on a connection: bytes taken apart to frames where they lie.

The payload of DATA goes to its stream as it comes, the beginning of a frame before its end. Header blocks are put
together from their frames, and bounded: a block may come in as many frames as its client likes, but not for ever.
All else goes to the connection as complete frames.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stubserve.protocols.grpc.http2 import frames
from stubserve.protocols.grpc.http2.frames import ConnectionFault

if TYPE_CHECKING:
    from stubserve.protocols.grpc.http2.connection import Connection
    from stubserve.protocols.grpc.http2.stream import Stream

MAX_FRAME_BYTES = 1 << 20
MAX_BLOCK_BYTES = 64 * 1024

# The connection's own window never stops anybody (the streams' do): it is opened all the way, and again after so much.
_GRANT_BYTES = 1 << 28


class Reader:
    """One connection's. Its methods raise ConnectionFault where the client breaks the protocol."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._greeted = False
        # Bytes of a frame that is not complete
        self._pending = b""
        # The DATA frame whose payload is arriving
        self._data_left = 0
        self._data_stream: Stream | None = None
        self._data_pad = 0
        self._data_ends = False
        # The header block that is not complete
        self._block: bytearray | None = None
        self._block_cost = 0
        self._block_stream = 0
        self._block_ends = False
        # Bytes of DATA since the connection's window was last opened
        self._received = 0

    def feed(self, data: memoryview) -> None:
        """Takes what a read brought. What is not used of it at once is copied."""
        if self._pending:
            data = memoryview(self._pending + bytes(data))
            self._pending = b""
        at = self._process(data)
        if at < len(data):
            self._pending = bytes(data[at:])

    def _process(self, data: memoryview) -> int:
        """Takes all complete frames, and what is there of a DATA frame; returns the position behind."""
        at, end = 0, len(data)
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
            if kind == frames.HEADERS:
                self._begin_block(id, flags, frames.unpadded(data[payload:at], flags))
            elif kind == frames.CONTINUATION:
                self._continue_block(id, flags, data[payload:at])
            else:
                self._connection.take_frame(kind, flags, id, data[payload:at])
        return at

    # DATA

    def _begin_data(self, data: memoryview, at: int, length: int, flags: int, id: int) -> int:
        pad = 0
        if flags & frames.PADDED:
            pad = data[at] + 1
            at += 1
            if pad > length:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "more padding than frame")
        connection = self._connection
        stream = connection.streams.get(id)
        if stream is None and (id == 0 or id > connection.last_id):
            raise ConnectionFault(frames.PROTOCOL_ERROR, f"data on stream {id}, which is not open")
        self._received += length
        if self._received >= _GRANT_BYTES:
            connection.sender.write(frames.window_update(0, self._received))
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
            self._end_data()
        return at

    def _take_data(self, data: memoryview, at: int, end: int) -> int:
        take = min(self._data_left, end - at)
        content = min(take, max(self._data_left - self._data_pad, 0))
        self._data_left -= take
        stream = self._data_stream
        # Nothing is done for a stream that was closed meanwhile.
        if stream is not None:
            if self._data_ends and not self._data_left:
                # Known before its last message is taken: the answer to that may then close the stream.
                stream.half_closed = True
            if content:
                stream.data_received(data[at : at + content])
            if not self._data_left:
                self._end_data()
        return at + take

    def _end_data(self) -> None:
        stream, self._data_stream = self._data_stream, None
        if self._data_ends and stream is not None and not stream.closed:
            stream.ended_by_client()

    # Header blocks

    def _begin_block(self, id: int, flags: int, block: memoryview) -> None:
        if id % 2 == 0:
            raise ConnectionFault(frames.PROTOCOL_ERROR, f"a client cannot open stream {id}")
        ends = bool(flags & frames.END_STREAM)
        if flags & frames.END_HEADERS:
            self._connection.take_block(id, bytes(block), ends)
            return
        self._block = bytearray(block)
        self._block_cost = len(block)
        self._block_stream = id
        self._block_ends = ends

    def _continue_block(self, id: int, flags: int, more: memoryview) -> None:
        if self._block is None or id != self._block_stream:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "a continuation of nothing")
        self._block += more
        # An empty one costs its sender nothing: each counts as a frame's head.
        self._block_cost += len(more) + frames.HEAD_BYTES
        if self._block_cost > MAX_BLOCK_BYTES:
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "a header block without end")
        if flags & frames.END_HEADERS:
            block, self._block = bytes(self._block), None
            self._connection.take_block(id, block, self._block_ends)
