"""The receiving half of a stream: puts the client's bytes together to messages for the RPC's handler.

A whole message is taken at once. A message in parts is put together (`message`), and a long or compressed message is
decoded (`message_decoder`). The client may send a window ahead of that, and must go on with a message once begun.
"""

from __future__ import annotations

import logging

from stubserve.errors import ServeError
from stubserve.grpc.http2 import frames
from stubserve.grpc.http2.endpoint import Endpoint
from stubserve.grpc.http2.frames import StreamFault
from stubserve.grpc.http2.heads import RpcHead
from stubserve.grpc.http2.message import PREFIX_BYTES, Message, PartialMessage, check_prefix
from stubserve.grpc.http2.message_decoder import MessageDecoder
from stubserve.grpc.http2.writer import FrameWriter
from stubserve.grpc.transport import DEADLINE_EXCEEDED, INTERNAL, Handler, Method, end_of
from stubserve.grpc.wire import Malformed
from stubserve.inference.long_work import LARGE_BYTES
from stubserve.memory.blocks import Block

log = logging.getLogger("stubserve.grpc")

# The bytes that a client may send on a stream before the server has taken them
RECEIVE_WINDOW = 2 << 20


class ReceiveStream:
    """The received side of a stream. `receive_window` is what the client may still send."""

    __slots__ = (
        "_asked",
        "_decoder",
        "_endpoint",
        "_handler",
        "_head",
        "_method",
        "_partial",
        "_reading",
        "_status",
        "_watched",
        "_writer",
        "bytes_received",
        "half_closed",
        "id",
        "receive_window",
    )

    def __init__(self, endpoint: Endpoint, writer: FrameWriter, id: int, head: RpcHead, method: Method) -> None:
        self.id = id
        self._endpoint = endpoint
        self._writer = writer
        self._head = head
        self._method = method
        self._handler: Handler | None = None
        # The RPC's end, None while it goes on
        self._status: tuple[int, str] | None = None
        # The current message, messages that wait, and whether the client is watched
        self._partial: PartialMessage | None = None
        self._decoder: MessageDecoder | None = None
        self._watched = False
        self.bytes_received = 0
        self.receive_window = RECEIVE_WINDOW
        self._reading = True
        self._asked = False
        self.half_closed = False

    # Called by the connection

    def data_received(self, data: memoryview) -> None:
        """Takes the payload of a DATA frame, or a part of it."""
        self.bytes_received += len(data)
        at, end = 0, len(data)
        try:
            # Stops once the RPC has its answer: nobody would give back the memory of later messages.
            while at < end and self._status is None:
                partial = self._partial
                if partial is None:
                    behind = at + PREFIX_BYTES
                    if behind <= end:
                        length = int.from_bytes(data[at + 1 : behind], "big")
                        if behind + length <= end:
                            # The usual case: all of it is here.
                            flag = data[at]
                            at = behind + length
                            if flag or length > self._method.max_bytes:
                                check_prefix(flag, length, self._head.encoding, self._method.max_bytes)
                            content = bytes(data[behind:at])
                            if flag or length > LARGE_BYTES or self._decoder is not None:
                                self._take(Message(content, None, 0, flag == 1))
                            else:
                                self._pass_on(content, None, 0)
                            continue
                    partial = self._partial = PartialMessage(
                        self._endpoint, self._writer, self, self._head.encoding, self._method.max_bytes
                    )
                at = partial.feed(data, at)
                if partial.complete:
                    self._partial = None
                    self._take(partial.finish())
        except (Malformed, ServeError) as error:
            self._refuse(error)
        has_part = self._partial is not None
        if has_part != self._watched:
            self._watch_or_not()
        if has_part or not self._method.unary:
            self._grant()

    def trailers_received(self, trailers: RpcHead, ends: bool) -> None:
        """Trailers, which gRPC clients do not send, end the stream all the same. Raises StreamFault."""
        if self.half_closed:
            raise StreamFault(self.id, frames.STREAM_CLOSED, "headers on a stream that is closed")
        if not ends or trailers.trailer_fault:
            fault = trailers.trailer_fault or "trailers that do not end the stream"
            raise StreamFault(self.id, frames.PROTOCOL_ERROR, fault)
        self.ended_by_client()

    def ended_by_client(self) -> None:
        self.half_closed = True
        if self._status is not None or (self._decoder is not None and self._decoder.busy):
            return
        if self._handler is not None:
            if self._partial is not None or (self._method.unary and not self._asked):
                self._cut_off(INTERNAL, "Unable to parse request")
            elif not self._method.unary:
                self._handler.on_half_close()

    # Called by the watches

    def stalled(self) -> None:
        """The client has begun a message and does not send the rest, or sends it too slowly."""
        log.info(
            "ending an RPC whose message did not arrive completely: it fell behind --request-min-rate=%d or took "
            "longer than --request-timeout-secs=%d",
            *self._endpoint.slow_clients.pace,
        )
        self._cut_off(DEADLINE_EXCEEDED, "the request did not arrive completely")

    def give_up(self, error: ServeError) -> None:
        """Other requests need the memory of the current message."""
        raise NotImplementedError

    # Called by the service

    def pause_reading(self) -> None:
        self._reading = False
        self._watch_or_not()

    def resume_reading(self) -> None:
        self._reading = True
        self._watch_or_not()
        self._grant()

    def _take(self, message: Message) -> None:
        """Takes a complete message. Raises Malformed and ServeError."""
        decoder = self._decoder
        waits = decoder is not None and decoder.busy
        if waits or message.compressed or len(message.data) > LARGE_BYTES:
            if decoder is None:
                decoder = self._decoder = MessageDecoder(
                    self._endpoint.server, self._method.rewrite, self._pass_on, self._none_waits
                )
            decoder.add(message)
            return
        try:
            self._pass_on(message.data, message.block, message.offset)
        finally:
            message.drop()

    def _pass_on(self, data: bytes | memoryview, block: Block | None, offset: int) -> None:
        handler = self._handler
        if handler is not None and self._status is None and not (self._method.unary and self._asked):
            self._asked = True
            handler.on_message(data, block, offset)

    def _none_waits(self, error: BaseException | None) -> None:
        """All waiting messages are passed on, or one of them could not be taken."""
        if error is not None:
            self._refuse(error)
        elif self.half_closed:
            self.ended_by_client()
        else:
            self._grant()

    def _refuse(self, error: BaseException) -> None:
        self._drop_partial()
        self._cut_off(*end_of(error))

    def _grant(self) -> None:
        """Lets the client send more once it has used half of its window, and at once the whole of a large message."""
        if not self._reading or self.half_closed or self._status is not None:
            return
        if self._decoder is not None and self._decoder.busy:
            return
        missing = 0 if self._partial is None else self._partial.missing
        more = min(RECEIVE_WINDOW + missing, frames.MAX_WINDOW) - self.receive_window
        if more >= RECEIVE_WINDOW // 2:
            self._writer.write(frames.window_update(self.id, more))
            self.receive_window += more

    def _watch_or_not(self) -> None:
        """Watches a client that has begun a message and may go on with it."""
        watched = self._partial is not None and self._reading and self._status is None
        if watched != self._watched:
            self._watched = watched
            clients = self._endpoint.slow_clients
            (clients.watch_receiver if watched else clients.unwatch_receiver)(self)

    def _drop_partial(self) -> None:
        partial, self._partial = self._partial, None
        if partial is not None:
            partial.drop()

    def _cut_off(self, status: int, message: str) -> None:
        """Ends the RPC although its handler has not."""
        raise NotImplementedError
