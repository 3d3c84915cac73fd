"""The bytes that leave on a connection, and how much of them the client takes.

Guarantees:
- everything that one turn of the event loop makes to be sent leaves in one write;
- DATA keeps to the client's windows and frame size, and waits while the socket is full; when one of these changes the
  streams that wait are pumped again;
- a small unary answer, with its headers and trailers, is put together in one step.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence

from stubserve.api.fair_queues import peer_name
from stubserve.connections.sent_memory import keep_sending_warm
from stubserve.grpc.http2 import frames
from stubserve.grpc.http2.fields import TABLE_BYTES
from stubserve.grpc.http2.frames import ConnectionFault
from stubserve.grpc.http2.heads import OPENING, trailers
from stubserve.grpc.transport import OK

# Longer answers are not joined with the heads of their frames, but sent from where they lie.
MAX_WHOLE_BYTES = 64 * 1024

# The most that leaves in one turn of the event loop: putting a very large answer into frames takes time, too.
_TURN_BYTES = 8 << 20
# One system call costs more than copying this much.
_JOINED_BYTES = 256 * 1024
# HPACK's change of the table's size to 0
_NO_TABLE = b"\x20"
_END = frames.END_HEADERS | frames.END_STREAM
# The end of every plain unary answer
_CLOSING = trailers(OK, "")


class FrameWriter:
    """The writer of one connection. `stream_window` is a stream's initial window; `paused`: the socket is full."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._out: list[bytes | memoryview] = []
        self._flush_is_due = False
        self._lost = False
        self._sends_large = False
        # Bytes of DATA in this turn
        self._turn_bytes = 0
        # The client's limits
        self._window = frames.DEFAULT_WINDOW
        self._max_frame = frames.DEFAULT_FRAME_SIZE
        self.stream_window = frames.DEFAULT_WINDOW
        self.paused = False
        # The beginning of the next header block
        self._before_block = b""
        self._pump_is_due = False
        # What pumps the streams that wait for the connection, by their identifiers, the longest waiting first. A stream
        # that waits for its own window is not among them: a window update must cost no more than what it lets through.
        self.waiting: OrderedDict[int, Callable[[], object]] = OrderedDict()
        self.data_bytes = 0
        self._peer: str | None = None

    @property
    def peer(self) -> str:
        """The client's `<address>:<port>`."""
        if self._peer is None:
            self._peer = peer_name(self._transport.get_extra_info("peername"))
        return self._peer

    def write(self, *pieces: bytes | memoryview) -> None:
        """Adds bytes to the write at the end of this turn of the event loop."""
        self._out += pieces
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        self._flush_is_due = False
        out, self._out = self._out, []
        if self._turn_bytes:
            self._turn_bytes = 0
            if self.waiting:
                self._loop.call_soon(self._pump)
        if not out or self._lost:
            return
        if len(out) == 1:
            self._transport.write(out[0])
        elif sum(map(len, out)) <= _JOINED_BYTES:
            self._transport.write(b"".join(out))
        else:
            if not self._sends_large:
                self._sends_large = True
                keep_sending_warm(self._transport)
            self._transport.writelines(out)

    def close(self) -> None:
        """Closes the connection behind what has been written."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        self._lost = True
        self._out.clear()

    # For streams

    def room(self) -> int:
        """The most bytes for the next DATA frame, as far as the connection decides it."""
        return 0 if self.paused or self._turn_bytes >= _TURN_BYTES else min(self._window, self._max_frame)

    def send_head(self, stream: int, block: bytes, ends: bool = False) -> None:
        block, self._before_block = self._before_block + block, b""
        self.write(frames.frame(frames.HEADERS, _END if ends else frames.END_HEADERS, stream, block))

    def send_data(self, stream: int, length: int, pieces: Sequence[bytes | memoryview]) -> None:
        self._window -= length
        self._turn_bytes += length
        self.data_bytes += length
        self.write(frames.data_head(length, stream), *pieces)

    def send_whole(self, id: int, widened: int, size: int, parts: Sequence[bytes | memoryview]) -> bool:
        """Sends a unary RPC's whole answer, if it can go in one frame now; `widened` is that of the stream."""
        length = size + 5
        limit = min(self._max_frame, MAX_WHOLE_BYTES, self._window, self.stream_window + widened)
        if length > limit or self.paused or self._before_block:
            return False
        self._window -= length
        self.data_bytes += length
        opening = frames.HEAD.pack(len(OPENING) << 8 | frames.HEADERS, frames.END_HEADERS, id)
        data = frames.HEAD.pack(length << 8, 0, id)
        closing = frames.HEAD.pack(len(_CLOSING) << 8 | frames.HEADERS, _END, id)
        self.write(
            b"%b%b%b\0%b%b%b%b" % (opening, OPENING, data, size.to_bytes(4, "big"), b"".join(parts), closing, _CLOSING)
        )
        return True

    # The client's limits

    def resume(self) -> None:
        self.paused = False
        self._pump()

    def widen(self, increment: int) -> None:
        """The client takes `increment` bytes more on the connection. Raises ConnectionFault."""
        self._window += increment
        if self._window > frames.MAX_WINDOW:
            raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "the connection's window is too large")
        if self.waiting:
            self._pump()

    def apply(self, settings: memoryview, pump_all: Callable[[], None]) -> None:
        """Keeps to the client's settings from here on; `pump_all` does so for open streams. Raises ConnectionFault."""
        if len(settings) % frames.SETTING.size:
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, "settings of a wrong length")
        window = self.stream_window
        for setting, value in frames.SETTING.iter_unpack(settings):
            if setting == frames.INITIAL_WINDOW_SIZE:
                if value > frames.MAX_WINDOW:
                    raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "too large an initial window")
                window = value
            elif setting == frames.ENABLE_PUSH and value > 1:
                raise ConnectionFault(frames.PROTOCOL_ERROR, f"push is neither on nor off but {value}")
            elif setting == frames.MAX_FRAME_SIZE:
                if not frames.DEFAULT_FRAME_SIZE <= value < 1 << 24:
                    raise ConnectionFault(frames.PROTOCOL_ERROR, f"a maximum frame size of {value}")
                self._max_frame = value
            elif setting == frames.HEADER_TABLE_SIZE and value < TABLE_BYTES:
                # We use no table, but have to announce that it is no larger than this.
                self._before_block = _NO_TABLE
        self.write(frames.frame(frames.SETTINGS, frames.ACK, 0))
        if window > self.stream_window and not self._pump_is_due:
            # Once for all settings of one turn: this costs a step per stream.
            self._pump_is_due = True
            self._loop.call_soon(self._pump_all, pump_all)
        self.stream_window = window

    def _pump_all(self, pump_all: Callable[[], None]) -> None:
        self._pump_is_due = False
        pump_all()

    def _pump(self) -> None:
        while self.waiting and self.room() > 0:
            self.waiting.popitem(last=False)[1]()
