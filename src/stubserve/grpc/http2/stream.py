"""One RPC on a connection: a `transport.Rpc` for the service, and an HTTP/2 stream for the client.

What the client sends is put together to messages by its `inbox`; those that are long, or compressed, come by way of an
`intake`. Answers leave at once where they can, and else by way of an `outbox`. Here is what the two directions have in
common: the handler, the deadline, and how an RPC ends, whoever ends it.

The usual unary RPC makes this object and its inbox and no other, and nothing is left of it that knows itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from stubserve.errors import ServeError
from stubserve.grpc.http2 import frames
from stubserve.grpc.http2.heads import OPENING, RpcHead, trailers
from stubserve.grpc.http2.inbox import RECEIVE_WINDOW, Inbox, Message, MessageRefusal
from stubserve.grpc.http2.intake import Intake
from stubserve.grpc.http2.outbox import Outbox
from stubserve.grpc.http2.shared import StreamOwner
from stubserve.grpc.transport import (
    CANCELLATION_LINE,
    CANCELLED,
    DEADLINE_EXCEEDED,
    INTERNAL,
    OK,
    REQUEST_LINE,
    Handler,
    Keep,
    Metadata,
    Method,
    Parts,
)
from stubserve.inference.long_work import LARGE_BYTES, LongWork
from stubserve.memory.blocks import Block
from stubserve.memory.heap_account import FREE_BYTES, HeapShare

log = logging.getLogger("stubserve.grpc")


class Stream:
    """A stream that the client has opened. `widened` is what the client takes beyond its initial window; less than 0
    where more of that is used up."""

    __slots__ = (
        "_asked",
        "_connection",
        "_deadline",
        "_encoding",
        "_handler",
        "_head",
        "_heap_share",
        "_inbox",
        "_intake",
        "_method",
        "_outbox",
        "_reading",
        "_sender",
        "_status",
        "closed",
        "half_closed",
        "id",
        "receive_window",
        "widened",
    )

    def __init__(self, connection: StreamOwner, id: int, head: RpcHead, method: Method) -> None:
        self.id = id
        self._connection = connection
        self._sender = connection.sender
        self._head = head
        self._method = method
        self._handler: Handler | None = None
        self._deadline: asyncio.TimerHandle | None = None
        # The metadata's, where that is more than a little
        self._heap_share: HeapShare | None = None
        # From the client
        self._inbox = Inbox(connection.server, connection.small_room, connection, self, head.encoding, method.max_bytes)
        self._intake: Intake | None = None
        self.receive_window = RECEIVE_WINDOW
        self._reading = True
        self._asked = False
        self.half_closed = False
        # To the client
        self.widened = 0
        self._encoding = connection.compression(method, head)
        self._outbox: Outbox | None = None
        self._status: tuple[int, str] | None = None
        # Both ways at an end
        self.closed = False

    def begin(self) -> None:
        """Opens the RPC's handler."""
        log.debug(REQUEST_LINE, self._head.path)
        if self._head.nbytes > FREE_BYTES:
            self._count_metadata()
        if self._head.timeout_s is not None:
            self._deadline = asyncio.get_running_loop().call_later(self._head.timeout_s, self._expire)
        self._handler = self._method.open(self)

    # What the connection tells

    def data_received(self, data: memoryview) -> None:
        """The payload of a DATA frame, or a part of it."""
        if self._status is not None:
            return
        try:
            for message in self._inbox.feed(data):
                self._arrived(message)
                if self._status is not None:
                    # Answered by that: a place for what is behind it would be nobody's to give back.
                    break
        except MessageRefusal as refusal:
            self.refuse(refusal)
        partial = self._inbox.partial
        if partial != self._inbox.watched:
            self._watch_or_not()
        if partial or not self._method.unary:
            self.grant()

    def ended_by_client(self) -> None:
        """The client has closed its side."""
        self.half_closed = True
        if self._status is not None:
            return
        if self._intake is not None and self._intake.busy:
            self._intake.end()
        elif self._handler is not None:
            if self._inbox.partial or (self._method.unary and not self._asked):
                self._cut_off(INTERNAL, "Unable to parse request")
            else:
                self._handler.on_half_close()

    def reset_by_client(self) -> None:
        """The client has cancelled the RPC, or is gone, or broke the protocol."""
        self.half_closed = True
        running = self._status is None
        if running:
            log.debug(CANCELLATION_LINE, self._head.path)
            self._status = (CANCELLED, "")
        handler = self._handler
        self._release()
        self._connection.forget(self)
        if handler is not None and running:
            handler.on_cancel()

    def pump(self) -> None:
        """Sends what may be sent, and, when nothing is left, the trailers."""
        if self.closed or (self._outbox is not None and not self._outbox.pump()):
            return
        if self._status is not None:
            block = trailers(*self._status)
            if self._outbox is None or not self._outbox.opened:
                block = OPENING + block
            self._sender.send_head(self.id, block, ends=True)
            self._end()

    # What the watches tell

    def stalled(self) -> None:
        self._cut_off(DEADLINE_EXCEEDED, "the request did not arrive completely")

    def give_up(self, error: ServeError) -> None:
        """Others need the memory that the message at hand holds, or the answer that is not read."""
        if self.closed:
            return
        log.info("ending an RPC: %s", error.message)
        self._inbox.drop()
        self._clear_outbox()
        self.fail(error)

    # What the service says

    @property
    def peer(self) -> str:
        return self._connection.peer

    @property
    def ended(self) -> int | None:
        return None if self._status is None else self._status[0]

    def metadata(self) -> Metadata:
        return self._head.metadata

    def reply(self, parts: Parts, blocks: Sequence[Block]) -> None:
        if self._status is not None:
            return
        as_it_is = self._encoding is None and self._outbox is None
        if as_it_is and self._sender.send_whole(self, sum(map(len, parts)), parts):
            self._status = (OK, "")
            self._end()
        else:
            self.send(parts, blocks)
            self.finish(OK)

    def reply_in_steps(self, work: Callable[[Keep], LongWork[Parts]], blocks: Sequence[Block]) -> None:
        self.send_in_steps(work, blocks)
        self.finish(OK)

    def send(self, parts: Parts, blocks: Sequence[Block]) -> bool:
        if self._status is not None:
            return True
        return (self._outbox or self._open_outbox()).send(parts, blocks)

    def send_in_steps(self, work: Callable[[Keep], LongWork[Parts]], blocks: Sequence[Block]) -> bool:
        if self._status is not None:
            return True
        return (self._outbox or self._open_outbox()).send_in_steps(work, blocks)

    def finish(self, status: int, message: str = "") -> None:
        if self._status is None:
            self._status = (status, message)
            if status != OK and self._method.unary:
                self._clear_outbox()
            self.pump()

    def pause_reading(self) -> None:
        self._reading = False
        self._watch_or_not()

    def resume_reading(self) -> None:
        self._reading = True
        self._watch_or_not()
        self.grant()

    # What the intake tells

    def take(self, message: Message) -> None:
        """Gives a message to the handler, where there is one that wants it."""
        handler = self._handler
        if handler is not None and self._status is None and not (self._method.unary and self._asked):
            self._asked = True
            handler.on_message(message.data, message.block, message.offset)

    def refuse(self, refusal: MessageRefusal) -> None:
        self._inbox.drop()
        self._cut_off(refusal.status, str(refusal))

    def grant(self) -> None:
        """Lets the client send more, where it has used enough of what it may."""
        if not self._reading or self.half_closed or self._status is not None:
            return
        if self._intake is not None and self._intake.busy:
            return
        more = self._inbox.may_go_on(self.receive_window)
        if more:
            self._sender.write(frames.window_update(self.id, more))
            self.receive_window += more

    # What the outbox tells

    def writable(self) -> None:
        if self._handler is not None and self._status is None:
            self._handler.on_writable()

    def fail(self, error: ServeError) -> None:
        """The RPC ends in an error, although all may have been said already."""
        if self._status is None:
            self._cut_off(error.code.grpc_status, error.message)
        else:
            self._drop_jobs()
            self._status = (error.code.grpc_status, error.message)
            self.pump()

    # Receiving

    def _arrived(self, message: Message) -> None:
        """A message is complete. Raises MessageRefusal."""
        intake = self._intake
        if (intake is None or not intake.busy) and not message.compressed and len(message.data) <= LARGE_BYTES:
            try:
                self.take(message)
            finally:
                message.drop()
            return
        if intake is None:
            intake = self._intake = Intake(self._connection.server, self._method.prepare, self)
        intake.add(message)

    def _watch_or_not(self) -> None:
        """The client has to go on with a message that it has begun, where it may."""
        may = self._reading and self._status is None
        self._inbox.has_to_go_on(self._connection.stall_watch if may else None)

    # The end

    def _expire(self) -> None:
        self._deadline = None
        self._clear_outbox()
        self._cut_off(DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _cut_off(self, status: int, message: str) -> None:
        """Ends the RPC although its handler has not. The status first: a cancelled request may answer at once."""
        handler = self._handler
        if self._status is None:
            self._drop_jobs()
            self.finish(status, message)
            if handler is not None:
                handler.on_cancel()

    def _end(self) -> None:
        """Our side is closed."""
        if not self.half_closed:
            self._sender.write(frames.rst_stream(self.id, frames.NO_ERROR))
        self._release()
        self._connection.forget(self)

    def _release(self) -> None:
        self.closed = True
        self._handler = None
        self._inbox.close()
        if self._outbox is not None or self._intake is not None:
            self._clear_outbox()
            self._drop_jobs()
            # What knows the stream is not known by it any more.
            self._outbox = self._intake = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._heap_share is not None:
            self._heap_share.drop()

    def _open_outbox(self) -> Outbox:
        outbox = self._outbox = Outbox(self._connection, self, self._encoding)
        return outbox

    def _clear_outbox(self) -> None:
        if self._outbox is not None:
            self._outbox.clear()

    def _drop_jobs(self) -> None:
        if self._outbox is not None:
            self._outbox.drop_jobs()
        if self._intake is not None:
            self._intake.drop()

    def _count_metadata(self) -> None:
        """Tells the heap's account. Raises nothing: where there is no memory for it the RPC ends."""
        self._heap_share = self._connection.server.heap.share()
        try:
            self._heap_share.add(self._head.nbytes)
        except ServeError as error:
            asyncio.get_running_loop().call_soon(self.give_up, error)
