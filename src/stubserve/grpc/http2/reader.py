"""The bytes that arrive on a connection, taken apart to frames where they lie.

The payload of DATA goes to its stream as it comes, and that of header blocks to their decoder, the beginning of a frame
before its end: a frame may be as long as it may, and nothing of it is collected. All else that matters is short, and
goes to the connection as complete frames; what does not matter is skipped.

A header block may come in as many frames as its client likes, but not for ever: every frame of it counts as
_FRAME_COST bytes at least, as an empty one costs its sender nothing, and MAX_BLOCK_BYTES end the connection.
"""

from __future__ import annotations

from typing import Protocol

from stubserve.grpc.http2 import frames
from stubserve.grpc.http2.frames import ConnectionFault, StreamFault
from stubserve.grpc.http2.heads import HeadDecoder, RpcHead
from stubserve.grpc.http2.identifiers import StreamIdentifiers

MAX_FRAME_BYTES = 1 << 20
MAX_BLOCK_BYTES = 1 << 20

# Of what is neither DATA nor a header block: the longest is the client's settings.
_MAX_PAYLOAD_BYTES = 1024
_FRAME_COST = 1024
_PRIORITY_BYTES = 5
# Frames that are read as a whole; all others but DATA and header blocks say nothing to a server.
_SHORT = frozenset(
    (frames.PRIORITY, frames.RST_STREAM, frames.SETTINGS, frames.PUSH_PROMISE, frames.PING, frames.WINDOW_UPDATE)
)
# The connection's own window never stops anybody (the streams' do): it is opened all the way, and again after so much.
_GRANT_BYTES = 1 << 28


class DataStream(Protocol):
    """What the reader needs of an open stream. `receive_window` is what its client may still send."""

    receive_window: int
    half_closed: bool
    closed: bool

    def data_received(self, data: memoryview) -> None: ...

    def ended_by_client(self) -> None: ...


class FrameTaker(Protocol):
    """What the reader tells. All of these raise ConnectionFault or StreamFault."""

    identifiers: StreamIdentifiers

    def stream(self, id: int) -> DataStream | None:
        """The stream if it is open."""
        ...

    def take_head(self, id: int, head: RpcHead, ends: bool) -> None:
        """A header block; with `ends` its stream has nothing else."""
        ...

    def take_frame(self, kind: int, flags: int, id: int, payload: memoryview) -> None:
        """A complete frame that is neither DATA nor of a header block."""
        ...

    def take_idle_frame(self) -> None:
        """A frame that moves nothing."""
        ...

    def fail_stream(self, fault: StreamFault) -> None:
        """The client broke the protocol on one stream."""
        ...

    def grant(self, nbytes: int) -> None:
        """The client may send so many bytes more on the connection."""
        ...


