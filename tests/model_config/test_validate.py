"""Texts without a note were read off Triton 2.51 with the same configuration; the others are 2.73's."""

from pathlib import Path

import pytest

from stubserve.errors import Code, ServeError
from stubserve.model_config.complete import normalise
from stubserve.model_config.parse import parse_text
from stubserve.model_config.proto import ModelConfig
from stubserve.model_config.validate import (
    problems,
    validate,
    validate_directory_name,
    validate_instance_groups,
    validate_model,
)

NOWHERE = Path("/nonexistent")
PYTHON = 'backend: "python" max_batch_size: 4 '


def normalised(text: str) -> ModelConfig:
    return normalise(parse_text(text, "c"), "m", NOWHERE)


def refusal(text: str) -> str:
    config = normalised(text)
    with pytest.raises(ServeError) as caught:
        validate(config)
    assert caught.value.code == Code.INVALID_ARG
    return caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        PYTHON,
        'backend: "foo" platform: "anything"',
        'platform: "onnxruntime_onnx"',
        'platform: "torch_aoti"',
        'platform: "libtorch"',
        'backend: "python" dynamic_batching {}',
        PYTHON + "dynamic_batching { preferred_batch_size: [1, 4] }",
        PYTHON + "dynamic_batching { default_priority_level: 5 }",
        PYTHON + "dynamic_batching { priority_levels: 1 default_priority_level: 1 preserve_ordering: true }",
        PYTHON + "dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY } }",
        PYTHON + "response_cache { enable: true }",
        PYTHON + "response_cache {} model_transaction_policy { decoupled: true } sequence_batching {}",
        PYTHON + "model_metrics {}",
        PYTHON + "metric_tags { key: 'team_1' value: 'x y' }",
        PYTHON
        + "model_metrics { metric_control { metric_identifier { family: 'f' } histogram_options { buckets: 1 } } }",
        'platform: "tensorrt_plan" instance_group { profile: "0" }',
        'platform: "ensemble" ensemble_scheduling { step { model_name: "n" input_map { key: "A" value: "B" } '
        'output_map { key: "C" value: "D" } } } '
        'input { name: "B" data_type: TYPE_FP32 dims: 1 } output { name: "D" data_type: TYPE_FP32 dims: 1 }',
    ],
)
def test_accepted(text: str) -> None:
    validate(normalised(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('platform: "foo"', "unexpected platform type 'foo' for m"),
        (
            'platform: "ensemble" backend: "python"',
            "Ensemble model 'm' must have platform type 'ensemble' and empty backend type",
        ),
        (
            'platform: "ensemble"',
            "ensemble scheduling must be set for ensemble m whose platform is ensemble",
        ),
        (
            'platform: "foo" backend: "onnxruntime"',
            "unexpected 'platform' and 'backend' pair, got:foo, onnxruntime",
        ),
        ('backend: "python" max_batch_size: -1', "'max_batch_size' must be non-negative value for m"),
        (
            PYTHON + "dynamic_batching { preferred_batch_size: 0 }",
            "dynamic batching preferred size must be positive for m",
        ),
        (
            PYTHON + "dynamic_batching { preferred_batch_size: [4, 5] }",
            "dynamic batching preferred size must be <= max batch size for m",
        ),
        (
            PYTHON + "dynamic_batching { priority_levels: 2 }",
            "default priority level must be in range [1, 2] for m",
        ),
        (
            PYTHON + "dynamic_batching { priority_levels: 2 default_priority_level: 3 }",
            "default priority level must be in range [1, 2] for m",
        ),
        (
            PYTHON
            + "dynamic_batching { priority_levels: 2 default_priority_level: 1 "
            + "priority_queue_policy { key: 3 value {} } }",
            "priority queue policy must have priority level in range [1, 2] for m",
        ),
        (
            PYTHON + "dynamic_batching { priority_levels: 2 default_priority_level: 1 preserve_ordering: true }",
            "Only one priority level is allowed when 'preserve_ordering' is true for m",
        ),
        (
            PYTHON
            + "dynamic_batching { preserve_ordering: true "
            + "default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1 } }",
            "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
        ),
        (
            PYTHON
            + "dynamic_batching { preserve_ordering: true priority_levels: 1 default_priority_level: 1 "
            + "priority_queue_policy { key: 1 value { timeout_action: DELAY default_timeout_microseconds: 1 } } }",
            "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
        ),
        (
            PYTHON + "sequence_batching {} response_cache { enable: true }",
            "Response Cache does not currently support model m with sequence batching scheduler. "
            "Please disable the response cache.",
        ),
        (
            PYTHON + "model_transaction_policy { decoupled: true } response_cache { enable: true }",
            "Response Cache does not currently support model m with 'decoupled' transaction policy. "
            "Please disable the response cache.",
        ),
        ('platform: "ensemble" ensemble_scheduling {}', "must specify 'step' for ensemble 'm'"),
        # 2.51 has no model_metrics yet.
        (PYTHON + "model_metrics { metric_control {} }", "metric control must specify 'metric_identifier'"),
        (
            PYTHON + "model_metrics { metric_control { metric_identifier {} } }",
            "metric identifier must specify non-empty 'family'",
        ),
        (
            PYTHON + "model_metrics { metric_control { metric_identifier { family: 'f' } } }",
            "metric control must specify 'histogram_options'",
        ),
        (
            PYTHON + "model_metrics { metric_control { metric_identifier { family: 'f' } histogram_options {} } }",
            "histogram options must specify non-empty 'buckets'",
        ),
    ],
)
def test_refused(text: str, message: str) -> None:
    assert refusal(text) == message


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (
            "kind: KIND_GPU",
            "has kind KIND_GPU but no GPUs are available; --gpu-fallback=cpu serves the model on the CPU",
        ),
        (
            "kind: KIND_GPU gpus: 0",
            "specifies invalid or unsupported gpu id 0. GPUs with at least the minimum required CUDA compute "
            "compatibility of 7.500000 are: ; --gpu-fallback=cpu serves the model on the CPU",
        ),
        ("kind: KIND_CPU gpus: 0", "has kind KIND_CPU but specifies one or more GPUs"),
        ("gpus: 0", "has kind KIND_CPU but specifies one or more GPUs"),
        ("kind: KIND_MODEL gpus: 0", "has kind KIND_MODEL but specifies one or more GPUs"),
        ('profile: "0"', "and platform specifies profile field which is only supported for TensorRT models"),
    ],
)
def test_instance_groups_refused(group: str, message: str) -> None:
    assert refusal(f"{PYTHON} instance_group {{ {group} }}") == f"instance group m_0 of model m {message}"


