"""One RPC on a connection: a `transport.Rpc` for the service, and an HTTP/2 stream for the client.

`receive_stream` takes what the client sends. Answers leave at once if they can, and else through an `outbox`. This
module has what both directions share: the handler, the deadline, and the end of an RPC, from whichever side. A usual
unary RPC makes only this object, and leaves no reference cycle.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from stubserve.errors import ServeError
from stubserve.grpc.http2 import frames
from stubserve.grpc.http2.endpoint import Endpoint
from stubserve.grpc.http2.heads import OPENING, RpcHead, trailers
from stubserve.grpc.http2.outbox import Outbox
from stubserve.grpc.http2.receive_stream import ReceiveStream
from stubserve.grpc.http2.writer import FrameWriter
from stubserve.grpc.transport import (
    CANCELLATION_LINE,
    CANCELLED,
    DEADLINE_EXCEEDED,
    OK,
    REQUEST_LINE,
    Answer,
    Metadata,
    Method,
)
from stubserve.memory.blocks import Block
from stubserve.memory.heap_account import FREE_BYTES, HeapShare

log = logging.getLogger("stubserve.grpc")


class Http2Stream(ReceiveStream):
    """A stream that the client has opened, and with it the RPC's handler.

    `on_closed` is called when both sides are closed, which may be at once. `widened` is what the client takes beyond
    its initial window; below 0 it has used up part of that window.
    """

    __slots__ = (
        "_deadline",
        "_encoding",
        "_heap_share",
        "_on_closed",
        "_outbox",
        "closed",
        "widened",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        writer: FrameWriter,
        on_closed: Callable[[Http2Stream], None],
        id: int,
        head: RpcHead,
        method: Method,
    ) -> None:
        super().__init__(endpoint, writer, id, head, method)
        self._on_closed = on_closed
        self._deadline: asyncio.TimerHandle | None = None
        # The share of metadata that are not small
        self._heap_share: HeapShare | None = None
        self.widened = 0
        encoding = endpoint.encoding
        self._encoding = encoding if encoding is not None and method.infers and encoding in head.accepts else None
        self._outbox: Outbox | None = None
        # Whether both sides are closed
        self.closed = False
        log.debug(REQUEST_LINE, head.path)
        if head.nbytes > FREE_BYTES:
            self._heap_share = endpoint.server.heap.share()
            try:
                self._heap_share.add(head.nbytes)
            except ServeError as error:
                asyncio.get_running_loop().call_soon(self.give_up, error)
        if head.timeout_s is not None:
            self._deadline = asyncio.get_running_loop().call_later(head.timeout_s, self._expire)
        handler = method.open(self)
        if not self.closed:  # else the RPC has been refused, and handler and stream would refer to each other
            self._handler = handler

    # Called by the connection

    def reset_by_client(self) -> None:
        """The client has cancelled the RPC, has gone, or broke the protocol."""
        self.half_closed = True
        running = self._status is None
        if running:
            log.debug(CANCELLATION_LINE, self._head.path)
            self._status = (CANCELLED, "")
        handler = self._handler
        self._close()
        if handler is not None and running:
            handler.on_cancel()

    def pump(self) -> None:
        """Sends what may be sent, and then, if nothing is left, the trailers."""
        if self.closed or (self._outbox is not None and not self._outbox.pump()):
            return
        if self._status is not None:
            block = trailers(*self._status)
            if self._outbox is None or not self._outbox.opened:
                block = OPENING + block
            self._writer.send_head(self.id, block, ends=True)
            self._close()

    # Called by the watches

    def give_up(self, error: ServeError) -> None:
        """Other requests need the memory of the current message, or of the answer that is not read."""
        if self.closed:
            return
        log.info("ending an RPC: %s", error.message)
        self._drop_partial()
        self._clear_outbox()
        self.fail(error.code.grpc_status, error.message)

    # Called by the service

    @property
    def peer(self) -> str:
        return self._writer.peer

    @property
    def ended(self) -> int | None:
        return None if self._status is None else self._status[0]

    def metadata(self) -> Metadata:
        return self._head.metadata

    def reply(self, answer: Answer, blocks: Sequence[Block]) -> None:
        if self._status is not None:
            return
        if (
            self._encoding is None
            and self._outbox is None
            and not callable(answer)
            and self._writer.send_whole(self.id, self.widened, sum(map(len, answer)), answer)
        ):
            self._status = (OK, "")
            self._close()
        else:
            self.send(answer, blocks)
            self.finish(OK)

    def send(self, answer: Answer, blocks: Sequence[Block]) -> bool:
        if self._status is not None:
            return True
        if self._outbox is None:
            self._outbox = Outbox(self._endpoint, self._writer, self, self._encoding)
        return self._outbox.send(answer, blocks)

    def finish(self, status: int, message: str = "") -> None:
        if self._status is None:
            self._status = (status, message)
            if status != OK and self._method.unary:
                self._clear_outbox()
            self.pump()

    # Called by the outbox

    def writable(self) -> None:
        if self._handler is not None and self._status is None:
            self._handler.on_writable()

    def fail(self, status: int, text: str) -> None:
        """Ends the RPC with an error, even after its last message."""
        if self._status is None:
            self._cut_off(status, text)
        else:
            self._drop_jobs()
            self._status = (status, text)
            self.pump()

    # The end

    def _expire(self) -> None:
        self._deadline = None
        self._clear_outbox()
        self._cut_off(DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _cut_off(self, status: int, message: str) -> None:
        """Ends the RPC although its handler has not. Sets the status first: a cancelled request may answer at once."""
        handler = self._handler
        if self._status is None:
            self._drop_jobs()
            self.finish(status, message)
            if handler is not None:
                handler.on_cancel()

    def _close(self) -> None:
        """Our side is closed, and the client's side with it."""
        if not self.half_closed:
            self._writer.write(frames.rst_stream(self.id, frames.NO_ERROR))
        self.closed = True
        self._handler = None
        if self._partial is not None:
            self._drop_partial()
        if self._watched:
            self._watch_or_not()
        if self._outbox is not None or self._decoder is not None:
            self._clear_outbox()
            self._drop_jobs()
            # The stream drops the objects that refer to it.
            self._outbox = self._decoder = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._heap_share is not None:
            self._heap_share.drop()
        self._on_closed(self)

    def _clear_outbox(self) -> None:
        if self._outbox is not None:
            self._outbox.clear()

    def _drop_jobs(self) -> None:
        if self._outbox is not None:
            self._outbox.drop_jobs()
        if self._decoder is not None:
            self._decoder.drop()
