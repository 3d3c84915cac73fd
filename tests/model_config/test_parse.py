import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stubserve.errors import Code, ServeError
from stubserve.model_config.parse import from_json_dict, parse_json, parse_text
from stubserve.model_config.proto import ModelConfig
from stubserve.model_config.render import render_json


def test_templates_that_are_not_filled_in() -> None:
    with pytest.raises(ServeError) as caught:
        parse_text('backend: "${kept}"\n  max_batch_size: ${size}\ninput { dims: [ ${d}, ${e} ] }', "m/config.pbtxt")
    assert caught.value.code is Code.INTERNAL
    assert caught.value.message == (
        "failed to read text proto from m/config.pbtxt: line 2, column 19: ${size} is a template that has not been "
        "filled in. Write a value in its place, or have a script do it: tensorrtllm_backend's is "
        "tools/fill_template.py -i config.pbtxt size:VALUE. Not filled in either: ${d} (line 3), ${e} (line 3)"
    )


def test_a_template_in_a_string_is_its_text() -> None:
    assert parse_text('backend: "${kept}" # ${comment}', "c").backend == "${kept}"


def test_text() -> None:
    config = parse_text('name: "m" max_batch_size: 4 input [{ name: "X", data_type: TYPE_FP32, dims: [-1, 2] }]', "c")
    assert (config.name, config.max_batch_size) == ("m", 4)
    assert list(config.input[0].dims) == [-1, 2]


def test_empty_text_is_an_empty_config() -> None:
    assert parse_text("# nothing\n", "c") == ModelConfig()


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ('name: "m"\nfoo: 3', "line 2, column 1: ", 'no field named "foo"'),
        ("input [{\n  data_type: TYPE_FOO }]", "line 2, column 14: ", "no value named TYPE_FOO"),
        ("max_batch_size: 1\nmax_batch_size: 2", "line 2, column 17: ", 'multiple "max_batch_size"'),
        ("name: 'm", "line 1, column ", ""),
        ("max_batch_size: 99999999999", "line 1, column 17: ", "out of range"),
        ("input [{\n  data_type: 3333333333333333333333333 }]", "line 2, column 14: ", "Value out of range"),
        ("name: '\\377'", "line 1, column ", "'utf-8' codec"),
        ("dynamic_batching {} sequence_batching {}", "line 1, column 21: ", "oneof"),
    ],
)
def test_text_error_names_file_line_and_column(text: str, place: str, reason: str) -> None:
    with pytest.raises(ServeError) as caught:
        parse_text(text, "/r/m/config.pbtxt")
    assert caught.value.code == Code.INTERNAL
    assert caught.value.message.startswith(f"failed to read text proto from /r/m/config.pbtxt: {place}")
    assert reason in caught.value.message


@settings(deadline=None)
@given(
    st.text()
    | st.lists(
        st.sampled_from(["name", ":", '"m"', "{", "}", "[", "]", "input", "dims", "-1", "'\\377'", "#", "\n", ","])
    ).map(" ".join)
)
def test_any_text_is_a_config_or_a_serve_error(text: str) -> None:
    with contextlib.suppress(ServeError):
        assert isinstance(parse_text(text, "c"), ModelConfig)


def test_json_reads_enums_in_any_case_and_integers_as_text() -> None:
    config = parse_json(
        '{"input":[{"name":"X","data_type":"type_fp32","format":"format-nchw","dims":["1",2]}],"max_batch_size":"7",'
        '"dynamic_batching":{"priority_queue_policy":{"1":{"timeout_action":"delay"}}},"instanceGroup":[{"kind":"kind_cpu"}]}'
    )
    assert config == parse_text(
        'input { name: "X" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [1, 2] } max_batch_size: 7 '
        "dynamic_batching { priority_queue_policy { key: 1 value { timeout_action: DELAY } } } "
        "instance_group { kind: KIND_CPU }",
        "c",
    )


def test_json_of_one_value_is_a_list_of_one() -> None:
    config = parse_json('{"input": {"name": "X", "dims": -1, "data_type": "type_fp32"}, "instance_group": null}')
    assert config == parse_text('input { name: "X" dims: [-1] data_type: TYPE_FP32 }', "c")


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (
            {"parameters": {"A": "b"}},
            """parameters['A'] must be an object, not str, as in {"parameters": {"A": {"string_value": "b"}}}""",
        ),
        (
            {"parameters": {"A": 1}},
            """parameters['A'] must be an object, not int, as in {"parameters": {"A": {"string_value": "..."}}}""",
        ),
        ({"model_warmup": [{"inputs": {"X": "zero"}}]}, "inputs['X'] must be an object, not str"),
    ],
)
def test_json_with_a_value_in_place_of_an_object(document: dict[str, object], reason: str) -> None:
    with pytest.raises(ServeError) as raised:
        from_json_dict(document)
    assert raised.value.message == f"failed to parse the model configuration JSON: {reason}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"extra": 1}',
        '{"input": 3}',
        '{"input": [3]}',
        '{"max_batch_size": "x"}',
        '{"max_batch_size": 1.5}',
        '{"input": [{"data_type": "TYPE_FOO"}]}',
        '{"dynamic_batching": {}, "sequence_batching": {}}',
        '{"parameters": []}',
        '{"dynamic_batching": []}',
        "[" * 100_000,
    ],
)
def test_json_that_is_no_config_is_refused(text: str) -> None:
    with pytest.raises(ServeError) as caught:
        parse_json(text)
    assert caught.value.code == Code.INVALID_ARG
    assert "JSON" in caught.value.message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["name", "input", "parameters", "instance_group", "version_policy", "optimization", "dynamicBatching"]
)


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(KEYS, JSON, max_size=3))
def test_any_json_is_a_config_or_a_serve_error(document: dict[str, object]) -> None:
    with contextlib.suppress(ServeError):
        config = from_json_dict(document)
        assert parse_json(render_json(config)) == config


def test_document_is_not_changed() -> None:
    document = {"input": [{"data_type": "type_fp32"}]}
    before = json.dumps(document)
    from_json_dict(document)
    assert json.dumps(document) == before
