"""Places in the text of a configuration, and changes that leave the rest of it alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stubserve.model_config.parse import parse_text
from stubserve.model_config.source import Source, UnreadableText

TEXT = """# A model. { not a field
name: "m" ; max_batch_size: 4
input [
  { name: "a", dims: [ 1,
      2 ] },  # the first
  {
    name: 'b'
    data_type: TYPE_FP32
  }
]
output < name: "c" "d" >
output { dims: - 1 }
parameters: { key: "K" value: { string_value: "v" } }
parameters { value { string_value: "w" }
  key: "L" }
dynamic_batching { default_queue_policy {
  timeout_action: DELAY } }
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("name",), 2),
        (("max_batch_size",), 2),
        (("input", 0, "dims"), 4),
        (("input", 1), 6),
        (("input", 1, "data_type"), 8),
        (("input", 1, "dims"), 6),  # not written: the input's own line
        (("output", 0, "name"), 11),
        (("output", 1, "dims"), 12),
        (("parameters", "K"), 13),
        (("parameters", "L"), 14),
        (("dynamic_batching", "default_queue_policy", "timeout_action"), 17),
        (("sequence_batching", "direct"), 0),
        ((), 0),
    ],
)
def test_lines(path: tuple[str | int, ...], line: int) -> None:
    assert Source(TEXT).line_of(path) == line


def test_what_stands_at_a_place() -> None:
    source = Source(TEXT)
    lines = TEXT.splitlines()
    found = source.field_at(8, lines[7].index("TYPE_FP32") + 1)
    assert found is not None
    assert (found[0].name, found[1]) == ("data_type", ("input", 1))
    found = source.field_at(12, lines[11].index("dims") + 1)
    assert found is not None
    assert (found[0].name, found[1]) == ("dims", ("output", 1))
    assert source.field_at(1, 5) is None


def test_a_field_is_blanked_out_in_place() -> None:
    source = Source('a: 1, b { c: "#", d: [ 1,\n2 ]; e: 3 }')
    body = source.fields[1].values[0].fields
    assert body is not None
    assert source.without_field(body[1]).text == 'a: 1, b { c: "#",        \n     e: 3 }'


@pytest.mark.parametrize("text", ["a {", "a }", 'a: "x', "a: [ 1", "a { >", "[x.y] { }", "a: ]", "{", "a: {" * 5000])
def test_unreadable_texts(text: str) -> None:
    with pytest.raises(UnreadableText):
        Source(text)


BEFORE = """# mine
backend: "python"   # keep me
parameters { key: "OTHER" value { string_value: "1" } }
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", 'parameters {\n  key: "E"\n  value { string_value: "new" }\n}\n'),
        (BEFORE, BEFORE + 'parameters {\n  key: "E"\n  value { string_value: "new" }\n}\n'),
        ("max_batch_size: 1", 'max_batch_size: 1\nparameters {\n  key: "E"\n  value { string_value: "new" }\n}\n'),
        (
            'parameters: [ { key: "A" value {} },\n  # why\n  { key: \'E\', value: { string_value: "o" "ld" } } ]\n',
            'parameters: [ { key: "A" value {} },\n  # why\n  { key: \'E\', value: { string_value: "new" } } ]\n',
        ),
        (
            'parameters { key: "E" value { } } # empty\n',
            'parameters { key: "E" value { string_value: "new" } } # empty\n',
        ),
    ],
)
def test_setting_a_parameter_changes_nothing_else(before: str, after: str) -> None:
    assert Source(before).with_string_parameter("E", "new") == after


@given(st.text(st.characters(codec="utf-8", exclude_characters="\n\r\0")))
def test_a_parameter_is_read_as_it_was_set(value: str) -> None:
    for before in ("", BEFORE, 'parameters { key: "E" value { string_value: "old" } }'):
        config = parse_text(Source(before).with_string_parameter("E", value), "c")
        assert config.parameters["E"].string_value == value
