"""One RPC on a connection: a `transport.Call` for the service, and the two directions of an HTTP/2 stream."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stubserve.inference.memory import Block
from stubserve.protocols.grpc.http2 import frames
from stubserve.protocols.grpc.http2.heads import OPENING, Head, opening, trailers
from stubserve.protocols.grpc.http2.inbox import PREFIX_BYTES, Inbox, Message, Refusal
from stubserve.protocols.grpc.transport import INTERNAL, OK, Handler, Metadata, Method

if TYPE_CHECKING:
    from stubserve.protocols.grpc.http2.connection import Connection

log = logging.getLogger("stubserve.grpc")

# How much may wait for a client that reads slowly before it is said to be slow.
OUTBOX_BYTES = 1 << 20
# How much a client may send on a stream before the server has taken it.
RECEIVE_WINDOW = 2 << 20

_DEADLINE_EXCEEDED = 4
_GZIP_FORMAT = 16 + zlib.MAX_WBITS
Parts = Sequence["bytes | memoryview"]


class Stream:
    """A stream that the client has opened. `widened` is what the client takes beyond its initial window; less than 0
    where more of that is used up."""

    __slots__ = (
        "_asked",
        "_compress_with",
        "_connection",
        "_deadline",
        "_handler",
        "_head",
        "_inbox",
        "_method",
        "_opened",
        "_outbox",
        "_outbox_bytes",
        "_reading",
        "_sender",
        "_slow",
        "_status",
        "_watched",
        "closed",
        "half_closed",
        "id",
        "receive_window",
        "widened",
    )

    def __init__(self, connection: Connection, id: int, head: Head, method: Method) -> None:
        self.id = id
        self._connection = connection
        self._sender = connection.sender
        self._head = head
        self._method = method
        self._handler: Handler | None = None
        self._deadline: asyncio.TimerHandle | None = None
        # From the client
        self._inbox = Inbox(connection.ingress, head.encoding)
        self.receive_window = RECEIVE_WINDOW
        self._reading = True
        self._watched = False
        self._asked = False
        self.half_closed = False
        # To the client
        self.widened = 0
        self._compress_with = connection.compression(method, head)
        self._opened = False
        self._outbox: deque[bytes | memoryview] = deque()
        self._outbox_bytes = 0
        self._slow = False
        self._status: tuple[int, str] | None = None
        # Both ways at an end
        self.closed = False

    def begin(self) -> None:
        """Opens the RPC's handler."""
        if self._head.timeout_s is not None:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(self._head.timeout_s, self._expire)
        self._handler = self._method.open(self)

    # What the connection tells

    def data_received(self, data: memoryview) -> None:
        """The payload of a DATA frame, or a part of it."""
        if self._status is not None:
            return
        try:
            for message in self._inbox.feed(data):
                self._take(message)
                if self._status is not None:
                    # Answered by that: a place for what is behind it would be nobody's to give back.
                    break
        except Refusal as refusal:
            self._inbox.drop()
            self._cut_off(refusal.status, str(refusal))
        partial = self._inbox.partial and self._status is None
        if partial != self._watched:
            self._watched = partial
            watch = self._connection.stall_watch
            (watch.watch if partial else watch.unwatch)(self)
        if not self._method.unary or partial:
            self._grant()

    def ended_by_client(self) -> None:
        """The client has closed its side."""
        self.half_closed = True
        if self._status is not None:
            self._maybe_close()
        elif self._handler is not None:
            if self._inbox.partial or (self._method.unary and not self._asked):
                self._cut_off(INTERNAL, "Unable to parse request")
            else:
                self._handler.on_half_close()

    def reset_by_client(self) -> None:
        """The client has cancelled the RPC, or is gone."""
        self.half_closed = True
        self._abandon()

    def stalled(self) -> None:
        """The client has begun a message and sent nothing of it for too long."""
        if not self._reading:
            return  # it may not: the server does not take any more at the moment
        log.info("ending an RPC whose message did not arrive completely")
        self._cut_off(_DEADLINE_EXCEEDED, "the request did not arrive completely")

    @property
    def bytes_received(self) -> int:
        return self._inbox.received

    # What the service says

    def metadata(self) -> Metadata:
        return self._head.metadata

    def reply(self, parts: Parts, blocks: Sequence[Block]) -> None:
        if self._status is not None:
            return
        if self._compress_with is None:
            size = sum(map(len, parts))
            if self._sender.send_whole(self, size, parts):
                self._status = (OK, "")
                self._end()
                return
        self.send(parts, blocks)
        self.finish(OK)

    def send(self, parts: Parts, blocks: Sequence[Block]) -> bool:
        if self._status is not None:
            return True
        size = sum(map(len, parts))
        flag = b"\0"
        if self._compress_with is not None:
            wbits = _GZIP_FORMAT if self._compress_with == "gzip" else zlib.MAX_WBITS
            stream = zlib.compressobj(self._connection.compression_level, wbits=wbits)
            parts = [*[stream.compress(part) for part in parts], stream.flush()]
            blocks = ()
            size = sum(map(len, parts))
            flag = b"\1"
        self._outbox.append(flag + size.to_bytes(4, "big"))
        self._outbox_bytes += PREFIX_BYTES + size
        wrap = self._connection.sent_memory.wrap
        for part in parts:
            if part:
                self._outbox.append(part if isinstance(part, bytes) else wrap(part, blocks))
        self.pump()
        if self._outbox_bytes > OUTBOX_BYTES:
            self._slow = True
        return not self._slow

    def finish(self, status: int, message: str = "") -> None:
        if self._status is None:
            self._status = (status, message)
            if status != OK and self._method.unary:
                self._outbox.clear()
            self.pump()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._grant()

    # Sending

    def pump(self) -> None:
        """Sends what the windows allow, and, when nothing is left, the trailers."""
        if self.closed:
            return
        sender = self._sender
        outbox = self._outbox
        while outbox:
            room = min(sender.stream_window + self.widened, sender.room())
            if room <= 0:
                break
            pieces: list[bytes | memoryview] = []
            length = 0
            while outbox and length < room:
                piece = outbox.popleft()
                if length + len(piece) > room:
                    rest = memoryview(piece)
                    outbox.appendleft(rest[room - length :])
                    piece = rest[: room - length]
                pieces.append(piece)
                length += len(piece)
            self._open()
            sender.send_data(self.id, length, pieces)
            self.widened -= length
            self._outbox_bytes -= length
        if outbox:
            if sender.stream_window + self.widened > 0:
                sender.waiting[self] = None
            return
        if self._status is not None:
            self._open_or_not()
            self._end()
        elif self._slow:
            self._slow = False
            if self._handler is not None:
                asyncio.get_running_loop().call_soon(self._writable)

    def _writable(self) -> None:
        if self._handler is not None and not self._slow and self._status is None:
            self._handler.on_writable()

    def _open(self) -> None:
        if not self._opened:
            self._opened = True
            block = OPENING if self._compress_with is None else opening(self._compress_with)
            self._sender.write(frames.frame(frames.HEADERS, frames.END_HEADERS, self.id, block))

    def _open_or_not(self) -> None:
        assert self._status is not None
        block = trailers(*self._status)
        if not self._opened:
            block = OPENING + block
        flags = frames.END_HEADERS | frames.END_STREAM
        self._sender.write(frames.frame(frames.HEADERS, flags, self.id, block))

    def _end(self) -> None:
        """Our side is closed."""
        if not self.half_closed:
            self._sender.write(frames.rst_stream(self.id, frames.NO_ERROR))
        self._release()
        self._connection.forget(self)

    def _maybe_close(self) -> None:
        if not self._outbox:
            self._release()
            self._connection.forget(self)

    # Receiving

    def _take(self, message: Message) -> None:
        handler = self._handler
        try:
            if handler is not None and self._status is None and not (self._method.unary and self._asked):
                self._asked = True
                handler.on_message(*message)
        finally:
            if message.block is not None:
                message.block.drop()

    def _grant(self) -> None:
        """Lets the client send more, once it has used half of what it may.

        It may send the whole of a large message at once: there is a place for that already.
        """
        if self._reading and not self.half_closed and self._status is None:
            window = min(RECEIVE_WINDOW + self._inbox.missing, frames.MAX_WINDOW)
            more = window - self.receive_window
            if more >= RECEIVE_WINDOW // 2:
                self._sender.write(frames.window_update(self.id, more))
                self.receive_window = window

    # The end

    def _expire(self) -> None:
        self._deadline = None
        self._outbox.clear()
        self._outbox_bytes = 0
        self._cut_off(_DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _cut_off(self, status: int, message: str) -> None:
        """Ends the RPC although its handler has not. The status first: a cancelled request may answer at once."""
        handler = self._handler
        if self._status is None:
            self.finish(status, message)
            if handler is not None:
                handler.on_cancel()

    def _abandon(self) -> None:
        handler = self._handler
        running = self._status is None
        self._status = self._status or (OK, "")
        self._release()
        self._connection.forget(self)
        if handler is not None and running:
            handler.on_cancel()

    def _release(self) -> None:
        self.closed = True
        self._handler = None
        self._outbox.clear()
        self._inbox.drop()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._watched:
            self._watched = False
            self._connection.stall_watch.unwatch(self)