class FrameReader:
    """The reader of one connection. `feed` raises ConnectionFault where the client breaks the protocol.

    `unfinished` says that the client has not yet said that it speaks HTTP/2, or is within a header block: until it goes
    on nothing else can be read.
    """

    def __init__(self, connection: FrameTaker) -> None:
        self._connection = connection
        self._heads = HeadDecoder()
        self._greeted = False
        self.unfinished = True
        # Bytes of a frame's head, or of a short frame, that is not complete
        self._pending = b""
        # Bytes to be skipped
        self._skip_left = 0
        # The DATA frame whose payload is arriving
        self._data_left = 0
        self._data_stream: DataStream | None = None
        self._data_pad = 0
        self._data_ends = False
        # The header block that is not complete: its stream (0 for none), and what is still to come of its frame
        self._block_stream = 0
        self._block_ends = False
        self._block_cost = 0
        self._block_left = 0
        self._block_is_last = False
        # Bytes of DATA since the connection's window was last opened
        self._received = 0

    def feed(self, data: memoryview) -> None:
        """Takes what a read brought. What is not used of it at once is copied, and short."""
        if self._pending:
            data = memoryview(self._pending + bytes(data))
            self._pending = b""
        at = self._process(data)
        if at < len(data):
            self._pending = bytes(data[at:])

    def _process(self, data: memoryview) -> int:
        """Takes all that can be taken; returns the position behind."""
        at, end = 0, len(data)
        if not self._greeted:
            size = len(frames.PREFACE)
            if bytes(data[:size]) != frames.PREFACE[: min(size, end)]:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "this is the port of gRPC, which is HTTP/2")
            if end < size:
                return 0
            self._greeted = True
            self.unfinished = False
            at = size
        while at < end:
            if self._data_left:
                at = self._take_data(data, at, end)
                continue
            if self._block_left:
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
            if self._block_stream and kind != frames.CONTINUATION:
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
                at = self._continue_block(payload, length, flags, id)
            elif kind in _SHORT:
                if length > _MAX_PAYLOAD_BYTES:
                    raise ConnectionFault(frames.ENHANCE_YOUR_CALM, f"a frame of {length} bytes that moves nothing")
                if payload + length > end:
                    break
                at = payload + length
                try:
                    self._connection.take_frame(kind, flags, id, data[payload:at])
                except StreamFault as fault:
                    self._connection.fail_stream(fault)
            else:
                self._connection.take_idle_frame()
                self._skip_left = length
                at = payload
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
        stream = connection.stream(id)
        if stream is None and connection.identifiers.is_idle(id):
            raise ConnectionFault(frames.PROTOCOL_ERROR, f"data on stream {id}, which is not open")
        self._received += length
        if self._received >= _GRANT_BYTES:
            connection.grant(self._received)
            self._received = 0
        self._data_ends = bool(flags & frames.END_STREAM)
        if stream is not None:
            stream.receive_window -= length
            if stream.receive_window < 0:
                raise ConnectionFault(frames.FLOW_CONTROL_ERROR, f"stream {id} was sent more than its window")
            if stream.half_closed:
                connection.fail_stream(StreamFault(id, frames.STREAM_CLOSED, "data on a stream that is closed"))
                stream = None
        if length == pad and not self._data_ends:
            connection.take_idle_frame()
        self._data_stream = stream
        self._data_pad = max(pad - 1, 0)
        self._data_left = length - (1 if pad else 0)
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
            # All of it is here; the usual case.
            self._finish(id, self._heads.decode(bytes(data[at : end - pad])), bool(flags & frames.END_STREAM))
            return end
        self._block_stream = id
        self.unfinished = True
        self._block_ends = bool(flags & frames.END_STREAM)
        self._block_cost = 0
        self._heads.begin()
        self._begin_piece(end - pad - at, last, pad)
        return at

    def _continue_block(self, at: int, length: int, flags: int, id: int) -> int:
        if not self._block_stream or id != self._block_stream:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "a continuation of nothing")
        self._begin_piece(length, bool(flags & frames.END_HEADERS), 0)
        return at

    def _begin_piece(self, length: int, last: bool, pad: int) -> None:
        self._block_cost += max(length, _FRAME_COST)
        if self._block_cost > MAX_BLOCK_BYTES:
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "a header block without end")
        self._block_left = length
        self._block_is_last = last
        # Only the frame that begins a block has padding, and nothing but a continuation or the next frame follows it.
        self._skip_left = pad
        if not length:
            self._end_piece()

    def _take_block(self, data: memoryview, at: int, end: int) -> int:
        take = min(self._block_left, end - at)
        self._block_left -= take
        self._heads.feed(bytes(data[at : at + take]))
        if not self._block_left:
            self._end_piece()
        return at + take

    def _end_piece(self) -> None:
        if self._block_is_last:
            id, self._block_stream = self._block_stream, 0
            self.unfinished = False
            self._finish(id, self._heads.end(), self._block_ends)

    def _finish(self, id: int, head: RpcHead, ends: bool) -> None:
        try:
            self._connection.take_head(id, head, ends)
        except StreamFault as fault:
            self._connection.fail_stream(fault)
