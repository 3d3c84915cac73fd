"""The quick looks at BYTES tensors say the same as a walk, or nothing."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stubserve_stub.wire import strings


def blob_of(elements: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


def walked(data: bytes) -> list[bytes] | None:
    """The elements, None if they do not end where the data ends."""
    elements = []
    at = 0
    while at < len(data):
        if len(data) - at < 4:
            return None
        (length,) = struct.unpack_from("<I", data, at)
        elements.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    return elements if at == len(data) else None


def check(data: bytes) -> None:
    elements = walked(data)
    rows = strings.of_one_length(data)
    assert rows is None or rows.tolist() == elements
    for count in {0, 1, 100, len(elements or ())}:
        assert not strings.is_short_text(data, count) or (elements is not None and len(elements) == count)


@given(
    st.lists(
        st.binary(max_size=8) | st.sampled_from([b"", b"x" * 255, b"x" * 256, b"x" * 1023, b"x" * 1024, b"\1\0\0\0"]),
        max_size=80,
    )
)
def test_like_a_walk(elements: list[bytes]) -> None:
    check(blob_of(elements))
    assert strings.join(elements) == blob_of(elements)


@given(st.sampled_from([b"abc", b"\0", b"\1\0\0\0a", b"a\0\0"]), st.integers(60, 200), st.data())
def test_like_a_walk_when_damaged(element: bytes, count: int, data: st.DataObject) -> None:
    blob = bytearray(blob_of([element] * count))
    for _ in range(data.draw(st.integers(1, 3))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.sampled_from([0, 1, 3, 7, 255]))
    check(bytes(blob))
    check(bytes(blob[: data.draw(st.integers(1, len(blob)))]))


@pytest.mark.parametrize("length", [1, 4, 255, 256, 5000])
def test_one_length(length: int) -> None:
    elements = [bytes([i % 251]) * length for i in range(100)]
    for data in (blob_of(elements), memoryview(bytearray(b"?" + blob_of(elements)))[1:]):
        rows = strings.of_one_length(data)
        assert rows is not None
        assert rows.tolist() == elements
    assert strings.of_one_length(blob_of([*elements, b"another"])) is None


def test_short_text() -> None:
    elements = [b"x" * (i % 255 + 1) for i in range(300)]
    data = blob_of(elements)
    assert strings.is_short_text(data, 300)
    assert strings.is_short_text(memoryview(data), 300)
    assert not strings.is_short_text(data, 299)
    assert not strings.is_short_text(data[:-1], 300)
    assert not strings.is_short_text(data + b"\1", 300)


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\0\0\0", b"\1\0\0\0a", bytes(300), b"\xff" * 300])
def test_neither(data: bytes) -> None:
    assert strings.of_one_length(data) is None
    assert not strings.is_short_text(data, 1)
