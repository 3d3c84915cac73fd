"""Decodes the messages of one stream that need work before their handler gets them.

Compressed messages are decompressed. A few kilobytes may stand for gigabytes, so no more of a message is made than its
limit, and each piece is counted before the next is made. Large messages get the form that their method wants
(`Method.rewrite`). The result is in the arena if its size belongs there. Long work is done in steps (`OrderedJobs`);
later messages wait.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable

from stubserve_stub.wire.layout import ALIGNMENT

from stubserve.api.inference_server import InferenceServer
from stubserve.connections.receive_buffers import ContentBuffer
from stubserve.grpc.http2.message import Message, MessageRefusal
from stubserve.grpc.infer_decode import first_raw
from stubserve.grpc.transport import INTERNAL, RESOURCE_EXHAUSTED, Making, Parts, Rewrite
from stubserve.inference.long_work import LARGE_BYTES, LongWork, OrderedJobs
from stubserve.memory.blocks import Block
from stubserve.memory.heap_account import HeapShare

# Compressed input and plain output of one step
_INPUT_BYTES = 256 * 1024
_PIECE_BYTES = 1 << 20
_DETECT_FORMAT = 32 + zlib.MAX_WBITS
# Copied in one step
_COPIED_BYTES = 1 << 20


class MessageDecoder:
    """Decodes the messages of one stream, and hands them on in their order.

    `take` gets each; the message is promised until `take` returns. `done` is called when no message waits any more, or
    with the error of a message that could not be decoded; no message follows that.
    """

    def __init__(
        self,
        server: InferenceServer,
        rewrite: Rewrite | None,
        take: Callable[[bytes | memoryview, Block | None, int], None],
        done: Callable[[BaseException | None], None],
    ) -> None:
        self._server = server
        self._rewrite_message = rewrite
        self._take = take
        self._done = done
        self._jobs = OrderedJobs(server.offload)

    @property
    def busy(self) -> bool:
        """Whether a message waits, so that later messages have to wait as well."""
        return self._jobs.busy

    def add(self, message: Message) -> None:
        """Takes a complete message. Raises Malformed and ServeError."""
        held = _Held(message, self._server.heap.share())
        busy = self._jobs.busy
        try:
            steps = self._work_on(held)
            if (busy or steps is not None) and held.message.block is None:
                held.share.add(len(held.message.data))
        except BaseException:
            held.drop()
            raise
        if busy or steps is not None:
            self._jobs.add(steps, functools.partial(self._worked_on, held))
        else:
            self._pass_on(held)

    def drop(self) -> None:
        self._jobs.drop()

    def _worked_on(self, held: _Held, error: BaseException | None) -> None:
        """The turn of a message has come: its work is done, has failed with `error`, or nobody wants it any more."""
        if error is not None:
            held.drop()
            self._done(error)
        elif self._jobs.dropped:
            held.drop()
        else:
            self._pass_on(held)
            if not self._jobs.busy:
                self._done(None)

    def _pass_on(self, held: _Held) -> None:
        try:
            data, block, offset, _ = held.message
            self._take(data, block, offset)
        finally:
            held.drop()

    def _work_on(self, held: _Held) -> LongWork[None] | None:
        """The work; None if it was little, and is done. Raises Malformed and ServeError, as the steps do."""
        data, limit = held.message.data, self._server.max_input_size
        if not held.message.compressed:
            return self._rewrite(held)
        content = _short_content(data, min(limit, LARGE_BYTES)) if len(data) <= LARGE_BYTES else None
        if content is None:
            return self._decompress(held, limit)
        held.replace(Message(content))
        return None

    def _decompress(self, held: _Held, limit: int) -> LongWork[None]:
        content: ContentBuffer | None = None

        def add(piece: bytes) -> None:
            nonlocal content
            if content is None:
                start = -first_raw(memoryview(piece)) % ALIGNMENT
                content = ContentBuffer(self._server.receive_buffers.memory, limit, start)
            content.add(piece)

        try:
            yield from _inflate(held.message.data, limit, add)
            made = Message(b"") if content is None else Message(content.finish(), content.block, content.offset)
        except BaseException:
            if content is not None:
                content.drop()
            raise
        held.replace(made)
        further = self._rewrite(held)
        if further is not None:
            yield from further

    def _rewrite(self, held: _Held) -> LongWork[None] | None:
        """The work that gives a large message the form that its method wants; None if it has that form."""
        data = held.message.data
        work = self._rewrite_message(data) if self._rewrite_message is not None and len(data) > LARGE_BYTES else None
        return None if work is None else self._place(held, work)

    def _place(self, held: _Held, work: Making) -> LongWork[None]:
        """Replaces the message by the work's result. Raises ServeError if the arena has no place for it."""
        pieces: Parts = yield from work(held.share.add)
        size = sum(map(len, pieces))
        beginning = b"".join((pieces[0], *(piece[:ALIGNMENT] for piece in pieces[1:2])))
        start = -first_raw(memoryview(beginning)) % ALIGNMENT
        block = self._server.block(start + size)
        view = block.view[start : start + size]
        try:
            end = 0
            for piece in pieces:
                for at in range(0, len(piece), _COPIED_BYTES):
                    part = piece[at : at + _COPIED_BYTES]
                    begin, end = end, end + len(part)
                    view[begin:end] = part
                    yield None
        except BaseException:
            block.drop()
            raise
        held.replace(Message(view, block, block.offset + start))


class _Held:
    """A message in its current form, which holds its block, and the `share` of the heap in which it is counted."""

    def __init__(self, message: Message, share: HeapShare) -> None:
        self.message = message
        self.share = share

    def replace(self, message: Message) -> None:
        self.message.drop()
        self.message = message

    def drop(self) -> None:
        """The message has been taken, or nobody wants it."""
        self.message.drop()
        self.share.drop()


def _short_content(data: bytes | memoryview, most: int) -> bytes | None:
    """A message's content; None if it is longer than `most`, or incomplete. Raises MessageRefusal."""
    stream = zlib.decompressobj(_DETECT_FORMAT)
    content = _inflated(stream, data, most + 1)
    return content if stream.eof and len(content) <= most else None


def _inflate(data: bytes | memoryview, limit: int, take: Callable[[bytes], None]) -> LongWork[None]:
    """Hands a message's content to `take` in pieces. Raises MessageRefusal, and ServeError if memory is short."""
    stream = zlib.decompressobj(_DETECT_FORMAT)
    size = at = 0
    while not stream.eof:
        rest: bytes | memoryview = stream.unconsumed_tail
        if not rest:
            rest = data[at : at + _INPUT_BYTES]
            at += _INPUT_BYTES
        # With no input left there may still be output; if there is none, the data end early.
        piece = yield functools.partial(_inflated, stream, rest, _PIECE_BYTES)
        if not piece and not rest:
            raise MessageRefusal(INTERNAL, "a message cannot be decompressed: the compressed data ends early")
        size += len(piece)
        if size > limit:
            raise MessageRefusal(
                RESOURCE_EXHAUSTED,
                f"Decompressed data size exceeds the maximum allowed value of {limit} bytes. "
                "Use --http-max-input-size to increase the limit.",
            )
        take(piece)


def _inflated(stream: zlib._Decompress, data: bytes | memoryview, most: int) -> bytes:
    try:
        return stream.decompress(data, most)
    except zlib.error as error:
        raise MessageRefusal(INTERNAL, f"a message cannot be decompressed: {error}") from None
