"""Compressed messages, both ways: in steps, and within bounds.

A few kilobytes may stand for gigabytes. So no more of a client's message is made than its limit, and each piece is
counted before the next is made.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial

from stubserve.grpc.http2.incoming import MessageRefusal
from stubserve.grpc.transport import INTERNAL, RESOURCE_EXHAUSTED, Keep
from stubserve.inference.long_work import LongWork

# Input and output of one step
_INPUT_BYTES = 256 * 1024
_PIECE_BYTES = 1 << 20
_DETECT_FORMAT = 32 + zlib.MAX_WBITS
_FORMAT = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


def short_content(data: bytes | memoryview, most: int) -> bytes | None:
    """A message's content; None if it is longer than `most`, or incomplete. Raises MessageRefusal."""
    stream = zlib.decompressobj(_DETECT_FORMAT)
    content = _inflated(stream, data, most + 1)
    return content if stream.eof and len(content) <= most else None


def inflate(data: bytes | memoryview, limit: int, take: Callable[[bytes], None]) -> LongWork[None]:
    """Hands a message's content to `take` in pieces. Raises MessageRefusal, and ServeError if memory is short."""
    stream = zlib.decompressobj(_DETECT_FORMAT)
    size = at = 0
    while not stream.eof:
        rest: bytes | memoryview = stream.unconsumed_tail
        if not rest:
            rest = data[at : at + _INPUT_BYTES]
            at += _INPUT_BYTES
        # With no input left there may still be output; if there is none, the data end early.
        piece = yield partial(_inflated, stream, rest, _PIECE_BYTES)
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


def deflate(parts: Sequence[bytes | memoryview], encoding: str, level: int, keep: Keep) -> LongWork[list[bytes]]:
    """A message's parts, compressed with gRPC's `encoding`."""
    stream = zlib.compressobj(level, wbits=_FORMAT[encoding])
    pieces: list[bytes] = []
    for part in parts:
        for at in range(0, len(part), _INPUT_BYTES):
            piece = yield partial(stream.compress, part[at : at + _INPUT_BYTES])
            keep(len(piece))
            pieces.append(piece)
    pieces.append(stream.flush())
    return pieces


def _inflated(stream: zlib._Decompress, data: bytes | memoryview, most: int) -> bytes:
    try:
        return stream.decompress(data, most)
    except zlib.error as error:
        raise MessageRefusal(INTERNAL, f"a message cannot be decompressed: {error}") from None
