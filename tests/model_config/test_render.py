import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stubserve.errors import Code, ServeError
from stubserve.model_config.complete import normalise, normalise_again
from stubserve.model_config.parse import parse_json, parse_text
from stubserve.model_config.proto import ModelConfig
from stubserve.model_config.render import adopt_completed, conclude_auto_complete, render_json, to_json_dict

GOLDEN = Path(__file__).parent / "golden"
TENSORS = 'input { name: "X" data_type: TYPE_FP32 dims: [-1] } output { name: "Y" data_type: TYPE_FP32 dims: [-1] }'


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").write_text("")
    return tmp_path


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.pbtxt")))
def test_as_the_real_server(name: str, model_dir: Path) -> None:
    path = GOLDEN / f"{name}.pbtxt"
    config = normalise(parse_text(path.read_text(), str(path)), name, model_dir)
    expected = (GOLDEN / f"{name}.json").read_text().rstrip("\n")
    assert to_json_dict(config) == json.loads(expected)
    # Key order too, but for maps: the real server prints their entries in hash order.
    maps = {"parameters", "metric_tags", "cc_model_filenames", "inputs", "priority_queue_policy"}
    assert ordered(to_json_dict(config), maps) == ordered(json.loads(expected), maps)
    assert len(render_json(config)) == len(expected)
    assert parse_json(expected) == config


def ordered(document: object, maps: set[str], *, is_map: bool = False) -> object:
    if isinstance(document, dict):
        items = [(key, ordered(value, maps, is_map=key in maps)) for key, value in document.items()]
        return sorted(items, key=lambda item: item[0]) if is_map else items
    if isinstance(document, list):
        return [ordered(value, maps) for value in document]
    return document


def test_maps_are_sorted() -> None:
    config = ModelConfig()
    for key in ("b", "a", "C"):
        config.parameters[key].string_value = key
    assert list(to_json_dict(config)["parameters"]) == ["C", "a", "b"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.5, 0.5),
        (2.0, 2),
        (1e20, 1e20),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
        (float("nan"), "NaN"),
    ],
)
def test_doubles(value: float, expected: object) -> None:
    config = ModelConfig()
    config.model_metrics.metric_control.add().histogram_options.buckets.append(value)
    rendered = to_json_dict(config)["model_metrics"]["metric_control"][0]["histogram_options"]["buckets"][0]
    assert rendered == expected
    assert type(rendered) is type(expected)


def test_enum_numbers_without_a_name_stay_numbers() -> None:
    config = ModelConfig()
    config.input.add().data_type = 99
    assert to_json_dict(config)["input"][0]["data_type"] == 99


@settings(deadline=None)
@given(st.floats(-(2.0**127), 2.0**127, width=32) | st.sampled_from([float("inf"), float("-inf")]))
def test_float32_round_trips(value: float) -> None:
    config = ModelConfig()
    config.sequence_batching.direct.minimum_slot_utilization = value
    back = parse_json(render_json(config))
    assert back.sequence_batching.direct.minimum_slot_utilization == value


def configured(text: str, model_dir: Path) -> ModelConfig:
    return normalise(parse_text(text, "c"), "m", model_dir)


def returned(config: ModelConfig, **changes: object) -> str:
    """What `auto_complete_config` sends back; a change to None takes the key away."""
    document = {**to_json_dict(config), **changes}
    return json.dumps({key: value for key, value in document.items() if value is not None})


def test_adopts_only_what_upstream_adopts(model_dir: Path) -> None:
    config = configured("", model_dir)
    before = config.SerializeToString(deterministic=True)
    text = returned(
        config,
        name="other",
        backend="foo",
        parameters={"a": {"string_value": "b"}},
        instance_group=[{"name": "q", "count": 3, "kind": "KIND_CPU"}],
        version_policy={"all": {}},
        max_batch_size=4,
        dynamic_batching={},
        input=[{"name": "X", "data_type": "TYPE_FP32", "dims": [1]}],
        output=[{"name": "Y", "data_type": "TYPE_FP32", "dims": [2]}],
        model_transaction_policy={"decoupled": True},
    )
    adopted = adopt_completed(config, text)
    expected = configured(
        'max_batch_size: 4 input { name: "X" data_type: TYPE_FP32 dims: 1 } dynamic_batching {}'
        'output { name: "Y" data_type: TYPE_FP32 dims: 2 } model_transaction_policy { decoupled: true }',
        model_dir,
    )
    assert adopted == expected
    assert list(adopted.dynamic_batching.preferred_batch_size) == [4]
    assert config.SerializeToString(deterministic=True) == before


def test_configured_scheduling_choice_wins(model_dir: Path) -> None:
    config = configured("max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 7 }" + TENSORS, model_dir)
    adopted = adopt_completed(config, returned(config, dynamic_batching={"max_queue_delay_microseconds": 9}))
    assert adopted.dynamic_batching.max_queue_delay_microseconds == 7


@pytest.mark.parametrize("choice", [{}, {"sequence_batching": {}}])
def test_another_scheduling_choice_is_an_error(choice: dict[str, object], model_dir: Path) -> None:
    config = configured("max_batch_size: 4 dynamic_batching {}" + TENSORS, model_dir)
    text = returned(config, dynamic_batching=None, **choice)
    with pytest.raises(ServeError) as caught:
        adopt_completed(config, text)
    assert caught.value.message == "Cannot update scheduling choice from 11 to 11 when auto-completing."
    assert caught.value.code == Code.INTERNAL


def test_decoupled_may_be_taken_back(model_dir: Path) -> None:
    config = configured("model_transaction_policy { decoupled: true }" + TENSORS, model_dir)
    assert not adopt_completed(config, returned(config, model_transaction_policy={})).model_transaction_policy.decoupled
    assert adopt_completed(config, returned(config, model_transaction_policy=None)).model_transaction_policy.decoupled


def test_an_unadoptable_config_is_ignored_where_there_is_a_file(model_dir: Path) -> None:
    config = configured(TENSORS, model_dir)
    text = returned(config, max_batch_size=3, extra=1)
    served, argument, error = conclude_auto_complete(config, text, has_config_file=True)
    assert served == config
    assert argument == text
    assert error is not None
    assert "extra" in error.message


def test_an_unadoptable_config_fails_the_load_where_there_is_none(model_dir: Path) -> None:
    config = configured("", model_dir)
    with pytest.raises(ServeError) as caught:
        conclude_auto_complete(config, returned(config, extra=1), has_config_file=False)
    assert caught.value.code == Code.NOT_FOUND
    assert caught.value.message == "model configuration is not provided for model 'm'"


def test_an_adopted_config_is_what_the_model_is_told(model_dir: Path) -> None:
    config = configured(TENSORS, model_dir)
    served, argument, error = conclude_auto_complete(config, returned(config, max_batch_size=5), has_config_file=True)
    assert served.max_batch_size == 5
    assert argument == render_json(served)
    assert error is None
    assert normalise_again(served) == served
