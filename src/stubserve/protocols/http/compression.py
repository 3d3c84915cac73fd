"""Compressed bodies: gzip and deflate (which is zlib's format here, as in upstream)."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

from stubserve.errors import invalid, unsupported
from stubserve.protocols.http.limits import LIMIT_HINT

GZIP = "gzip"
DEFLATE = "deflate"
IDENTITY = "identity"

# What a reply to an unsupported Content-Encoding names in its Accept-Encoding header.
SUPPORTED = "gzip, deflate"
UNSUPPORTED_TEXT = "Unsupported compression type"

_DETECT_FORMAT = 32 + zlib.MAX_WBITS
_REPLY_FORMAT = {GZIP: 16 + zlib.MAX_WBITS, DEFLATE: zlib.MAX_WBITS}


def choose(accept_encoding: bytes) -> str | None:
    """The encoding that an Accept-Encoding header prefers, None for identity: the highest weight, the first of equals.

    Names count as they are written, in lower case; `*` and anything unknown count for nothing.
    """
    best, best_weight = IDENTITY, 0.0
    for item in accept_encoding.decode("latin-1").split(","):
        name, parametrised, parameter = item.strip().partition(";")
        if name in (GZIP, DEFLATE, IDENTITY):
            weight = _weight(parameter) if parametrised else 1.0
            if weight > best_weight:
                best, best_weight = name, weight
    return None if best == IDENTITY else best


def decompress(body: bytes | memoryview, content_encoding: bytes, limit: int) -> bytes | memoryview:
    """A body's content; never more than `limit` bytes are made.

    gzip and zlib are told apart by the body itself, not by the header, and what follows the first stream is ignored.
    Raises ServeError: UNSUPPORTED for another encoding; INVALID_ARG for an empty body, for one that is not a whole
    stream (upstream takes what it can get of it), and for one whose content is larger than the limit.
    """
    encoding = content_encoding.decode("latin-1")
    if encoding in ("", IDENTITY):
        return body
    if encoding not in (GZIP, DEFLATE):
        raise unsupported(UNSUPPORTED_TEXT)
    if not body:
        raise invalid("nothing to be decompressed")
    stream = zlib.decompressobj(_DETECT_FORMAT)
    try:
        content = stream.decompress(body, limit + 1)
    except zlib.error as error:
        raise invalid(f"unable to decompress the request body: {error}") from None
    if len(content) > limit:
        raise invalid(f"Decompressed data size exceeds the maximum allowed value of {limit} bytes. {LIMIT_HINT}")
    if not stream.eof:
        raise invalid("unable to decompress the request body: the compressed data ends early")
    return content


def compress(parts: Iterable[bytes | memoryview], encoding: str) -> Sequence[bytes]:
    """A reply's buffers, compressed as GZIP or DEFLATE."""
    stream = zlib.compressobj(wbits=_REPLY_FORMAT[encoding])
    compressed = [stream.compress(part) for part in parts]
    compressed.append(stream.flush())
    return [part for part in compressed if part]


def _weight(parameter: str) -> float:
    name, _, number = parameter.strip().partition("=")
    try:
        return float(number.partition(";")[0]) if name == "q" else 0.0
    except ValueError:
        return 0.0
