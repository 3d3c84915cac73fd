"""Numbers and texts as Triton 2.51 wrote them."""

from __future__ import annotations

import math

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stubserve.http.json import text as json_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1"),
        (1 / 3, "0.3333333333333333"),
        (1e20, "100000000000000000000.0"),
        (1e21, "1e21"),
        (123456789012345680.0, "123456789012345680.0"),
        (1e22, "1e22"),
        (1e-5, "0.00001"),
        (1e-6, "0.000001"),
        (1e-7, "1e-7"),
        (1.5e-7, "1.5e-7"),
        (0.00001234, "0.00001234"),
        (-0.0, "-0.0"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e308"),
        (123456.789, "123456.789"),
        (1e15, "1000000000000000.0"),
        (1e16, "10000000000000000.0"),
        (100.0, "100.0"),
        (0.10000000149011612, "0.10000000149011612"),
        (0.000009999999747378752, "0.000009999999747378752"),
        (1.401298464324817e-45, "1.401298464324817e-45"),
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        (-1e-7, "-1e-7"),
        (-1.5e20, "-150000000000000000000.0"),
    ],
)
def test_double(value: float, text: str) -> None:
    assert json_text.double(value) == text.encode()
    assert json_text.floats(np.array([value, 2.5])) == f"[{text},2.5]".encode()


def test_last_digit_is_the_closest() -> None:
    # rapidjson writes 12345678901234568000.0, which reads back as the same double but lies further from it.
    assert json_text.double(12345678901234567890.0) == b"12345678901234567000.0"


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_double_reads_back(value: float) -> None:
    text = json_text.double(value)
    assert float(text) == value
    assert b"." in text or b"e" in text


@given(st.lists(st.floats()))
def test_floats_are_written_as_one_by_one(values: list[float]) -> None:
    text = json_text.floats(np.array(values, np.float64))
    assert text == b"[%b]" % b",".join(map(json_text.double, values))


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_integers(kind: type[np.integer]) -> None:
    limits = np.iinfo(kind)
    values = np.array([limits.min, 0, 1, limits.max], kind)
    assert json_text.integers(values) == f"[{limits.min},0,1,{limits.max}]".encode()
    assert json_text.integers(values[:0]) == b"[]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", b'"plain"'),
        ('a\u00e9"\\/\n\x01\x7f\u2028\U0001f600', 'a\u00e9\\"\\\\/\\n\\u0001\x7f\u2028\U0001f600'),
        ("\b\f\r\t\x00\x1f", rb'"\b\f\r\t\u0000\u001F"'),
        ("", b'""'),
    ],
)
def test_string(text: str, expected: str | bytes) -> None:
    assert json_text.string(text) == (expected if isinstance(expected, bytes) else f'"{expected}"'.encode())


def test_bytes_that_are_no_text() -> None:
    assert json_text.quoted(b"a\xff") == b'"a\xff"'


@given(st.lists(st.binary() | st.text("ab\u00e9").map(str.encode) | st.text('\0\n"\\u\x01\x0b0').map(str.encode)))
def test_strings_are_written_byte_by_byte(elements: list[bytes]) -> None:
    one_by_one = [
        b'"%b"' % b"".join(json_text._ESCAPED.get(bytes((byte,)), bytes((byte,))) for byte in element)
        for element in elements
    ]
    assert list(map(json_text.quoted, elements)) == one_by_one
    assert json_text.strings(elements) == b"[%b]" % b",".join(one_by_one)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('\0\n"\\\x01'))))
def test_strings_read_back(texts: list[str]) -> None:
    assert orjson.loads(json_text.strings(list(map(str.encode, texts)))) == texts


def test_scalars() -> None:
    written = [json_text.scalar(value) for value in (True, 3, -(2**63), 1.0, 1e30, "x")]
    assert written == [b"true", b"3", b"-9223372036854775808", b"1.0", b"1e30", b'"x"']
