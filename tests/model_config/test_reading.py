"""A configuration with several mistakes is read to its end."""

from __future__ import annotations

import pytest

from stubserve.model_config.parse import parse_text
from stubserve.model_config.reading import read_leniently

BAD = """name: "m"
max_batchsize: 4
input [
  { name: "a" data_type: TYPE_FLOAT32 dims: [ 1 ] },
  { name: "b", datatype: TYPE_FP32, dims: [ x ], optional: 7 }
]
name: "twice"
instance_group { kind: KIND_CPU count: 99999999999999 }
extra [ { a: 1 }, { b: 2 } ]
"""


def test_every_mistake_with_its_place() -> None:
    reading = read_leniently(BAD)
    assert [(one.line, one.text) for one in reading.mistakes] == [
        (2, "ModelConfig has no field named 'max_batchsize'; did you mean 'max_batch_size'?"),
        (4, "DataType has no value named 'TYPE_FLOAT32'; did you mean 'TYPE_FP32'?"),
        (5, "ModelInput has no field named 'datatype'; did you mean 'data_type'?"),
        (5, "Couldn't parse integer: x"),
        (5, 'Expected "true" or "false".'),
        (7, 'Message type "inference.ModelConfig" should not have multiple "name" fields.'),
        (8, "Value out of range: 99999999999999"),
        (9, "ModelConfig has no field named 'extra'"),
    ]
    assert reading.complete
    expected = 'name: "m" input [ { name: "a" dims: [ 1 ] }, { name: "b" } ] instance_group { kind: KIND_CPU }'
    assert reading.config == parse_text(expected, "c")


def test_what_follows_from_a_mistake() -> None:
    reading = read_leniently(BAD)
    assert reading.follows_from_mistake(("input", 0, "data_type"))
    assert not reading.follows_from_mistake(("output", 0, "data_type"))
    assert not reading.follows_from_mistake(("max_batch_size",))


@pytest.mark.parametrize("rest", ['output { name: "o', "output { ", "output [ {", "}", "a: @"])
def test_a_text_whose_end_is_unknown(rest: str) -> None:
    reading = read_leniently('name: "m"\n' + rest)
    assert not reading.complete
    (mistake,) = reading.mistakes
    assert mistake.line >= 2


@pytest.mark.parametrize("end", [" }", ""])
def test_a_number_that_no_enum_can_have(end: str) -> None:
    reading = read_leniently('name: "m"\ninput {\n  data_type: 33333333333333333333' + end)
    mistake = reading.mistakes[0]
    assert (mistake.line, mistake.column) == (3, 14)
    assert mistake.text == "Value out of range: 33333333333333333333"


def test_a_good_text() -> None:
    text = 'name: "m"\nmax_batch_size: 1'
    reading = read_leniently(text)
    assert (reading.mistakes, reading.complete) == ([], True)
    assert reading.config == parse_text(text, "c")
    assert reading.line_of(("max_batch_size",)) == 2


def test_a_text_with_no_end_of_mistakes_is_left_unread() -> None:
    """Each mistake costs another reading of the text: 2,000 would take minutes."""
    reading = read_leniently("max_batch_sise: 4\n" * 2000)
    assert not reading.complete
    assert [mistake.line for mistake in reading.mistakes] == list(range(1, len(reading.mistakes) + 1))
    assert 1 <= len(reading.mistakes) < 100
