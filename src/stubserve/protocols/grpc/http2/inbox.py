"""What a client sends on one stream, put together to messages.

A small message is bytes, and takes memory as it comes. A large one is received into a block of the arena as long as its
prefix says, so what a client can make the server hold is bounded by the arena's limit; and it is placed so that its
first raw tensor is aligned.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import NamedTuple

from stubserve_stub.wire.layout import ALIGNMENT

from stubserve.errors import ServeError
from stubserve.inference.memory import Block
from stubserve.protocols.grpc.envelope import first_raw
from stubserve.protocols.grpc.infer_encode import MAX_MESSAGE_BYTES
from stubserve.protocols.serving import Ingress

PREFIX_BYTES = 5
# Longer messages go to the arena.
SMALL_BYTES = 64 * 1024

_RESOURCE_EXHAUSTED = 8
_UNIMPLEMENTED = 12
_INTERNAL = 13
_DETECT_FORMAT = 32 + zlib.MAX_WBITS


class Refusal(Exception):
    """The stream's messages cannot be taken; ends the RPC with `status`."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Message(NamedTuple):
    """One message. Where it lies in the arena, `block` is held once for whoever takes the message."""

    data: bytes | memoryview
    block: Block | None
    offset: int


class Inbox:
    """One stream's. `encoding` is what its compressed messages are compressed with."""

    __slots__ = (
        "_block",
        "_compressed",
        "_encoding",
        "_filled",
        "_ingress",
        "_length",
        "_offset",
        "_prefix",
        "_small",
        "_view",
        "received",
    )

    def __init__(self, ingress: Ingress, encoding: str) -> None:
        self._ingress = ingress
        self._encoding = encoding
        self._prefix = b""
        # The message at hand: its length, -1 between messages, what has come of it, and where that is
        self._length = -1
        self._filled = 0
        self._small: bytearray | None = None
        self._view: memoryview | None = None
        self._block: Block | None = None
        self._offset = 0
        self._compressed = False
        # All bytes so far
        self.received = 0

    @property
    def partial(self) -> bool:
        """Whether a message has begun to arrive."""
        return self._length >= 0 or bool(self._prefix)

    @property
    def missing(self) -> int:
        """What is still to come of the large message at hand; 0 without one."""
        return 0 if self._view is None else self._length - self._filled

    def feed(self, data: memoryview) -> Iterator[Message]:
        """Takes the payload of a DATA frame; gives the messages that it completes. Raises Refusal."""
        self.received += len(data)
        at, end = 0, len(data)
        while at < end:
            if self._length < 0:
                if self._prefix or end - at < PREFIX_BYTES:
                    missing = PREFIX_BYTES - len(self._prefix)
                    self._prefix += bytes(data[at : at + missing])
                    at += missing
                    if len(self._prefix) < PREFIX_BYTES:
                        return
                    prefix: bytes | memoryview = self._prefix
                    self._prefix = b""
                else:
                    prefix = data[at : at + PREFIX_BYTES]
                    at += PREFIX_BYTES
                length = int.from_bytes(prefix[1:], "big")
                self._compressed = self._is_compressed(prefix[0])
                if length <= end - at:
                    # All of it is here; the usual case.
                    yield self._complete(Message(bytes(data[at : at + length]), None, 0))
                    at += length
                    continue
                self._begin(length, data[at:end])
            take = min(self._length - self._filled, end - at)
            if self._view is not None:
                self._view[self._filled : self._filled + take] = data[at : at + take]
            else:
                assert self._small is not None
                self._small += data[at : at + take]
            self._filled += take
            at += take
            if self._filled == self._length:
                content = self._view if self._small is None else bytes(self._small)
                assert content is not None
                message = Message(content, self._block, self._offset)
                self._forget()
                yield self._complete(message)

    def drop(self) -> None:
        """Nothing more comes."""
        block = self._block
        self._forget()
        if block is not None:
            block.drop()

    def _forget(self) -> None:
        """The message at hand is somebody else's now, or nobody's."""
        self._length = -1
        self._small = self._view = self._block = None

    def _is_compressed(self, flag: int) -> bool:
        if flag > 1:
            raise Refusal(_INTERNAL, f"a message begins with the byte {flag}, where 0 means plain and 1 compressed")
        if flag and self._encoding == "identity":
            raise Refusal(_INTERNAL, "a message is marked as compressed, but the call has no grpc-encoding")
        if flag and self._encoding not in ("gzip", "deflate"):
            raise Refusal(_UNIMPLEMENTED, f"Unsupported grpc-encoding: {self._encoding}")
        return flag == 1

    def _begin(self, length: int, beginning: memoryview) -> None:
        if length > MAX_MESSAGE_BYTES:
            raise Refusal(_RESOURCE_EXHAUSTED, f"Received message larger than max ({length} vs. {MAX_MESSAGE_BYTES})")
        if length > SMALL_BYTES:
            self._find_place(length, beginning)
        else:
            self._small = bytearray()
        self._length = length
        self._filled = 0

    def _find_place(self, length: int, beginning: memoryview) -> None:
        start = 0 if self._compressed else -first_raw(beginning) % ALIGNMENT
        try:
            self._block = self._ingress.block(start + length)
        except ServeError as error:
            raise Refusal(error.code.grpc_status, error.message) from None
        self._view = self._block.view[start : start + length]
        self._offset = self._block.offset + start

    def _complete(self, message: Message) -> Message:
        if not self._compressed:
            return message
        limit = self._ingress.max_input_size
        try:
            stream = zlib.decompressobj(_DETECT_FORMAT)
            content = stream.decompress(message.data, limit + 1)
        except zlib.error as error:
            raise Refusal(_INTERNAL, f"a message cannot be decompressed: {error}") from None
        finally:
            if message.block is not None:
                message.block.drop()
        if len(content) > limit:
            raise Refusal(
                _RESOURCE_EXHAUSTED,
                f"Decompressed data size exceeds the maximum allowed value of {limit} bytes. "
                "Use --http-max-input-size to increase the limit.",
            )
        if not stream.eof:
            raise Refusal(_INTERNAL, "a message cannot be decompressed: the compressed data ends early")
        return Message(content, None, 0)
