"""Answers on one stream that its client has still to take.

Here wait, in order, the bytes that the client's windows do not let through, and answers that are still being made:
compressing an answer, or writing a long one, is done in steps (`OrderedJobs`), and later answers wait for their turn. A
stream with one answer that leaves at once (`FrameWriter.send_whole`) never has an outbox.

Guarantees: nothing overtakes anything; bytes in the heap are counted in its account; the sender is told that the client
is behind once OUTBOX_BYTES wait, and when it has caught up; a client that takes nothing is watched (`slow_clients`).
"""

from __future__ import annotations

import asyncio
import functools
import zlib
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from stubserve.errors import ServeError, unavailable
from stubserve.grpc.http2.endpoint import Endpoint
from stubserve.grpc.http2.heads import OPENING, opening
from stubserve.grpc.http2.message import PREFIX_BYTES
from stubserve.grpc.http2.writer import FrameWriter
from stubserve.grpc.transport import Answer, Keep, Parts, end_of
from stubserve.inference.long_work import LARGE_BYTES, LongWork, OrderedJobs, finish, uncounted
from stubserve.memory.blocks import Block
from stubserve.memory.heap_account import FREE_BYTES, HeapShare

# So many bytes may wait for a client before it counts as slow.
OUTBOX_BYTES = 1 << 20
# Compressed in one step
_INPUT_BYTES = 256 * 1024
_FORMAT = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


class OutboxOwner(Protocol):
    """An outbox's stream. `widened` is what the client takes beyond its initial window.

    A protocol, because the stream makes the outbox and imports point one way.
    """

    id: int
    widened: int

    def pump(self) -> None:
        """Sends what may be sent."""

    def writable(self) -> None:
        """The client has caught up."""

    def give_up(self, error: ServeError) -> None: ...

    def fail(self, status: int, text: str) -> None:
        """An answer could not be made; the answers after it are gone."""


