"""Parameters: checks, and the two ways in which they are printed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stubserve_stub.api.exceptions import TritonModelException
from stubserve_stub.api.parameters import checked, given_json, received_json


def test_received_as_the_server_prints_them() -> None:
    # Seen in answers of Triton 2.51.
    parameters = {"a": 1, "zz": 2, "c": True, "d": 1.5, "e": -3, "z": 'é"/\\\n\x01\x1f\x7f', "k": 2**53, "i": 2**62}
    assert received_json(parameters) == (
        '{"a":1,"zz":2,"c":true,"d":1.5,"e":-3,"z":"é\\"/\\\\\\n\\u0001\\u001F\x7f","k":9007199254740992,'
        '"i":4611686018427387904}'
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (100.0, "100.0"),
        (0.1, "0.1"),
        (1 / 3, "0.3333333333333333"),
        (123456789.123, "123456789.123"),
        (1e15, "1000000000000000.0"),
        (1e16, "10000000000000000.0"),
        (1e20, "100000000000000000000.0"),
        (1e21, "1e21"),
        (1.5e22, "1.5e22"),
        (12345.678e20, "1.2345678e24"),
        (1e-6, "0.000001"),
        (1.25e-5, "0.0000125"),
        (1e-7, "1e-7"),
        (-1.5e-8, "-1.5e-8"),
    ],
)
def test_received_doubles(value: float, text: str) -> None:
    assert received_json({"a": value}) == '{"a":' + text + "}"


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])),
        st.booleans()
        | st.integers(-(2**63), 2**64)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(exclude_categories=["Cs"])),
    )
)
def test_received_is_json_of_the_same(parameters: dict[str, bool | int | float | str]) -> None:
    assert json.loads(received_json(parameters)) == parameters


def test_given_as_the_json_module_prints_them() -> None:
    assert given_json({"b": 1, "a": True, "c": "é"}) == '{"b": 1, "a": true, "c": "\\u00e9"}'
    assert given_json(None) == received_json(None) == received_json({}) == "{}"


def test_checked_is_a_copy() -> None:
    parameters = {"a": 1}
    kept = checked(parameters)
    parameters["a"] = 2
    assert kept == {"a": 1}
    assert checked(None) is None
    assert checked({}) is None


@pytest.mark.parametrize("unfit", [[], "x", 3])
def test_container(unfit: object) -> None:
    with pytest.raises(TritonModelException, match=f"^Expect dict, got {type(unfit)}$"):
        checked(unfit)
