from __future__ import annotations

import pytest

from stubserve.ensembles.problems import is_decoupled, member_problems
from stubserve.errors import ServeError, raise_first
from stubserve.model_config.parse import parse_text
from stubserve.model_config.proto import ModelConfig

# Maps of one step: input or output of the model to tensor of the ensemble, as in "x:A"
Maps = tuple[str, str, str]


def tensors(kind: str, words: str) -> str:
    """Tensors out of words like "x:FP32[2,-1]", with "?" for an optional one."""
    text = ""
    for word in words.split():
        name, _, rest = word.partition(":")
        datatype, _, dims = rest.rstrip("?").partition("[")
        optional = "optional: true" if word.endswith("?") else ""
        text += f'{kind} {{ name: "{name}" data_type: TYPE_{datatype} dims: [{dims} {optional} }} '
    return text


def model(name: str, inputs: str, outputs: str, batch: int = 0, rest: str = "") -> ModelConfig:
    text = f'name: "{name}" max_batch_size: {batch} {tensors("input", inputs)} {tensors("output", outputs)} {rest}'
    return parse_text(text, "c")


def ensemble(steps: list[Maps], inputs: str, outputs: str, batch: int = 0) -> ModelConfig:
    text = ""
    for name, reads, writes in steps:
        maps = ""
        for kind, words in (("input_map", reads), ("output_map", writes)):
            for key, value in (word.split(":") for word in words.split()):
                maps += f'{kind} {{ key: "{key}" value: "{value}" }} '
        text += f'step {{ model_name: "{name}" {maps} }} '
    return model("e", inputs, outputs, batch, f'platform: "ensemble" ensemble_scheduling {{ {text} }}')


IDENTITY = model("m", "x:FP32[4]", "y:FP32[4]")
DECOUPLED = "model_transaction_policy { decoupled: true }"


def messages(config: ModelConfig, *members: ModelConfig) -> list[str]:
    return [error.message for error in member_problems(config, {member.name: member for member in members})]


@pytest.mark.parametrize(
    ("inputs", "outputs", "batch", "member"),
    [
        ("A:FP32[4]", "B:FP32[4]", 0, IDENTITY),
        ("A:FP32[-1]", "B:FP32[4]", 0, IDENTITY),
        # A model that does not batch sees the batch dimension as its first.
        ("A:FP32[4]", "B:FP32[4]", 8, model("m", "x:FP32[-1,4]", "y:FP32[-1,4]")),
        ("A:FP32[-1,4]", "B:FP32[-1,4]", 0, model("m", "x:FP32[4]", "y:FP32[4]", 8)),
        ("A:FP32[4]", "B:FP32[4]", 8, model("m", "x:FP32[4] extra:INT8[1]?", "y:FP32[4] more:INT8[1]", 8)),
    ],
)
def test_fits(inputs: str, outputs: str, batch: int, member: ModelConfig) -> None:
    config = ensemble([("m", "x:A", "y:B")], inputs, outputs, batch)
    raise_first(member_problems(config, {"m": member}))


def test_a_reshape_of_the_ensemble_is_what_its_steps_see() -> None:
    config = ensemble([("m", "x:A", "y:B")], "A:FP32[2,2]", "B:FP32[4]")
    config.input[0].reshape.shape.append(4)
    assert messages(config, IDENTITY) == []


