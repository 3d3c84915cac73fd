"""A message on its way from the wire to the handler, where something has to be done to it before.

It may have to be decompressed, and its method may want it in another form (`Method.prepare`). What comes out of that is
placed in the arena, where a message of its size belongs.
"""

from __future__ import annotations

from collections.abc import Callable

from stubserve_stub.wire.layout import ALIGNMENT

from stubserve.api.inference_server import InferenceServer
from stubserve.grpc.http2.compression import inflate, short_content
from stubserve.grpc.http2.inbox import Message
from stubserve.grpc.infer_decode import first_raw
from stubserve.grpc.transport import Keep, Parts, Prepare
from stubserve.inference.long_work import LARGE_BYTES, LongWork
from stubserve.memory.heap_account import HeapShare

# What is copied in one step.
_COPIED_BYTES = 1 << 20


class Turn:
    """The turn of one message. `message` is what it has become so far."""

    __slots__ = ("_placed", "_prepare", "_server", "_share", "message")

    def __init__(self, server: InferenceServer, prepare: Prepare | None, message: Message) -> None:
        self._server = server
        self._prepare = prepare
        self.message = message
        # What is kept of it in the heap, and where the next form of it is being written
        self._share: HeapShare = server.heap.share()
        self._placed: Message | None = None

    def begin(self) -> LongWork[None] | None:
        """What is to be done; None where that was little, and is done.

        Raises MessageRefusal, ServeError and Malformed, as the steps do.
        """
        message = self.message
        limit = self._server.max_input_size
        if message.compressed:
            content = short_content(message.data, min(limit, LARGE_BYTES)) if len(message.data) <= LARGE_BYTES else None
            if content is None:
                return self._inflate(limit)
            self._is_now(Message(content))
        return self._prepared()

    def wait(self) -> None:
        """It has to wait for others. Raises ServeError where there is no memory for that."""
        if self.message.block is None:
            self._share.add(len(self.message.data))

    def end(self) -> None:
        """It has been taken, or nobody wants it."""
        self.message.drop()
        if self._placed is not None:
            self._placed.drop()
        self._share.drop()

    def _inflate(self, limit: int) -> LongWork[None]:
        pieces = yield from inflate(self.message.data, limit, self._share.add)
        yield from self._become(pieces)
        further = self._prepared()
        if further is not None:
            yield from further

    def _prepared(self) -> LongWork[None] | None:
        data = self.message.data
        work = self._prepare(data) if self._prepare is not None and len(data) > LARGE_BYTES else None
        return None if work is None else self._rewrite(work)

    def _rewrite(self, work: Callable[[Keep], LongWork[Parts]]) -> LongWork[None]:
        pieces = yield from work(self._share.add)
        yield from self._become(pieces)

    def _become(self, pieces: Parts) -> LongWork[None]:
        """Has the pieces be the message. Raises ServeError where the arena has no place for them."""
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
