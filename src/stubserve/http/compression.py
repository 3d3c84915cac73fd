"""Compressed bodies: gzip and deflate (which is zlib's format here, as in upstream)."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from stubserve.errors import ServeError, invalid, unsupported
from stubserve.http.body import LIMIT_HINT
from stubserve.inference.long_work import LongWork

GZIP = "gzip"
DEFLATE = "deflate"
IDENTITY = "identity"

# What a reply to an unsupported Content-Encoding names in its Accept-Encoding header.
SUPPORTED = "gzip, deflate"
UNSUPPORTED_TEXT = "Unsupported compression type"

# Bytes per step: read of a compressed body; made of a body or of an answer
_INPUT = 64 * 1024
_PIECE = 1024 * 1024

# Counts bytes that are about to be kept. Raises ServeError.
Keep = Callable[[int], None]
# Puts a part of an answer where it stays until it is sent. Raises ServeError.
Place = Callable[[bytes], "bytes | memoryview"]
# Takes the next piece of what is made. Raises ServeError.
Take = Callable[[bytes], None]
RestOfContent = Callable[[Take], LongWork[None]]

_DETECT_FORMAT = 32 + zlib.MAX_WBITS
_REPLY_FORMAT = {GZIP: 16 + zlib.MAX_WBITS, DEFLATE: zlib.MAX_WBITS}


def choose(accept_encoding: bytes) -> str | None:
    """The encoding that an Accept-Encoding header weights highest, the first of equals; None for identity.

    Names count only in lower case; `*` and unknown names are ignored.
    """
    best, best_weight = IDENTITY, 0.0
    for item in accept_encoding.decode("latin-1").split(","):
        name, parametrised, parameter = item.strip().partition(";")
        if name in (GZIP, DEFLATE, IDENTITY):
            weight = _weight(parameter) if parametrised else 1.0
            if weight > best_weight:
                best, best_weight = name, weight
    return None if best == IDENTITY else best


def decompress(
    body: bytes | memoryview, content_encoding: bytes, limit: int, large: int
) -> tuple[bytes | memoryview, RestOfContent | None]:
    """A body's content, at most `limit` bytes.

    The body itself tells gzip from zlib, not the header. Bytes behind the first stream are ignored. Content of more
    than `large` bytes is left to the function that comes with the body: `rest(take)` decompresses all of it, in steps,
    and hands each piece to `take`. Raises ServeError: UNSUPPORTED for another encoding; INVALID_ARG for an empty body,
    for an incomplete stream (upstream takes what it can read of it), and for content larger than the limit.
    """
    encoding = content_encoding.decode("latin-1")
    if encoding in ("", IDENTITY):
        return body, None
    if encoding not in (GZIP, DEFLATE):
        raise unsupported(UNSUPPORTED_TEXT)
    if not body:
        raise invalid("nothing to be decompressed")
    stream = zlib.decompressobj(_DETECT_FORMAT)
    first = _more(stream, body[:_INPUT], min(limit, large) + 1)
    if len(first) > limit:
        raise _too_large(limit)
    if stream.eof or (len(body) <= _INPUT and not stream.unconsumed_tail):
        _check_end(stream)
        return first, None
    return body, partial(_rest, stream, first, body, limit)


def _rest(stream: zlib._Decompress, first: bytes, body: bytes | memoryview, limit: int, take: Take) -> LongWork[None]:
    take(first)
    size = len(first)
    at = _INPUT
    while not stream.eof and (stream.unconsumed_tail or at < len(body)):
        data: bytes | memoryview = stream.unconsumed_tail
        if not data:
            data = body[at : at + _INPUT]
            at += _INPUT
        piece = yield partial(_more, stream, data, _PIECE)
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        take(piece)
    _check_end(stream)


def _more(stream: zlib._Decompress, data: bytes | memoryview, size: int) -> bytes:
    try:
        return stream.decompress(data, size)
    except zlib.error as error:
        raise invalid(f"unable to decompress the request body: {error}") from None


def _check_end(stream: zlib._Decompress) -> None:
    if not stream.eof:
        raise invalid("unable to decompress the request body: the compressed data ends early")


def _too_large(limit: int) -> ServeError:
    return invalid(f"Decompressed data size exceeds the maximum allowed value of {limit} bytes. {LIMIT_HINT}")


def compress(
    parts: Iterable[bytes | memoryview], encoding: str, place: Place
) -> LongWork[Sequence[bytes | memoryview]]:
    """A reply's buffers, compressed as GZIP or DEFLATE; `place` says where the result lies."""
    stream = zlib.compressobj(wbits=_REPLY_FORMAT[encoding])
    compressed: list[bytes | memoryview] = []
    for part in parts:
        for at in range(0, len(part), _PIECE):
            piece = yield partial(stream.compress, memoryview(part)[at : at + _PIECE])
            if piece:
                compressed.append(place(piece))
    compressed.append(place((yield stream.flush)))
    return compressed


def _weight(parameter: str) -> float:
    name, _, number = parameter.strip().partition("=")
    try:
        return float(number.partition(";")[0]) if name == "q" else 0.0
    except ValueError:
        return 0.0
