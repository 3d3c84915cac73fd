"""BYTES blobs."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stubserve_stub.api import bytes_tensor
from stubserve_stub.api.exceptions import TritonModelException


def blob_of(elements: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


LENGTHS = st.integers(0, 300) | st.sampled_from([255, 256, 257, 5000])
ELEMENTS = st.lists(st.binary(max_size=8) | st.builds(bytes, LENGTHS), max_size=40)


@given(ELEMENTS)
def test_round_trip(elements: list[bytes]) -> None:
    blob = bytes_tensor.encode(bytes_tensor.object_array(elements))
    assert blob == blob_of(elements)
    assert bytes_tensor.decode(blob) == elements
    assert bytes_tensor.decode(memoryview(bytearray(blob))) == elements


@pytest.mark.parametrize("length", [1, 16, 255, 256, 1000])
def test_elements_of_one_length(length: int) -> None:
    elements = [bytes([i % 251]) * (length - 1) + b"\0" for i in range(300)]
    decoded = bytes_tensor.decode(blob_of(elements))
    assert decoded == elements
    assert {type(element) for element in decoded} == {bytes}
    array = bytes_tensor.decode_array(blob_of(elements))
    assert array.tolist() == elements
    assert {type(element) for element in array} == {bytes}
    array[0] = b"writable"
    assert bytes_tensor.encode(array[1:]) == blob_of(elements[1:])
    elements[1] = b"of another length"
    assert bytes_tensor.encode(bytes_tensor.object_array(elements)) == blob_of(elements)


def test_memory_of_other_items() -> None:
    blob = blob_of([b"abcd"] * 100)
    assert bytes_tensor.decode_array(np.frombuffer(blob, np.uint32)).tolist() == [b"abcd"] * 100
    assert bytes_tensor.decode_array(memoryview(blob).cast("I")).tolist() == [b"abcd"] * 100


def test_lengths_that_divide_the_blob_by_chance() -> None:
    elements = [b"x" * 16, b"y" * 36, b""] * 100
    assert bytes_tensor.decode(blob_of(elements)) == elements
    assert bytes_tensor.decode(blob_of([b""] * 300)) == [b""] * 300


@given(ELEMENTS.filter(bool), st.data())
def test_cut_blob_is_malformed(elements: list[bytes], data: st.DataObject) -> None:
    blob = blob_of(elements)
    ends = {0}
    for element in elements:
        ends.add(max(ends) + 4 + len(element))
    cut = data.draw(st.integers(1, len(blob) - 1).filter(lambda at: at not in ends) if len(blob) > 1 else st.nothing())
    since_last_end = cut - max(end for end in ends if end < cut)
    what = "incomplete length field" if since_last_end < 4 else "string extends beyond buffer"
    with pytest.raises(TritonModelException, match=f"^Invalid bytes tensor data: {what}$"):
        bytes_tensor.decode(blob[:cut])


def test_huge_length() -> None:
    for before in ([], [b"a"], [b"a" * 1000]):
        with pytest.raises(TritonModelException, match="string extends beyond buffer"):
            bytes_tensor.decode(blob_of(before) + b"\xff\xff\xff\xffabc")


def test_encode_what_is_not_bytes() -> None:
    array = np.array([None, 1, "é", np.bytes_(b"zz"), bytearray(b"q"), 2.5], dtype=object)
    assert bytes_tensor.decode(bytes_tensor.encode(array)) == [
        b"None",
        b"1",
        "é".encode(),
        b"b'zz'",
        b"bytearray(b'q')",
        b"2.5",
    ]


def test_encode_in_c_order() -> None:
    array = np.array([[b"a", b"b"], [b"c", b"d"]], dtype=object)
    assert bytes_tensor.decode(bytes_tensor.encode(array.T)) == [b"a", b"c", b"b", b"d"]
    assert bytes_tensor.decode(bytes_tensor.encode(array.astype("S1")[:, 1])) == [b"b", b"d"]
    assert bytes_tensor.encode(np.array(b"one", dtype=object)) == blob_of([b"one"])
    assert bytes_tensor.encode(np.zeros((0, 3), "S3")) == b""


def test_object_array_is_writable() -> None:
    array = bytes_tensor.object_array([b"a", b"bc"])
    array[0] = b"longer"
    assert array.tolist() == [b"longer", b"bc"]
