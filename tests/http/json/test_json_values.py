from __future__ import annotations

import json
from typing import Any

import pytest

from stubserve.errors import Code, ServeError
from stubserve.http.json import values as json_values
from stubserve.http.json.values import UNSET, as_uint, find, is_int, is_uint, parse_json


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{"a":1,"b":2,"a":3}', {"a": 1, "b": 2}),
        (b'{"a":{"b":1,"b":2}}', {"a": {"b": 1}}),
        (b'{"a":[{"b":1},{"b":1,"b":2}]}', {"a": [{"b": 1}, {"b": 1}]}),
        (b'{"a":[1,{"b":1,"b":2}]}', {"a": [1, {"b": 1}]}),
        (b'{"a" : "x:y" , "a":"z"}', {"a": "x:y"}),
        (b'{"a":"x","b":"\\":\\"a\\":","a":2}', {"a": "x", "b": '":"a":'}),
        (b'{"a":"\\u003a","a":1}', {"a": ":"}),
        (b'{"a":1,"a":"\\u003A"}', {"a": 1}),
        (b'{"a":"::","a":1}', {"a": "::"}),
        (b'{"a":1,"a":"::"}', {"a": 1}),
        (b'{"k:":1,"k:":2}', {"k:": 1}),
        (b'{"a":["x:",{"b:":":"}],"a":1}', {"a": ["x:", {"b:": ":"}]}),
        (b"[1,2]", [1, 2]),
        (b"5", 5),
    ],
)
def test_of_equal_names_the_first_counts(text: bytes, value: Any) -> None:
    assert parse_json(text) == value


def test_a_colon_in_a_text_costs_no_second_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(json_values, "json")
    document = {"a": "x: y\n", "b:": [":", "\u00e9:"], "c": {"d": ":"}}
    assert parse_json(json.dumps(document).encode()) == document


def test_deep_documents_with_colons_in_texts() -> None:
    with pytest.raises(ServeError, match=r"^JSON nesting depth exceeds maximum allowed limit") as caught:
        parse_json(b'{"a":":",' + b'"b":' + b"[" * 1020 + b"]" * 1020 + b"}" + b" " * 10 + b"\0")
    assert caught.value.code == Code.INVALID_ARG


def test_deep_objects() -> None:
    with pytest.raises(ServeError, match=r"^JSON nesting depth exceeds maximum allowed limit"):
        parse_json(b'{"a":' * 1000 + b"1" + b"}" * 1000)


def test_large_integers_are_no_integers() -> None:
    # orjson makes doubles of them, as rapidjson does.
    found = parse_json(json.dumps([2**63 - 1, 2**63, 2**64 - 1, 2**64]).encode())
    assert [(is_int(value), is_uint(value)) for value in found] == [
        (True, True),
        (False, True),
        (False, True),
        (False, False),
    ]


def test_members() -> None:
    assert find({"a": None}, "a") is None
    assert find({}, "a") is UNSET
    assert find([1], "a") is UNSET


def test_true_is_no_number() -> None:
    with pytest.raises(ServeError) as caught:
        as_uint(True, "x")
    assert caught.value.message == (
        "Unable to parse 'x': attempt to access JSON non-unsigned-integer as unsigned-integer"
    )
