"""Messages of one stream that need work before their handler gets them.

Compressed messages are decompressed, and large messages get the form that their method wants (`Method.prepare`). The
result is in the arena if its size belongs there. Long work is done in steps (`OrderedJobs`); later messages wait.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from stubserve_stub.wire.layout import ALIGNMENT

from stubserve.api.inference_server import InferenceServer
from stubserve.connections.arrival import Content
from stubserve.grpc.http2.compression import inflate, short_content
from stubserve.grpc.http2.incoming import Message
from stubserve.grpc.infer_decode import first_raw
from stubserve.grpc.transport import Making, Parts, Prepare
from stubserve.inference.long_work import LARGE_BYTES, LongWork, OrderedJobs
from stubserve.memory.blocks import Block
from stubserve.memory.heap_account import HeapShare

# Copied in one step
_COPIED_BYTES = 1 << 20


class PreparedMessages:
    """The messages of one stream, in their order.

    `take` gets each; the message is promised until `take` returns. `over` is called when no message waits any more, or
    with the error of a message that could not be prepared; no message follows that.
    """

    def __init__(
        self,
        server: InferenceServer,
        prepare: Prepare | None,
        take: Callable[[bytes | memoryview, Block | None, int], None],
        over: Callable[[BaseException | None], None],
    ) -> None:
        self._server = server
        self._prepare = prepare
        self._take = take
        self._over = over
        self._jobs = OrderedJobs(server.offload)
        self._dropped = False

    @property
    def busy(self) -> bool:
        """Whether a message waits, so that later messages have to wait as well."""
        return self._jobs.busy

    def add(self, message: Message) -> None:
        """Takes a complete message. Raises Malformed and ServeError."""
        preparation = Preparation(self._server, self._prepare, message)
        busy = self._jobs.busy
        try:
            steps = preparation.begin()
            if busy or steps is not None:
                preparation.wait()
        except BaseException:
            preparation.end()
            raise
        if busy or steps is not None:
            self._jobs.add(steps, functools.partial(self._prepared, preparation))
        else:
            self._pass_on(preparation)

    def drop(self) -> None:
        self._dropped = True
        self._jobs.drop()

    def _prepared(self, preparation: Preparation, error: BaseException | None) -> None:
        """The turn of a message has come: its work is done, has failed with `error`, or nobody wants it any more."""
        if error is not None or self._dropped:
            preparation.end()
            if error is not None:
                self._over(error)
            return
        self._pass_on(preparation)
        if not self._jobs.busy:
            self._over(None)

    def _pass_on(self, preparation: Preparation) -> None:
        try:
            data, block, offset, _ = preparation.message
            self._take(data, block, offset)
        finally:
            preparation.end()


class Preparation:
    """The work on one message. `message` is its current form."""

    def __init__(self, server: InferenceServer, prepare: Prepare | None, message: Message) -> None:
        self._server = server
        self._prepare = prepare
        self.message = message
        # The message's bytes in the heap, and the place where its next form is being written
        self._share: HeapShare = server.heap.share()
        self._placed: Message | None = None
        self._content: Content | None = None

    def begin(self) -> LongWork[None] | None:
        """The work; None if it was little, and is done. Raises Malformed and ServeError, as the steps do."""
        message = self.message
        limit = self._server.max_input_size
        if message.compressed:
            content = short_content(message.data, min(limit, LARGE_BYTES)) if len(message.data) <= LARGE_BYTES else None
            if content is None:
                return self._inflate(limit)
            self._is_now(Message(content))
        return self._prepared()

    def wait(self) -> None:
        """The message has to wait for others. Raises ServeError if memory is short."""
        if self.message.block is None:
            self._share.add(len(self.message.data))

    def end(self) -> None:
        """The message has been taken, or nobody wants it."""
        self.message.drop()
        if self._placed is not None:
            self._placed.drop()
        if self._content is not None:
            self._content.drop()
        self._share.drop()

    def _inflate(self, limit: int) -> LongWork[None]:
        yield from inflate(self.message.data, limit, self._add)
        content = self._content
        if content is None:
            self._is_now(Message(b""))
        else:
            placed = Message(content.finish(), content.block, content.offset)
            self._content = None
            self._is_now(placed)
        further = self._prepared()
        if further is not None:
            yield from further

    def _add(self, piece: bytes) -> None:
        """Takes a piece of the content. Raises ServeError if the arena has no place for it."""
        if self._content is None:
            start = -first_raw(memoryview(piece)) % ALIGNMENT
            self._content = Content(self._server.arrivals.memory, self._server.max_input_size, start)
        self._content.add(piece)

    def _prepared(self) -> LongWork[None] | None:
        data = self.message.data
        work = self._prepare(data) if self._prepare is not None and len(data) > LARGE_BYTES else None
        return None if work is None else self._rewrite(work)

    def _rewrite(self, work: Making) -> LongWork[None]:
        """Replaces the message by the work's result. Raises ServeError if the arena has no place for it."""
        pieces: Parts = yield from work(self._share.add)
        size = sum(map(len, pieces))
        beginning = b"".join((pieces[0], *(piece[:ALIGNMENT] for piece in pieces[1:2])))
        start = -first_raw(memoryview(beginning)) % ALIGNMENT
        block = self._server.block(start + size)
        placed = self._placed = Message(block.view[start : start + size], block, block.offset + start)
        view = memoryview(placed.data)
        end = 0
        for piece in pieces:
            for at in range(0, len(piece), _COPIED_BYTES):
                part = piece[at : at + _COPIED_BYTES]
                begin, end = end, end + len(part)
                view[begin:end] = part
                yield None
        self._placed = None
        self._is_now(placed)

    def _is_now(self, message: Message) -> None:
        self.message.drop()
        self.message = message
