"""What rapidjson takes and what it says, as Triton 2.51 answered for each of these bodies."""

from __future__ import annotations

import math
from typing import Any

import pytest

from stubserve.errors import Code, ServeError
from stubserve.http.json import rapidjson_errors
from stubserve.http.json.rapidjson_errors import parse

NAME = "Missing a name for object member."
VALUE = "Invalid value."
MEMBER = "Missing a comma or '}' after an object member."
ELEMENT = "Missing a comma or ']' after an array element."
ESCAPE = "Invalid escape character in string."
HEX = "Incorrect hex digit after \\u escape in string."
SURROGATE = "The surrogate pair in string is invalid."
EMPTY = "The document is empty."
QUOTE = "Missing a closing quotation mark in string."
TOO_BIG = "Number too big to be stored in double."


@pytest.mark.parametrize(
    ("text", "reason", "offset"),
    [
        ("", EMPTY, 0),
        (" ", EMPTY, 1),
        ("\x00{}", EMPTY, 0),
        ("{", NAME, 1),
        ("{,}", NAME, 1),
        ("{a:1}", NAME, 1),
        ("{'a':1}", NAME, 1),
        ('{"a":1,}', NAME, 7),
        ("{}x", "The document root must not be followed by other values.", 2),
        ('{"a" 1}', "Missing a colon after a name of object member.", 5),
        ('{"a":}', VALUE, 5),
        ("[1,]", VALUE, 3),
        ("[,]", VALUE, 1),
        ('{"a":tru}', VALUE, 8),
        ('{"a":nul}', VALUE, 8),
        ("nul", VALUE, 3),
        ("-", VALUE, 1),
        ('{"a":-}', VALUE, 6),
        ('{"a":+1}', VALUE, 5),
        ('{"a":.5}', VALUE, 5),
        ("// c\n{}", VALUE, 0),
        ('{"a":Nan}', VALUE, 7),
        ('{"a":I}', VALUE, 6),
        ('{"a":Infinite}', VALUE, 12),
        ('{"a":-Infinit}', VALUE, 13),
        ("[1 2]", ELEMENT, 3),
        ('{"a":[1,2', ELEMENT, 9),
        ('{"a":01}', MEMBER, 6),
        ('{"a":-01}', MEMBER, 7),
        ('{"a":0x1}', MEMBER, 6),
        ('{"a":1.5.5}', MEMBER, 8),
        ('{"a":1 "b":2}', MEMBER, 7),
        ('{"a":1.}', "Miss fraction part in number.", 7),
        ('{"a":1e}', "Miss exponent in number.", 7),
        ('{"a":1E+}', "Miss exponent in number.", 8),
        ('{"a":1e400}', TOO_BIG, 5),
        ('{"a":1e99999999999}', TOO_BIG, 5),
        ('{"a":"\\q"}', ESCAPE, 6),
        ('{"a":"\x01"}', ESCAPE, 6),
        ('{"a":"x\\', ESCAPE, 7),
        ('{"a":"\\u12"}', HEX, 6),
        ('{"a":"\\uZZZZ"}', HEX, 6),
        ('{"a":"\\ud800\\u0041"}', SURROGATE, 6),
        ('{"a":"\\ud800"}', SURROGATE, 6),
        ('{"a":"\\ud800abcdef"}', SURROGATE, 6),
        ('{"a":"abc', QUOTE, 9),
        ('{"a":"b\x00"}', QUOTE, 7),
    ],
)
def test_refused(text: str, reason: str, offset: int) -> None:
    with pytest.raises(ServeError) as caught:
        parse(text.encode())
    assert caught.value.code == Code.MALFORMED
    assert caught.value.message == f"failed to parse the request JSON buffer: {reason} at {offset}"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("\ufeff{}", {}),
        ("{}\x00", {}),
        ('{"a":1,"a":2}', {"a": 1}),
        ("[Inf, Infinity, -Inf, -Infinity]", [math.inf, math.inf, -math.inf, -math.inf]),
        ("[1,2.5,-3e2,true,false,null,[],{}]", [1, 2.5, -300.0, True, False, None, [], {}]),
        ('"\\u00e9\\ud83d\\ude00\\n\\/"', "\u00e9\U0001f600\n/"),
        ('{"a":0.1e-999999999999}', {"a": 0.0}),
        ("123456789012345678901234567890123", 1.2345678901234568e32),
        ("18446744073709551615", 18446744073709551615),
    ],
)
def test_accepted(text: str, value: Any) -> None:
    assert parse(text.encode()) == value


def test_not_a_number() -> None:
    first, second = parse(b"[NaN,-NaN]")
    assert math.isnan(first)
    assert math.isnan(second)


def test_bytes_that_are_not_utf8_come_back() -> None:
    assert parse(b'"\xff\xfe"').encode("utf-8", "surrogateescape") == b"\xff\xfe"


def test_a_lone_low_surrogate_is_taken() -> None:
    assert parse(rb'"\udc00"').encode("utf-8", "surrogateescape") == b"\xed\xb0\x80"


def test_long_runs_of_numbers() -> None:
    numbers = [0.5, 7, -1e-3] * 40_000
    text = b"[" + b", ".join(repr(number).encode() for number in numbers) + b",NaN,Infinity, 1]"
    found = parse(text)
    assert found[: len(numbers)] == numbers
    assert math.isnan(found[-3])
    assert found[-2:] == [math.inf, 1]


def test_an_error_behind_a_long_run_of_numbers() -> None:
    text = b"[" + b"1," * 100_000 + b"1e400]"
    with pytest.raises(ServeError, match=r"Number too big to be stored in double\. at 200001$"):
        parse(text)


def test_nesting_is_limited() -> None:
    with pytest.raises(ServeError, match=r"^JSON nesting depth exceeds maximum allowed limit \(100\)$"):
        parse(b"[" * 5000)


def test_work_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rapidjson_errors, "TOKENS", 100)
    with pytest.raises(ServeError) as caught:
        parse(b"[" + b"{}," * 101)
    assert caught.value.code == Code.INVALID_ARG
    with pytest.raises(ServeError, match="more than 100 values and escaped characters"):
        parse(b'["' + b"\\n" * 101 + b'"')


def test_numbers_that_are_not_plain_are_not_tried_at_once_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    at_once = rapidjson_errors._plain_numbers
    monkeypatch.setattr(rapidjson_errors, "_plain_numbers", lambda piece: tried.append(piece) or at_once(piece))
    assert parse(b"[" + b"1," * 1000 + b"Inf,1]") == [1] * 1000 + [math.inf, 1]
    assert len(tried) == 1
    with pytest.raises(ServeError, match=r"Number too big to be stored in double\. at 5$"):
        parse(b"[NaN," + b"1" * 400 + b",1]")
