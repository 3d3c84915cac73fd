"""Header blocks in pieces: what comes out is what hpack's own decoder makes of them, and the table stays in step."""

from __future__ import annotations

import tracemalloc

import pytest
from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from stubserve.grpc.http2 import frames
from stubserve.grpc.http2.fields import (
    MAX_FIELDS,
    MAX_LIST_BYTES,
    MAX_REFUSED_BYTES,
    MAX_REFUSED_FIELDS,
    FieldDecoder,
    Fields,
)
from stubserve.grpc.http2.frames import ConnectionFault

TEXT = st.binary(max_size=60)
LIST = st.lists(st.tuples(st.binary(min_size=1, max_size=20), TEXT, st.booleans()), max_size=12)


def decode(decoder: FieldDecoder, block: bytes, size: int = 0) -> Fields:
    decoder.begin()
    size = size or len(block) or 1
    for at in range(0, len(block), size):
        decoder.feed(block[at : at + size])
    return decoder.end()


@given(
    st.lists(st.tuples(LIST, st.booleans(), st.sampled_from([None, 0, 60, 200, 4096])), max_size=8), st.integers(0, 9)
)
def test_blocks_mean_what_hpack_says(
    blocks: list[tuple[list[tuple[bytes, bytes, bool]], bool, int | None]], size: int
) -> None:
    encoder, reference, decoder = Encoder(), Decoder(), FieldDecoder()
    for fields, huffman, table_size in blocks:
        if table_size is not None:
            encoder.header_table_size = table_size
        block = encoder.encode(fields, huffman=huffman)
        expected = [(name, value) for name, value in reference.decode(block, raw=True)]
        assert decode(decoder, block, size) == (expected, False)


def literal(name: bytes, value: bytes, tag: int = 0x40) -> bytes:
    def string(text: bytes) -> bytes:
        size = bytearray()
        length = len(text)
        if length < 127:
            return bytes([length]) + text
        length -= 127
        size.append(127)
        while length >= 128:
            size.append(length & 127 | 128)
            length >>= 7
        size.append(length)
        return bytes(size) + text

    return bytes([tag]) + string(name) + string(value)


@pytest.mark.parametrize("size", [0, 1000, 17])
@pytest.mark.parametrize(
    "too_much",
    [
        [literal(b"x", b"v" * 70_000)],
        [literal(b"x", b"v" * 70_000, 0)],
        [literal(b"n" * 70_000, b"v")],
        [literal(b"n" * 70_000, b"v" * 70_000, 0)],
        [literal(b"x", b"v" * 40_000), literal(b"x", b"v" * 40_000, 0)],
        [literal(b"x", bytes([65 + number % 26]) * 3000) for number in range(22)],
        [literal(b"x", b"y", 0)] * (MAX_FIELDS + 1),
        [b"\x82"] * (MAX_FIELDS + 1),
    ],
)
def test_what_is_too_large_leaves_the_table_in_step(too_much: list[bytes], size: int) -> None:
    decoder, reference = FieldDecoder(), Decoder(1 << 30)
    first = literal(b"a", b"b") + literal(b"c", b"d")
    assert decode(decoder, first).fields == list(reference.decode(first, raw=True))
    block = literal(b"kept", b"1") + b"".join(too_much) + literal(b"last", b"2")
    found = decode(decoder, block, size)
    reference.decode(block, raw=True)
    assert found.too_large
    assert found.fields[0] == (b"kept", b"1")
    assert sum(len(name) + len(value) + 32 for name, value in found.fields) <= MAX_LIST_BYTES
    # The newest entries, and a lookup of all that there are.
    count = len(reference.header_table.dynamic_entries)
    after = bytes(0x80 | 62 + index for index in range(count))
    assert decode(decoder, after).fields == list(reference.decode(after, raw=True))


def test_a_long_string_in_pieces_is_not_collected() -> None:
    decoder = FieldDecoder()
    decoder.begin()
    decoder.feed(literal(b"x", b"v" * (1 << 26))[:1000])
    tracemalloc.start()
    for _ in range(60):
        decoder.feed(bytes(1024))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 100_000


def test_sizes_of_the_table_count_even_where_they_change_no_entry() -> None:
    """A block with the sizes 4096, 0 and 4096 in front is no block that could be remembered."""
    decoder = FieldDecoder()
    for sizes in (b"\x3f\xe1\x1f", b"\x20", b"\x3f\xe1\x1f"):
        before = decoder.changes
        assert decode(decoder, sizes + b"\x82").fields == [(b":method", b"GET")]
        assert decoder.changes > before
    assert decode(decoder, literal(b"a", b"b")).fields == [(b"a", b"b")]
    assert decode(decoder, b"\xbe").fields == [(b"a", b"b")]


@pytest.mark.parametrize(
    ("block", "code"),
    [
        (b"\x80", frames.COMPRESSION_ERROR),
        (b"\xbe", frames.COMPRESSION_ERROR),
        (b"\x7f\xff\xff\xff\xff\xff\x01", frames.COMPRESSION_ERROR),
        (b"\x00\x05abc", frames.COMPRESSION_ERROR),
        (b"\x00\x01", frames.COMPRESSION_ERROR),
        (b"\x82\x20", frames.COMPRESSION_ERROR),
        (b"\x3f\xe2\x1f", frames.COMPRESSION_ERROR),
        (b"\x00\x81\xff\x01a", frames.COMPRESSION_ERROR),
        (literal(b"x", b"v" * 70_000)[:-1], frames.COMPRESSION_ERROR),
        (literal(b"n" * 70_000, b"v")[:-2], frames.COMPRESSION_ERROR),
        (b"\x82" * (MAX_REFUSED_FIELDS + 1), frames.ENHANCE_YOUR_CALM),
        (
            literal(b"n", b"v" * 70_000) + literal(b"n", b"v" * 100) * (MAX_REFUSED_BYTES // 100),
            frames.ENHANCE_YOUR_CALM,
        ),
    ],
)
@pytest.mark.parametrize("size", [0, 100])
def test_what_cannot_be_read_ends_the_connection(block: bytes, code: int, size: int) -> None:
    with pytest.raises(ConnectionFault) as fault:
        decode(FieldDecoder(), block, size)
    assert fault.value.code == code
