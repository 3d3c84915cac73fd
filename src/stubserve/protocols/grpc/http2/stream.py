"""One RPC on a connection: a `transport.Call` for the service, and the two directions of an HTTP/2 stream.

What is long keeps nobody waiting: compressed messages, those that the method wants prepared, and answers that are to be
compressed or take long to write are worked on in steps (`jobs`), each direction in order.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from stubserve.errors import ServeError, internal, unavailable
from stubserve.inference.heap_account import FREE_BYTES, HeapShare
from stubserve.inference.memory import Block
from stubserve.inference.steps import Steps, finish
from stubserve.protocols.departure import SendWatch
from stubserve.protocols.grpc.http2 import frames
from stubserve.protocols.grpc.http2.compression import deflate
from stubserve.protocols.grpc.http2.heads import OPENING, RpcHead, opening, trailers
from stubserve.protocols.grpc.http2.inbox import PREFIX_BYTES, Inbox, Message, MessageRefusal, SmallRoom
from stubserve.protocols.grpc.http2.jobs import OrderedJobs
from stubserve.protocols.grpc.http2.sender import Sender
from stubserve.protocols.grpc.http2.turn import Turn
from stubserve.protocols.grpc.transport import (
    CANCELLATION_LINE,
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
from stubserve.protocols.grpc.wire import Malformed
from stubserve.protocols.offload import LARGE_BYTES
from stubserve.protocols.sent_memory import SentMemory
from stubserve.protocols.serving import Ingress
from stubserve.protocols.stall import StallWatch

log = logging.getLogger("stubserve.grpc")

# How much may wait for a client that reads slowly before it is said to be slow.
OUTBOX_BYTES = 1 << 20
# How much a client may send on a stream before the server has taken it.
RECEIVE_WINDOW = 2 << 20


class StreamOwner(Hashable, Protocol):
    """What a stream needs of its connection."""

    ingress: Ingress
    sender: Sender
    small_room: SmallRoom
    sent_memory: SentMemory
    stall_watch: StallWatch
    send_watch: SendWatch
    compression_level: int

    def compression(self, method: Method, head: RpcHead) -> str | None:
        """The encoding of a stream's answers, None for none."""
        ...

    def forget(self, stream: Stream) -> None:
        """Both sides of a stream are closed."""
        ...


