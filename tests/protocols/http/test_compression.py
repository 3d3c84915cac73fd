"""Choices as Triton 2.51 made them, unless a comment says otherwise."""

from __future__ import annotations

import gzip
import zlib

import pytest

from stubserve.errors import Code, ServeError
from stubserve.protocols.http.compression import choose, compress, decompress

CONTENT = b"some content " * 100
LIMIT = 1 << 20


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


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate"])
@pytest.mark.parametrize("body", [gzip.compress(CONTENT), zlib.compress(CONTENT), gzip.compress(CONTENT) + b"xxxx"])
def test_decompress(encoding: bytes, body: bytes) -> None:
    assert decompress(body, encoding, LIMIT) == CONTENT


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


@pytest.mark.parametrize("body", [b"abcdefgh", gzip.compress(CONTENT)[:-12], gzip.compress(CONTENT)[:5]])
def test_damaged(body: bytes) -> None:
    # 2.51 goes on with what it could decompress, even if that is nothing.
    with pytest.raises(ServeError, match=r"^unable to decompress the request body: ") as caught:
        decompress(body, b"gzip", LIMIT)
    assert caught.value.code == Code.INVALID_ARG


def test_exactly_the_limit() -> None:
    assert decompress(gzip.compress(CONTENT), b"gzip", len(CONTENT)) == CONTENT


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
    assert gzip.decompress(b"".join(compress(parts, "gzip"))) == b"abc" + CONTENT
    assert zlib.decompress(b"".join(compress(parts, "deflate"))) == b"abc" + CONTENT
