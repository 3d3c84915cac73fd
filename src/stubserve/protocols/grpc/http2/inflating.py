"""Compressed messages of clients, taken apart within bounds.

A few kilobytes may stand for gigabytes. No more is made than a message may have; what is more than LARGE_BYTES is made
off the event loop, in steps, so that each can be counted in the heap's account before it is there.
"""

from __future__ import annotations

import zlib

from stubserve.protocols.grpc.http2.inbox import MessageRefusal
from stubserve.protocols.grpc.http2.jobs import LARGE_BYTES
from stubserve.protocols.grpc.transport import INTERNAL, RESOURCE_EXHAUSTED

STEP_BYTES = 4 << 20
_DETECT_FORMAT = 32 + zlib.MAX_WBITS


class Inflation:
    """One message's. Every `step` makes up to STEP_BYTES more; `content` is all of it once that is there."""

    def __init__(self, data: bytes | memoryview, limit: int) -> None:
        """Makes what is little at once. Raises Refusal."""
        self._rest = data
        self._limit = limit
        self._stream = zlib.decompressobj(_DETECT_FORMAT)
        self._pieces: list[bytes] = []
        self._size = 0
        self.content: bytes | None = None
        self._make(LARGE_BYTES)

    def step(self) -> Inflation:
        """Goes on. Raises Refusal."""
        self._make(STEP_BYTES)
        return self

    def _make(self, most: int) -> None:
        try:
            piece = self._stream.decompress(self._rest, most)
        except zlib.error as error:
            raise MessageRefusal(INTERNAL, f"a message cannot be decompressed: {error}") from None
        self._rest = self._stream.unconsumed_tail
        self._size += len(piece)
        self._pieces.append(piece)
        if self._size > self._limit:
            raise MessageRefusal(
                RESOURCE_EXHAUSTED,
                f"Decompressed data size exceeds the maximum allowed value of {self._limit} bytes. "
                "Use --http-max-input-size to increase the limit.",
            )
        if self._stream.eof:
            self.content = b"".join(self._pieces)
        elif not self._rest and len(piece) < most:
            raise MessageRefusal(INTERNAL, "a message cannot be decompressed: the compressed data ends early")