class Stream:
    """A stream that the client has opened. `widened` is what the client takes beyond its initial window; less than 0
    where more of that is used up."""

    __slots__ = (
        "_asked",
        "_compress_with",
        "_connection",
        "_counted",
        "_deadline",
        "_end_is_due",
        "_handler",
        "_head",
        "_heap_bytes",
        "_inbox",
        "_incoming",
        "_method",
        "_opened",
        "_outbox",
        "_outbox_bytes",
        "_outgoing",
        "_reading",
        "_sender",
        "_slow",
        "_status",
        "_waits",
        "_watched",
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
        # From the client
        self._inbox = Inbox(
            connection.ingress, connection.small_room, connection, self, head.encoding, method.max_bytes
        )
        self._incoming: OrderedJobs | None = None
        self._end_is_due = False
        self.receive_window = RECEIVE_WINDOW
        self._reading = True
        self._watched = False
        self._asked = False
        self.half_closed = False
        # To the client
        self.widened = 0
        self._compress_with = connection.compression(method, head)
        self._outgoing: OrderedJobs | None = None
        self._opened = False
        self._outbox: deque[bytes | memoryview] = deque()
        self._outbox_bytes = 0
        self._waits = False
        self._slow = False
        self._status: tuple[int, str] | None = None
        # Bytes in the outbox that lie in the heap, and what its account has been told of
        self._heap_bytes = 0
        self._counted = 0
        # Both ways at an end
        self.closed = False

    def begin(self) -> None:
        """Opens the RPC's handler."""
        if log.isEnabledFor(logging.DEBUG):
            log.debug(REQUEST_LINE, self._head.path)
        if self._head.nbytes > FREE_BYTES:
            self._count()
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
                self._arrived(message)
                if self._status is not None:
                    # Answered by that: a place for what is behind it would be nobody's to give back.
                    break
        except MessageRefusal as refusal:
            self._refuse(refusal)
        partial = self._inbox.partial
        if partial != self._watched:
            self._watch_or_not()
        if partial or not self._method.unary:
            self._grant()

    def ended_by_client(self) -> None:
        """The client has closed its side."""
        self.half_closed = True
        if self._status is not None:
            self._maybe_close()
        elif self._incoming is not None and self._incoming.busy:
            self._end_is_due = True
        elif self._handler is not None:
            if self._inbox.partial or (self._method.unary and not self._asked):
                self._cut_off(INTERNAL, "Unable to parse request")
            else:
                self._handler.on_half_close()

    def reset_by_client(self) -> None:
        """The client has cancelled the RPC, or is gone, or broke the protocol."""
        self.half_closed = True
        if self._status is None and log.isEnabledFor(logging.DEBUG):
            log.debug(CANCELLATION_LINE, self._head.path)
        self._drop_all()

    def stalled(self) -> None:
        """The client has begun a message and does not send the rest of it, or too slowly."""
        log.info(
            "ending an RPC whose message did not arrive completely: it fell behind --request-min-rate=%d or took "
            "longer than --request-timeout-secs=%d",
            *self._connection.stall_watch.pace,
        )
        self._cut_off(DEADLINE_EXCEEDED, "the request did not arrive completely")

    def give_up(self, error: ServeError) -> None:
        """Others need the memory that the message at hand holds, or the answer that is not read."""
        if self.closed:
            return
        log.info("ending an RPC: %s", error.message)
        self._inbox.drop()
        self._clear_outbox()
        if self._status is None:
            self._cut_off(error.code.grpc_status, error.message)
        else:
            # All was said; now something else is.
            self._drop_jobs()
            self._status = (error.code.grpc_status, error.message)
            self.pump()

    @property
    def unsent(self) -> int:
        """What the client has not taken, or not let in."""
        return self._outbox_bytes

    def send_timed_out(self) -> None:
        self.give_up(unavailable("the client has read nothing of the answer for --send-timeout-secs"))

    @property
    def bytes_received(self) -> int:
        return self._inbox.received

    # What the service says

    def metadata(self) -> Metadata:
        return self._head.metadata

    def reply(self, parts: Parts, blocks: Sequence[Block]) -> None:
        if self._status is not None:
            return
        if self._compress_with is None and self._outgoing is None:
            size = sum(map(len, parts))
            if self._sender.send_whole(self, size, parts):
                self._status = (OK, "")
                self._end()
                return
        self.send(parts, blocks)
        self.finish(OK)

    def reply_in_steps(self, work: Callable[[Keep], Steps[Parts]], blocks: Sequence[Block]) -> None:
        if self._status is None:
            self.send_in_steps(work, blocks)
            self.finish(OK)

    def send(self, parts: Parts, blocks: Sequence[Block]) -> bool:
        if self._status is not None:
            return True
        encoding = self._compress_with
        is_behind = self._outgoing is not None and self._outgoing.busy
        if encoding is not None:
            level = self._connection.compression_level
            if is_behind or sum(map(len, parts)) > LARGE_BYTES:
                return self._send_later(lambda keep: deflate(parts, encoding, level, keep), blocks)
            parts, blocks = finish(deflate(parts, encoding, level, lambda nbytes: None)), ()
        elif is_behind:
            return self._send_later(None, blocks, parts)
        self._put(parts, blocks)
        return not self._slow

    def send_in_steps(self, work: Callable[[Keep], Steps[Parts]], blocks: Sequence[Block]) -> bool:
        if self._status is not None:
            return True
        encoding = self._compress_with

        def compressed(keep: Keep) -> Steps[Parts]:
            parts = yield from work(keep)
            if encoding is not None:
                parts = yield from deflate(parts, encoding, self._connection.compression_level, keep)
            return parts

        return self._send_later(compressed, blocks)

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
                if type(piece) is bytes:
                    self._heap_bytes -= len(piece)
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
            if not self._waits:
                self._waits = True
                self._connection.send_watch.watch(self)
            return
        self._wait_no_more()
        if self._counted:
            self._count()
        if self._outgoing is not None and self._outgoing.busy:
            return
        if self._status is not None:
            self._open_or_not()
            self._end()
        elif self._slow:
            self._slow = False
            if self._handler is not None:
                asyncio.get_running_loop().call_soon(self._writable)

    def _put(self, parts: Parts, blocks: Sequence[Block]) -> None:
        """Sends a message, or has it wait in the outbox."""
        size = sum(map(len, parts))
        flag = b"\0" if self._compress_with is None else b"\1"
        self._outbox.append(flag + size.to_bytes(4, "big"))
        self._outbox_bytes += PREFIX_BYTES + size
        self._heap_bytes += PREFIX_BYTES
        wrap = self._connection.sent_memory.wrap
        for part in parts:
            if isinstance(part, bytes):
                self._outbox.append(part)
                self._heap_bytes += len(part)
            elif part:
                self._outbox.append(wrap(part, blocks))
        self.pump()
        if self._outbox:
            self._count()
        if self._outbox_bytes > OUTBOX_BYTES:
            self._slow = True

    def _send_later(
        self, work: Callable[[Keep], Steps[Parts]] | None, blocks: Sequence[Block], parts: Parts = ()
    ) -> bool:
        """Sends what the work makes, or these parts, in its turn. Says that the client is behind."""
        held = [block.hold() for block in blocks]
        if self._outgoing is None:
            self._outgoing = OrderedJobs(self._connection.ingress.offload)
        self._slow = True
        share = self._connection.ingress.heap.share()
        steps = None if work is None else work(share.add)
        self._outgoing.add(steps, functools.partial(self._send_made, parts, held, share))
        return False

    def _send_made(self, parts: Parts, held: list[Block], share: HeapShare, made: Any) -> None:
        # What is in the outbox is counted there.
        share.drop()
        if self._outgoing is not None and not self.closed:
            if isinstance(made, BaseException):
                self._fail(made)
            elif made is not None:
                self._put(made, held if self._compress_with is None else ())
            else:
                self._put(parts, held)
        for block in held:
            block.drop()
        if self._outgoing is not None and not self._outgoing.busy:
            self.pump()

    def _fail(self, error: BaseException) -> None:
        """A job has ended in an error; what was to follow is not sent any more."""
        if not isinstance(error, ServeError):
            log.error("an answer could not be made", exc_info=error)
            error = internal("unexpected error while the answer was encoded; see the server's log")
        self._clear_outbox()
        if self._status is None:
            self._cut_off(error.code.grpc_status, error.message)
        else:
            self._status = (error.code.grpc_status, error.message)

    def _writable(self) -> None:
        if self._handler is not None and not self._slow and self._status is None:
            self._handler.on_writable()

    def _open(self) -> None:
        if not self._opened:
            self._opened = True
            block = OPENING if self._compress_with is None else opening(self._compress_with)
            self._sender.send_head(self.id, block)

    def _open_or_not(self) -> None:
        assert self._status is not None
        block = trailers(*self._status)
        if not self._opened:
            block = OPENING + block
        self._sender.send_head(self.id, block, ends=True)

    def _end(self) -> None:
        """Our side is closed."""
        if not self.half_closed:
            self._sender.write(frames.rst_stream(self.id, frames.NO_ERROR))
        self._release()
        self._connection.forget(self)

    def _maybe_close(self) -> None:
        if not self._outbox and not (self._outgoing is not None and self._outgoing.busy):
            self._release()
            self._connection.forget(self)

    def _clear_outbox(self) -> None:
        self._outbox.clear()
        self._outbox_bytes = self._heap_bytes = 0
        self._wait_no_more()

    def _wait_no_more(self) -> None:
        if self._waits:
            self._waits = False
            self._connection.send_watch.unwatch(self)

    # Receiving

    def _arrived(self, message: Message) -> None:
        """A message is complete; it goes to the handler in its turn, and when it has been prepared."""
        if self._incoming is None and not message.compressed and len(message.data) <= LARGE_BYTES:
            self._take(message)
            return
        turn = Turn(self._connection.ingress, self._method.prepare, message)
        try:
            steps = turn.begin()
            if self._incoming is not None or steps is not None:
                turn.wait()
        except (MessageRefusal, ServeError, Malformed) as error:
            turn.end()
            raise _refusal(error) from None
        if self._incoming is None and steps is None:
            self._take_turn(turn)
            return
        if self._incoming is None:
            self._incoming = OrderedJobs(self._connection.ingress.offload)
        self._incoming.add(steps, functools.partial(self._prepared, turn))

    def _prepared(self, turn: Turn, error: BaseException | None) -> None:
        """Everything has been done to a message, and its turn has come; or that has ended in an error."""
        if error is not None:
            self._refuse(_refusal(error))
        self._take_turn(turn)
        if self._incoming is not None and not self._incoming.busy:
            self._incoming = None
            if self._end_is_due:
                self._end_is_due = False
                self.ended_by_client()
            else:
                self._grant()

    def _take_turn(self, turn: Turn) -> None:
        """Gives the message to the handler, where there is one that wants it."""
        try:
            self._hand_over(turn.message)
        finally:
            turn.end()

    def _take(self, message: Message) -> None:
        try:
            self._hand_over(message)
        finally:
            message.drop()

    def _hand_over(self, message: Message) -> None:
        handler = self._handler
        if handler is not None and self._status is None and not (self._method.unary and self._asked):
            self._asked = True
            handler.on_message(message.data, message.block, message.offset)

    def _watch_or_not(self) -> None:
        """The client has to go on with a message that it has begun, where it may."""
        partial = self._inbox.partial and self._reading and self._status is None
        if partial != self._watched:
            self._watched = partial
            watch = self._connection.stall_watch
            (watch.watch if partial else watch.unwatch)(self)

    def _grant(self) -> None:
        """Lets the client send more, once it has used half of what it may.

        It may send the whole of a large message at once: there is a place for that already.
        """
        if self._reading and not self.half_closed and self._status is None and self._incoming is None:
            window = min(RECEIVE_WINDOW + self._inbox.missing, frames.MAX_WINDOW)
            more = window - self.receive_window
            if more >= RECEIVE_WINDOW // 2:
                self._sender.write(frames.window_update(self.id, more))
                self.receive_window = window

    def _count(self) -> None:
        """Has the heap's account follow what the stream keeps: its metadata, and answers that wait. Raises nothing:
        where there is no memory for it the RPC ends, but not before whoever sends has returned."""
        kept = self._head.nbytes + self._heap_bytes
        more = (kept if kept > FREE_BYTES else 0) - self._counted
        heap = self._connection.ingress.heap
        if more < 0:
            heap.give_back(-more)
        elif more:
            try:
                heap.take(more)
            except ServeError as error:
                asyncio.get_running_loop().call_soon(self.give_up, error)
                return
        self._counted += more

    # The end

    def _expire(self) -> None:
        self._deadline = None
        self._clear_outbox()
        self._cut_off(DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _refuse(self, refusal: MessageRefusal) -> None:
        self._inbox.drop()
        self._cut_off(refusal.status, str(refusal))

    def _cut_off(self, status: int, message: str) -> None:
        """Ends the RPC although its handler has not. The status first: a cancelled request may answer at once."""
        handler = self._handler
        if self._status is None:
            self._drop_jobs()
            self.finish(status, message)
            if handler is not None:
                handler.on_cancel()

    def _drop_all(self) -> None:
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
        self._clear_outbox()
        self._inbox.drop()
        self._drop_jobs()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._watched:
            self._watched = False
            self._connection.stall_watch.unwatch(self)
        if self._counted:
            self._connection.ingress.heap.give_back(self._counted)
            self._counted = 0

    def _drop_jobs(self) -> None:
        outgoing, self._outgoing = self._outgoing, None
        for jobs in (outgoing, self._incoming):
            if jobs is not None:
                jobs.drop()


def _refusal(error: BaseException) -> MessageRefusal:
    """The end of an RPC whose message could not be taken."""
    if isinstance(error, MessageRefusal):
        return error
    if isinstance(error, ServeError):
        return MessageRefusal(error.code.grpc_status, error.message)
    if isinstance(error, Malformed):
        return MessageRefusal(error.status, error.text)
    log.error("a message could not be prepared", exc_info=error)
    return MessageRefusal(INTERNAL, "unexpected error while the request was handled; see the server's log")
