"""Choices as Triton 2.51 made them, unless a comment says otherwise."""

from __future__ import annotations

import gzip
import random
import zlib

import pytest

from stubserve.errors import Code, ServeError
from stubserve.http import compression
from stubserve.http.compression import choose
from stubserve.inference.long_work import finish

CONTENT = b"some content " * 100
# Without the time: it is in names of tests, which have to be the same in all processes that run them.
GZIPPED = gzip.compress(CONTENT, mtime=0)
LIMIT = 1 << 20


def decompress(body: bytes, encoding: bytes, limit: int, large: int = LIMIT) -> bytes | memoryview:
    """All of the content, whichever part of it is made in steps."""
    content, rest = compression.decompress(body, encoding, limit, large)
    if rest is None:
        return content
    made = bytearray()
    finish(rest(made.extend))
    return bytes(made)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("identity", None),
        ("", None),
        ("gzip, deflate", "gzip"),
        ("deflate, gzip", "deflate"),
        ("gzip;q=0.5, deflate;q=0.8", "deflate"),
        ("gzip; q=0.5,deflate", "deflate"),
        ("br", None),
        ("*", None),
        ("gzip;q=0", None),
        ("identity;q=0.5, gzip", "gzip"),
        ("identity,gzip", None),
        ("GZIP", None),
        ("gzip;q=abc", None),
        ("br;q=1, gzip;q=0.2", "gzip"),
        ("gzip;q=0.5;x=1", "gzip"),
        ("gzip;x=1", None),
        ("gzip ;q=1", None),
        ("gzip,,", "gzip"),
        ("gzip;q=2,deflate;q=1", "gzip"),
        ("*;q=1,gzip;q=0.1", "gzip"),
    ],
)
def test_choose(header: str, expected: str | None) -> None:
    assert choose(header.encode()) == expected


@pytest.mark.parametrize("large", [0, 10, len(CONTENT) - 1, len(CONTENT), LIMIT])
@pytest.mark.parametrize("encoding", [b"gzip", b"deflate"])
@pytest.mark.parametrize("body", [GZIPPED, zlib.compress(CONTENT), GZIPPED + b"xxxx"])
def test_decompress(encoding: bytes, body: bytes, large: int) -> None:
    assert decompress(body, encoding, LIMIT, large) == CONTENT


def test_many_pieces_of_a_large_body() -> None:
    content = random.Random(5).randbytes(5 << 20)
    assert decompress(zlib.compress(content), b"gzip", 1 << 30, 1000) == content
    assert decompress(zlib.compress(bytes(5 << 20)), b"gzip", 1 << 30, 1000) == bytes(5 << 20)
    for large in (1000, 4 << 20):
        with pytest.raises(ServeError, match="exceeds the maximum allowed value"):
            decompress(zlib.compress(content), b"gzip", (5 << 20) - 1, large)
        with pytest.raises(ServeError, match="the compressed data ends early"):
            decompress(zlib.compress(content)[:-5], b"gzip", 1 << 30, large)


@pytest.mark.parametrize("encoding", [b"", b"identity"])
def test_identity(encoding: bytes) -> None:
    # 2.51 does not take an empty Content-Encoding for identity; 2.73 does.
    assert decompress(CONTENT, encoding, 1) is CONTENT


@pytest.mark.parametrize("encoding", [b"br", b"GZIP", b"gzip, deflate"])
def test_unsupported(encoding: bytes) -> None:
    with pytest.raises(ServeError, match=r"^Unsupported compression type$") as caught:
        decompress(b"x", encoding, LIMIT)
    assert caught.value.code == Code.UNSUPPORTED


def test_empty_body() -> None:
    with pytest.raises(ServeError, match=r"^nothing to be decompressed$"):
        decompress(b"", b"gzip", LIMIT)


@pytest.mark.parametrize("body", [b"abcdefgh", GZIPPED[:-12], GZIPPED[:5]])
@pytest.mark.parametrize("large", [0, 10, LIMIT])
def test_damaged(body: bytes, large: int) -> None:
    # 2.51 goes on with what it could decompress, even if that is nothing.
    with pytest.raises(ServeError, match=r"^unable to decompress the request body: ") as caught:
        decompress(body, b"gzip", LIMIT, large)
    assert caught.value.code == Code.INVALID_ARG


def test_exactly_the_limit() -> None:
    assert decompress(GZIPPED, b"gzip", len(CONTENT)) == CONTENT


def test_a_bomb_is_not_expanded() -> None:
    bomb = zlib.compress(bytes(200 << 20))
    with pytest.raises(ServeError) as caught:
        decompress(bomb, b"deflate", 1000)
    assert caught.value.code == Code.INVALID_ARG
    assert caught.value.message == (
        "Decompressed data size exceeds the maximum allowed value of 1000 bytes. "
        "Use --http-max-input-size to increase the limit."
    )


def test_compress() -> None:
    parts: list[bytes | memoryview] = [b"abc", memoryview(CONTENT)]
    placed: list[bytes] = []

    def place(piece: bytes) -> bytes:
        placed.append(piece)
        return piece

    for coding, unpack in (("gzip", gzip.decompress), ("deflate", zlib.decompress)):
        packed = b"".join(finish(compression.compress(parts, coding, place)))
        assert unpack(packed) == b"abc" + CONTENT
        assert b"".join(placed) == packed
        placed.clear()