class Outbox:
    """The outbox of one stream; `encoding` compresses its messages, `opened` says that its headers have left.

    `unsent` is the bytes that the client has not taken or not let in.
    """

    def __init__(self, endpoint: Endpoint, writer: FrameWriter, stream: OutboxOwner, encoding: str | None) -> None:
        self._endpoint = endpoint
        self._writer = writer
        self._stream = stream
        self._encoding = encoding
        self.opened = False
        self._pieces: deque[bytes | memoryview] = deque()
        self.unsent = 0
        self._waits = False
        self._slow = False
        self._jobs: OrderedJobs | None = None
        # Bytes in the heap, and those of them that its account counts
        self._heap_bytes = 0
        self._counted = 0

    def send(self, answer: Answer, blocks: Sequence[Block]) -> bool:
        """Takes a message. False if the client is behind, or the message is still to be made."""
        is_behind = self._jobs is not None and self._jobs.busy
        if callable(answer) or is_behind or (self._encoding is not None and sum(map(len, answer)) > LARGE_BYTES):
            self._send_later(answer, blocks)
            return False
        if self._encoding is not None:
            answer, blocks = finish(self._steps(answer, uncounted)), ()
        self._put(answer, blocks)
        return not self._slow

    def _steps(self, answer: Answer, keep: Keep) -> LongWork[Parts]:
        """The work on a message before it is sent."""
        parts: Parts = (yield from answer(keep)) if callable(answer) else answer
        if self._encoding is not None:
            parts = yield from _deflate(parts, self._encoding, self._endpoint.compression_level, keep)
        return parts

    def pump(self) -> bool:
        """Sends what the windows allow. True if nothing is left, and nothing is being made."""
        pieces = self._pieces
        writer = self._writer
        stream = self._stream
        while pieces:
            room = min(writer.stream_window + stream.widened, writer.room())
            if room <= 0:
                break
            frame: list[bytes | memoryview] = []
            length = 0
            while pieces and length < room:
                piece = pieces.popleft()
                if type(piece) is bytes:
                    self._heap_bytes -= len(piece)
                if length + len(piece) > room:
                    rest = memoryview(piece)
                    pieces.appendleft(rest[room - length :])
                    piece = rest[: room - length]
                frame.append(piece)
                length += len(piece)
            if not self.opened:
                self._open()
            writer.send_data(stream.id, length, frame)
            stream.widened -= length
            self.unsent -= length
        if pieces:
            if writer.stream_window + stream.widened > 0:
                writer.waiting[stream.id] = stream.pump
            if not self._waits:
                self._waits = True
                self._endpoint.slow_clients.watch_unread(self)
            return False
        self._wait_no_more()
        if self._counted:
            self._count()
        if self._jobs is not None and self._jobs.busy:
            return False
        if self._slow:
            self._slow = False
            asyncio.get_running_loop().call_soon(stream.writable)
        return True

    def clear(self) -> None:
        self._pieces.clear()
        self.unsent = self._heap_bytes = 0
        self._wait_no_more()
        if self._counted:
            self._count()

    def drop_jobs(self) -> None:
        """Forgets what is being made."""
        jobs, self._jobs = self._jobs, None
        if jobs is not None:
            jobs.drop()

    # For the watch over slow clients

    def give_up(self, error: ServeError) -> None:
        self._stream.give_up(error)

    def send_timed_out(self) -> None:
        self._stream.give_up(unavailable("the client has read nothing of the answer for --send-timeout-secs"))

    def _put(self, parts: Parts, blocks: Sequence[Block]) -> None:
        pieces = self._pieces
        size = sum(map(len, parts))
        flag = b"\0" if self._encoding is None else b"\1"
        pieces.append(flag + size.to_bytes(4, "big"))
        self.unsent += PREFIX_BYTES + size
        if self._waits:
            self._endpoint.slow_clients.wrote_more(self, PREFIX_BYTES + size)
        self._heap_bytes += PREFIX_BYTES
        wrap = self._endpoint.sent_memory.wrap
        for part in parts:
            if isinstance(part, bytes):
                pieces.append(part)
                self._heap_bytes += len(part)
            elif part:
                pieces.append(wrap(part, blocks))
        self.pump()
        if pieces:
            self._count()
        if self.unsent > OUTBOX_BYTES:
            self._slow = True

    def _send_later(self, answer: Answer, blocks: Sequence[Block]) -> None:
        held = [block.hold() for block in blocks]
        server = self._endpoint.server
        if self._jobs is None:
            self._jobs = OrderedJobs(server.offload)
        self._slow = True
        share = server.heap.share()
        steps = self._steps(answer, share.add) if callable(answer) or self._encoding is not None else None
        self._jobs.add(steps, functools.partial(self._send_made, answer, held, share))

    def _send_made(self, answer: Any, held: list[Block], share: HeapShare, made: Any) -> None:
        # The message's bytes are counted here while they wait.
        share.drop()
        if self._jobs is not None:
            if isinstance(made, BaseException):
                self.clear()
                self._stream.fail(*end_of(made, "answer was encoded"))
            else:
                self._put(answer if made is None else made, held if self._encoding is None else ())
        for block in held:
            block.drop()
        if self._jobs is not None and not self._jobs.busy:
            self._stream.pump()

    def _open(self) -> None:
        self.opened = True
        block = OPENING if self._encoding is None else opening(self._encoding)
        self._writer.send_head(self._stream.id, block)

    def _wait_no_more(self) -> None:
        if self._waits:
            self._waits = False
            self._endpoint.slow_clients.unwatch_unread(self)

    def _count(self) -> None:
        """Keeps the heap's account in step. Raises nothing: without memory the RPC ends, after the sender returned."""
        kept = self._heap_bytes
        more = (kept if kept > FREE_BYTES else 0) - self._counted
        heap = self._endpoint.server.heap
        if more < 0:
            heap.give_back(-more)
        elif more:
            try:
                heap.take(more)
            except ServeError as error:
                asyncio.get_running_loop().call_soon(self._stream.give_up, error)
                return
        self._counted += more


def _deflate(parts: Sequence[bytes | memoryview], encoding: str, level: int, keep: Keep) -> LongWork[list[bytes]]:
    """A message's parts, compressed with gRPC's `encoding`."""
    stream = zlib.compressobj(level, wbits=_FORMAT[encoding])
    pieces: list[bytes] = []
    for part in parts:
        for at in range(0, len(part), _INPUT_BYTES):
            piece = yield functools.partial(stream.compress, part[at : at + _INPUT_BYTES])
            keep(len(piece))
            pieces.append(piece)
    pieces.append(stream.flush())
    return pieces
