"""A message that a client sends on a stream, put together from its parts.

A short message is bytes, and takes memory as it comes; all unfinished short messages share a bounded part of the heap.
Any other is received into the arena by the rules of `connections.receive_buffers`: the length that its prefix
claims takes no memory from others. It is placed so that its first raw tensor is aligned.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from stubserve_stub.wire.layout import ALIGNMENT

from stubserve.connections.receive_buffers import ArenaBuffer
from stubserve.connections.slow_clients import Owner
from stubserve.grpc.http2.endpoint import Endpoint
from stubserve.grpc.infer_decode import first_raw
from stubserve.grpc.transport import INTERNAL, MAX_MESSAGE_BYTES, RESOURCE_EXHAUSTED, UNIMPLEMENTED
from stubserve.grpc.wire import Malformed
from stubserve.memory.blocks import Block

PREFIX_BYTES = 5
# Longer messages go to the arena; so do short messages when the heap's part is full.
SHORT_BYTES = 64 * 1024
# Steps in which a buffer is told what has come: looking at the clock for each frame costs more than copying it.
_REPORTED_BYTES = 128 * 1024


class MessageRefusal(Malformed):
    """The stream's messages cannot be taken; the RPC ends with `status`."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Message(NamedTuple):
    """One message. If it lies in the arena, `block` is held once, for the taker of the message."""

    data: bytes | memoryview
    block: Block | None = None
    offset: int = 0
    compressed: bool = False

    def drop(self) -> None:
        if self.block is not None:
            self.block.drop()


def check_prefix(flag: int, length: int, encoding: str, max_bytes: int) -> None:
    """Raises MessageRefusal for a message that cannot be taken; `encoding` is that of compressed messages."""
    if flag > 1:
        raise MessageRefusal(INTERNAL, f"a message begins with the byte {flag}, where 0 means plain and 1 compressed")
    if flag and encoding == "identity":
        raise MessageRefusal(INTERNAL, "a message is marked as compressed, but the call has no grpc-encoding")
    if flag and encoding not in ("gzip", "deflate"):
        raise MessageRefusal(UNIMPLEMENTED, f"Unsupported grpc-encoding: {encoding}")
    if length > max_bytes:
        raise MessageRefusal(RESOURCE_EXHAUSTED, f"Received message larger than max ({length} vs. {max_bytes})")


class PartialMessage:
    """A message that has arrived in part. While it arrives it counts for `connection`, and `owner` gives it up."""

    def __init__(
        self,
        endpoint: Endpoint,
        connection: Hashable,
        owner: Owner,
        encoding: str = "identity",
        max_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self._endpoint = endpoint
        self._connection = connection
        self._owner: Owner | None = owner
        self._encoding = encoding
        self._max_bytes = max_bytes
        self._prefix = b""
        # The length, -1 before it is known; the bytes that have come, and where they are
        self._length = -1
        self._filled = 0
        self._short: bytearray | None = None
        self._buffer: ArenaBuffer | None = None
        self._ready = 0
        self._compressed = False

    @property
    def complete(self) -> bool:
        return self._filled == self._length

    @property
    def missing(self) -> int:
        """The bytes still to come of a message for the arena; 0 for a short message."""
        return 0 if self._buffer is None else self._length - self._filled

    def feed(self, data: memoryview, at: int) -> int:
        """Takes this message's part of the payload of a DATA frame, from `at` on; the position behind it.

        Raises MessageRefusal, and ServeError if memory is short.
        """
        if self._length < 0:
            prefix = data[at : at + PREFIX_BYTES - len(self._prefix)]
            self._prefix += bytes(prefix)
            at += len(prefix)
            if len(self._prefix) < PREFIX_BYTES:
                return at
            self._begin(data[at:])
        part = data[at : at + self._length - self._filled]
        if self._short is not None:
            self._short += part
        elif part:
            self._place(part)
        self._filled += len(part)
        return at + len(part)

    def finish(self) -> Message:
        """The message, when it is complete."""
        buffer = self._buffer
        if buffer is None:
            assert self._short is not None
            message = Message(bytes(self._short), None, 0, self._compressed)
        else:
            message = Message(buffer.view, buffer.block, buffer.offset, self._compressed)
        self._forget()
        return message

    def drop(self) -> None:
        buffer = self._buffer
        self._forget()
        if buffer is not None:
            buffer.drop()

    def _forget(self) -> None:
        if self._short is not None:
            self._endpoint.short_messages_left += self._length
        self._short = self._buffer = self._owner = None

    def _begin(self, beginning: memoryview) -> None:
        flag, length = self._prefix[0], int.from_bytes(self._prefix[1:], "big")
        check_prefix(flag, length, self._encoding, self._max_bytes)
        self._compressed = flag == 1
        if length <= SHORT_BYTES and length <= self._endpoint.short_messages_left:
            self._endpoint.short_messages_left -= length
            self._short = bytearray()
        else:
            start = 0 if flag else -first_raw(beginning) % ALIGNMENT
            assert self._owner is not None
            buffers = self._endpoint.server.receive_buffers
            self._buffer = buffers.arena_buffer(self._connection, self._owner, length, start)
            self._ready = self._buffer.ready
        self._length = length

    def _place(self, data: memoryview) -> None:
        """Writes a part into the arena. Raises ServeError."""
        buffer = self._buffer
        assert buffer is not None
        end = self._filled + len(data)
        if end > self._ready:
            buffer.advance(self._filled - buffer.moved)
            buffer.add(data)
        else:
            buffer.view[self._filled : end] = data
            if end - buffer.moved < _REPORTED_BYTES and end < self._length:
                return
            buffer.advance(end - buffer.moved)
        self._ready = buffer.ready