def test_tensorrt_profile_refused() -> None:
    assert refusal('platform: "tensorrt_plan" instance_group { profile: ["0", "-1"] }') == (
        "instance group m_0 of model m and platform tensorrt_plan specifies invalid profile -1. "
        "The field should contain the string representation of a non-negative integer."
    )


def test_groups_that_were_not_normalised() -> None:
    with pytest.raises(ServeError, match=r"^must specify one or more 'instance group's for m$"):
        validate_instance_groups(ModelConfig(name="m"))
    with pytest.raises(ServeError, match="unexpected kind KIND_AUTO") as caught:
        validate_instance_groups(parse_text('name: "m" instance_group {}', "c"))
    assert caught.value.code == Code.INTERNAL


def test_config_that_was_not_normalised() -> None:
    with pytest.raises(ServeError, match=r"^model configuration must specify 'name'$"):
        validate_model(ModelConfig())
    with pytest.raises(ServeError, match=r"^must specify 'version policy' for m$"):
        validate_model(ModelConfig(name="m", backend="python"))


def test_directory_name() -> None:
    validate_directory_name(ModelConfig(name="m"), "m")
    with pytest.raises(ServeError) as caught:
        validate_directory_name(ModelConfig(name="other"), "m")
    assert caught.value.message == (
        "unexpected directory name 'm' for model 'other', directory name must equal model name"
    )


def test_tensors_are_validated_too() -> None:
    assert refusal(PYTHON + "input {}") == "model input must specify 'name' for m"


def test_every_problem_is_found_with_its_field() -> None:
    config = parse_text(
        """
        name: "m" backend: "python" max_batch_size: -1
        dynamic_batching { preferred_batch_size: [ 0 ] preserve_ordering: true priority_levels: 2 }
        input [ { name: "a" data_type: TYPE_FP32 dims: [ 1 ] }, { dims: [ 0 ] } ]
        output [ { name: "b" } ]
        """,
        "c",
    )
    config.version_policy.latest.num_versions = 1
    config.instance_group.add(kind="KIND_CPU", gpus=[0])
    assert [error.path for error in problems(config)] == [
        ("max_batch_size",),
        ("dynamic_batching", "preferred_batch_size"),
        ("dynamic_batching", "preferred_batch_size"),
        ("dynamic_batching", "default_priority_level"),
        ("dynamic_batching", "preserve_ordering"),
        ("instance_group", 0, "gpus"),
        ("input", 1, "name"),
        ("input", 1, "data_type"),
        ("input", 1, "dims"),
        ("output", 0, "data_type"),
        ("output", 0, "dims"),
    ]


def test_more_instances_than_any_machine_could_run_are_refused() -> None:
    """Not upstream's: it starts as many as it is asked for."""
    group = "instance_group { count: %d }"
    assert refusal(PYTHON + group % 600 + group % 500) == (
        "model m asks for 1100 instances, and stubserve starts at most 1024"
    )
    assert refusal(PYTHON + group % (2**31 - 1)).startswith("model m asks for 2147483647 instances")


@pytest.mark.parametrize("tag", ['a\\"b', "_a", "a b", "é", "a\\nb"])
def test_metric_tags_that_no_scrape_could_read(tag: str) -> None:
    assert "cannot be part of a label" in refusal(PYTHON + f'metric_tags {{ key: "{tag}" value: "x" }}')
