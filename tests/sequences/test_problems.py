import pytest

from stubserve.errors import Code, ServeError, raise_first
from stubserve.model_config.parse import parse_text
from stubserve.model_config.proto import ModelConfig
from stubserve.sequences.problems import sequence_problems


def config_of(batching: str) -> ModelConfig:
    return parse_text(f'name: "m" max_batch_size: 4 sequence_batching {{ {batching} }}', "c")


def control(name: str, kind: str, rest: str) -> str:
    return f'control_input {{ name: "{name}" control {{ kind: CONTROL_SEQUENCE_{kind} {rest} }} }} '


INT32 = "int32_false_true: [0, 1]"
EITHER = "'int32_false_true', 'fp32_false_true' or 'bool_false_true'"


@pytest.mark.parametrize(
    "batching",
    [
        "",
        control("S", "START", "fp32_false_true: [0, 1]") + control("E", "END", "bool_false_true: [false, true]"),
        control("R", "READY", INT32) + control("C", "CORRID", "data_type: TYPE_STRING"),
        # One tensor may carry several kinds.
        f'control_input {{ name: "S" control {{ {INT32} }} control {{ kind: CONTROL_SEQUENCE_END {INT32} }} }}',
        "oldest { preferred_batch_size: [1, 4] }",
        "direct { minimum_slot_utilization: 1 }",
    ],
)
def test_accepted(batching: str) -> None:
    raise_first(sequence_problems(config_of(batching)))


@pytest.mark.parametrize("kind", ["START", "END", "READY", "CORRID"])
@pytest.mark.parametrize("dtype", ["TYPE_UINT64", "TYPE_FP32"])
def test_only_the_correlation_id_has_a_type(kind: str, dtype: str) -> None:
    config = config_of(control("C", kind, f"data_type: {dtype}"))
    if kind == "CORRID" and dtype == "TYPE_UINT64":
        raise_first(sequence_problems(config))
    else:
        with pytest.raises(ServeError):
            raise_first(sequence_problems(config))


@pytest.mark.parametrize(
    ("batching", "message"),
    [
        (control("", "START", INT32), "sequence batching control tensor must have a name for m"),
        (
            control("S", "START", INT32) + control("S", "END", INT32),
            "sequence batching control tensor 'S' is specified for multiple control kinds for m",
        ),
        (
            control("S", "END", INT32) + control("T", "END", INT32),
            "sequence batching specifies multiple CONTROL_SEQUENCE_END tensors for m",
        ),
        (control("S", "READY", ""), f"sequence batching must specify either {EITHER} for CONTROL_SEQUENCE_READY for m"),
        (
            control("S", "START", INT32 + " fp32_false_true: [0, 1]"),
            "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and "
            "'bool_false_true' for CONTROL_SEQUENCE_START for m",
        ),
        *(
            (
                control("S", "START", f"{values}: 1"),
                f"sequence batching control '{values}' must have exactly 2 entries for CONTROL_SEQUENCE_START for m",
            )
            for values in ("int32_false_true", "fp32_false_true", "bool_false_true")
        ),
        (
            control("C", "CORRID", "data_type: TYPE_UINT64 " + INT32),
            f"sequence batching must not specify either {EITHER} for CONTROL_SEQUENCE_CORRID for m",
        ),
        (
            control("C", "CORRID", "data_type: TYPE_FP32"),
            "unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are TYPE_UINT64, "
            "TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
        ),
        ("oldest { preferred_batch_size: 0 }", "sequence batching preferred batch size must be positive for m"),
        (
            "oldest { preferred_batch_size: 5 }",
            "sequence batching preferred batch size must be <= max batch size for m",
        ),
        *(
            (
                f"direct {{ minimum_slot_utilization: {value} }}",
                "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m",
            )
            for value in (-0.1, 1.5, "nan")
        ),
    ],
)
def test_refused(batching: str, message: str) -> None:
    with pytest.raises(ServeError) as caught:
        raise_first(sequence_problems(config_of(batching)))
    assert caught.value.code == Code.INVALID_ARG
    assert caught.value.message == message