@pytest.mark.parametrize(
    ("config", "members", "message"),
    [
        (
            ensemble([("m", "x:A", "y:B")], "A:FP32[4]", "B:FP32[4]", 8),
            [model("m", "x:FP32[4]", "y:FP32[4]", 4)],
            "ensemble e allows maximum batch size 8, but it contains model m which only allows maximum batch size to "
            "be 4",
        ),
        (
            ensemble([("m", "x:A z:A", "y:B")], "A:FP32[4]", "B:FP32[4]"),
            [IDENTITY],
            "in ensemble e, ensemble tensor A is mapping to non-existing input z in model m",
        ),
        (
            ensemble([("m", "x:A", "y:B")], "A:FP32[4]", "B:FP32[4]"),
            [model("m", "x:FP32[4] w:FP32[4]", "y:FP32[4]")],
            "in ensemble e, input w in model m is not mapped to any ensemble tensors",
        ),
        (
            ensemble([("m", "x:A", "y:B z:C")], "A:FP32[4]", "B:FP32[4]"),
            [IDENTITY],
            "in ensemble e, ensemble tensor C is mapped from non-existing output z in model m",
        ),
        (
            ensemble([("m", "x:A", "y:B")], "A:FP32[4]", "B:FP32[4]"),
            [model("m", "x:FP32[4]", "y:FP32[4] y:FP32[4]")],
            "in ensemble e, multiple outputs in model m are mapped to the same ensemble tensor B",
        ),
        (
            ensemble([("m", "x:A", "y:B")], "A:INT8[4]", "B:FP32[4]"),
            [IDENTITY],
            "in ensemble e, ensemble tensor A: inconsistent data type: TYPE_INT8 is inferred from model e while "
            "TYPE_FP32 is inferred from model m",
        ),
        (
            ensemble([("m", "x:A", "y:C"), ("n", "x:C", "y:B")], "A:FP32[4]", "B:FP32[5]"),
            [IDENTITY, model("n", "x:FP32[5]", "y:FP32[5]", 2)],
            "in ensemble e, ensemble tensor C: inconsistent shape: [4] is inferred from model m while [-1,5] is "
            "inferred from model n",
        ),
        (
            ensemble([("m", "x:A", "y:C"), ("n", "x:A", "y:D"), ("two", "x:C y:D", "z:B")], "A:FP32[4]", "B:FP32[4]"),
            [
                model("m", "x:FP32[4]", "y:FP32[4]", rest=DECOUPLED),
                model("n", "x:FP32[4]", "y:FP32[4]"),
                model("two", "x:FP32[4] y:FP32[4]", "z:FP32[4]"),
            ],
            "in ensemble e, step of model 'two' receives inputs originated from different decoupled models",
        ),
        (
            ensemble([("m", "x:A", "y:B"), ("n", "x:A", "y:C")], "A:FP32[4]", "B:FP32[4] C:FP32[4]"),
            [model("m", "x:FP32[4]", "y:FP32[4]", rest=DECOUPLED), model("n", "x:FP32[4]", "y:FP32[4]")],
            "in ensemble e, step of model 'e' receives inputs originated from different decoupled models",
        ),
    ],
)
def test_refused(config: ModelConfig, members: list[ModelConfig], message: str) -> None:
    assert messages(config, *members) == [message]


def test_everything_that_is_wrong_is_told_with_its_place() -> None:
    config = ensemble([("m", "q:A", "y:B"), ("m", "x:A", "q:C")], "A:FP32[4]", "B:FP32[4]")
    found = list(member_problems(config, {"m": IDENTITY}))
    assert [error.path for error in found] == [
        ("ensemble_scheduling", "step", 0),
        ("ensemble_scheduling", "step", 0),
        ("ensemble_scheduling", "step", 1),
    ]


@pytest.mark.parametrize(("rest", "expected"), [("", False), (DECOUPLED, True)])
def test_an_ensemble_is_decoupled_when_a_model_in_it_is(rest: str, expected: bool) -> None:
    config = ensemble([("m", "x:A", "y:C"), ("n", "x:C", "y:B")], "A:FP32[4]", "B:FP32[4]")
    members = {"m": model("m", "x:FP32[4]", "y:FP32[4]", rest=rest), "n": model("n", "x:FP32[4]", "y:FP32[4]")}
    assert is_decoupled(config, members) is expected


def test_a_stream_may_go_through_several_steps_and_meet_itself() -> None:
    steps = [("m", "x:A", "y:C z:D"), ("n", "x:C", "y:E"), ("two", "x:D y:E", "z:B")]
    config = ensemble(steps, "A:FP32[4]", "B:FP32[4]")
    members = {
        "m": model("m", "x:FP32[4]", "y:FP32[4] z:FP32[4]", rest=DECOUPLED),
        "n": model("n", "x:FP32[4]", "y:FP32[4]"),
        "two": model("two", "x:FP32[4] y:FP32[4]", "z:FP32[4]"),
    }
    assert is_decoupled(config, members)


def test_streams_that_meet_are_refused_by_the_question_too() -> None:
    steps = [("m", "x:A", "y:C"), ("two", "x:A y:C", "z:B")]
    config = ensemble(steps, "A:FP32[4]", "B:FP32[4]")
    members = {
        "m": model("m", "x:FP32[4]", "y:FP32[4]", rest=DECOUPLED),
        "two": model("two", "x:FP32[4] y:FP32[4]", "z:FP32[4]"),
    }
    with pytest.raises(ServeError, match="different decoupled models"):
        is_decoupled(config, members)
