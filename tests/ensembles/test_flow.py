"""The flow of tensors through an ensemble, with texts in place of tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from stubserve.ensembles.flow import EnsembleFlow, StepRun
from stubserve.ensembles.plan import EnsemblePlan
from stubserve.errors import internal
from stubserve.model_config.proto import ModelConfig

Maps = tuple[str, Mapping[str, str], Mapping[str, str]]

# a → one(x→y) → b → two(x→y) → c
CHAIN: Sequence[Maps] = [("one", {"x": "a"}, {"y": "b"}), ("two", {"x": "b"}, {"y": "c"})]
# a → split → (b, c); b → left → d, c → right → e; (d, e) → join → f
DIAMOND: Sequence[Maps] = [
    ("split", {"x": "a"}, {"y": "b", "z": "c"}),
    ("left", {"x": "b"}, {"y": "d"}),
    ("right", {"x": "c"}, {"y": "e"}),
    ("join", {"x": "d", "y": "e"}, {"z": "f"}),
]


def plan_of(steps: Sequence[Maps], inputs: str, outputs: str) -> EnsemblePlan:
    config: Any = ModelConfig(name="pipeline")
    for name in inputs.split():
        config.input.add(name=name)
    for name in outputs.split():
        config.output.add(name=name)
    for model, reads, writes in steps:
        step = config.ensemble_scheduling.step.add(model_name=model, model_version=-1)
        step.input_map.update(reads)
        step.output_map.update(writes)
    return EnsemblePlan(config)


def uses(flow: EnsembleFlow[str], tensor: str) -> int:
    """How many take each turn of a tensor."""
    route = flow.route
    return next((made.uses for made in chain(route.given, *route.made) if made.tensor == tensor), 0)


class Caller:
    """Counts holds as the owner of a flow has to, and answers runs."""

    def __init__(self, flow: EnsembleFlow[str]) -> None:
        self.flow = flow
        self.held: Counter[str] = Counter()
        self.ran: list[tuple[str, int, dict[str, str]]] = []
        self.got: list[dict[str, str]] = []

    def begin(self, **inputs: str) -> list[StepRun[str]]:
        for name, value in inputs.items():
            self.held[value] += uses(self.flow, name)
        self.flow.begin(inputs)
        return self.runs()

    def answer(self, run: StepRun[str], last: bool = True, **outputs: str) -> list[StepRun[str]]:
        for name, value in outputs.items():
            self.held[value] += uses(self.flow, run.step.outputs.get(name, ""))
        self.flow.answer(run, outputs)
        return self.end(run) if last else self.runs()

    def end(self, run: StepRun[str]) -> list[StepRun[str]]:
        self.held.subtract(run.inputs.values())
        self.flow.end(run)
        return self.runs()

    def runs(self) -> list[StepRun[str]]:
        for outputs in self.flow.take_responses():
            self.held.subtract(outputs.values())
            self.got.append(outputs)
        runs = self.flow.take_runs()
        self.ran += [(run.step.model, run.turn, run.inputs) for run in runs]
        return runs

    def over(self) -> None:
        """Asserts that the flow is, and that no tensor is held any more."""
        assert self.flow.over
        for value, holds in self.flow.close():
            self.held[value] -= holds
        assert not +self.held
        assert not -self.held


def test_a_chain_runs_step_by_step() -> None:
    caller = Caller(EnsembleFlow(plan_of(CHAIN, "a", "c")))
    (one,) = caller.begin(a="1")
    (two,) = caller.answer(one, y="2")
    assert caller.answer(two, y="3") == []
    assert caller.ran == [("one", 0, {"x": "1"}), ("two", 0, {"x": "2"})]
    assert caller.got == [{"c": "3"}]
    caller.over()


def test_branches_run_side_by_side_and_a_join_waits_for_both() -> None:
    caller = Caller(EnsembleFlow(plan_of(DIAMOND, "a", "f")))
    (split,) = caller.begin(a="1")
    left, right = caller.answer(split, y="2", z="3")
    assert caller.answer(right, y="5") == []
    (join,) = caller.answer(left, y="4")
    assert join.inputs == {"x": "4", "y": "5"}
    caller.answer(join, z="6")
    assert caller.got == [{"f": "6"}]
    caller.over()


def test_outputs_come_in_the_order_of_the_configuration() -> None:
    caller = Caller(EnsembleFlow(plan_of(DIAMOND, "a", "f c b")))
    (split,) = caller.begin(a="1")
    left, right = caller.answer(split, z="3", y="2")
    (join,) = [*caller.answer(left, y="4"), *caller.answer(right, y="5")]
    caller.answer(join, z="6")
    assert [list(outputs) for outputs in caller.got] == [["f", "c", "b"]]
    caller.over()


def test_a_step_that_makes_nothing_that_is_wanted_does_not_run() -> None:
    flow = EnsembleFlow(plan_of(DIAMOND, "a", "d f"), ["d"])
    assert uses(flow, "c") == uses(flow, "f") == 0
    caller = Caller(flow)
    (split,) = caller.begin(a="1")
    (left,) = caller.answer(split, y="2", z="3")
    assert caller.answer(left, y="4") == []
    assert caller.got == [{"d": "4"}]
    caller.over()


def test_an_output_that_another_step_reads_is_made_although_it_is_not_requested() -> None:
    caller = Caller(EnsembleFlow(plan_of(CHAIN, "a", "b c"), ["c"]))
    (one,) = caller.begin(a="1")
    (two,) = caller.answer(one, y="2")
    caller.answer(two, y="3")
    assert caller.got == [{"c": "3"}]
    caller.over()


@pytest.mark.parametrize("requested", [None, ["c"], ["b", "c"]])
def test_an_output_that_is_declared_twice_is_answered_once(requested: list[str] | None) -> None:
    caller = Caller(EnsembleFlow(plan_of(CHAIN, "a", "c b c"), requested))
    (one,) = caller.begin(a="1")
    (two,) = caller.answer(one, y="2")
    caller.answer(two, y="3")
    assert caller.got == [
        {name: {"b": "2", "c": "3"}[name] for name in ("c", "b") if not requested or name in requested}
    ]
    caller.over()


def test_an_input_that_is_an_output_too() -> None:
    caller = Caller(EnsembleFlow(plan_of(CHAIN, "a", "a c")))
    (one,) = caller.begin(a="1")
    (two,) = caller.answer(one, y="2")
    caller.answer(two, y="3")
    assert caller.got == [{"a": "1", "c": "3"}]
    caller.over()


def test_a_tensor_that_is_mapped_to_two_inputs_of_a_step_is_used_twice() -> None:
    flow = EnsembleFlow(plan_of([("both", {"x": "a", "y": "a"}, {"z": "b"})], "a", "b"))
    assert uses(flow, "a") == 2
    caller = Caller(flow)
    (both,) = caller.begin(a="1")
    assert both.inputs == {"x": "1", "y": "1"}
    caller.answer(both, z="2")
    caller.over()


def test_each_response_of_a_decoupled_step_is_a_turn() -> None:
    caller = Caller(EnsembleFlow(plan_of(CHAIN, "a", "c")))
    (one,) = caller.begin(a="1")
    (first,) = caller.answer(one, last=False, y="2")
    (second,) = caller.answer(one, last=False, y="3")
    assert caller.end(one) == []
    caller.answer(second, y="5")
    assert not caller.flow.over
    caller.answer(first, y="4")
    assert caller.ran == [("one", 0, {"x": "1"}), ("two", 0, {"x": "2"}), ("two", 1, {"x": "3"})]
    # Turns are counted as answers arrive; whoever wants them in order keeps the steps' responses in order.
    assert caller.got == [{"c": "5"}, {"c": "4"}]
    caller.over()


def test_a_turn_that_never_meets_its_like_is_given_back() -> None:
    steps: Sequence[Maps] = [("many", {"x": "a"}, {"y": "b"}), ("join", {"x": "a", "y": "b"}, {"z": "c"})]
    caller = Caller(EnsembleFlow(plan_of(steps, "a", "c")))
    (many,) = caller.begin(a="1")
    (join,) = caller.answer(many, last=False, y="2")
    assert caller.answer(many, last=False, y="3") == []
    caller.end(many)
    caller.answer(join, z="4")
    assert caller.got == [{"c": "4"}]
    caller.over()


def test_a_step_that_never_answers_leaves_nothing_to_wait_for() -> None:
    caller = Caller(EnsembleFlow(plan_of(CHAIN, "a", "c")))
    (one,) = caller.begin(a="1")
    assert caller.end(one) == []
    assert caller.flow.over
    assert caller.got == []
    caller.over()


def test_an_output_that_is_missing_is_absent_from_then_on() -> None:
    caller = Caller(EnsembleFlow(plan_of(DIAMOND, "a", "f d")))
    (split,) = caller.begin(a="1")
    left, right = caller.answer(split, y="2")
    assert right.inputs == {}
    (join,) = [*caller.answer(left), *caller.answer(right, y="5")]
    assert join.inputs == {"y": "5"}
    caller.answer(join, z="6")
    assert caller.got == [{"f": "6"}]
    caller.over()


def test_an_optional_input_may_be_missing() -> None:
    caller = Caller(EnsembleFlow(plan_of([("one", {"x": "a", "y": "b"}, {"z": "c"})], "a b", "c")))
    (one,) = caller.begin(a="1")
    assert one.inputs == {"x": "1"}
    caller.answer(one, z="2")
    caller.over()


def test_after_a_failure_nothing_begins_and_what_runs_is_waited_for() -> None:
    caller = Caller(EnsembleFlow(plan_of(DIAMOND, "a", "f")))
    (split,) = caller.begin(a="1")
    left, right = caller.answer(split, y="2", z="3")
    caller.flow.fail(internal("broken"))
    caller.flow.fail(internal("broken, too"))
    caller.end(left)
    assert not caller.flow.over
    assert caller.answer(right, y="5") == []
    assert caller.flow.error is not None
    assert caller.flow.error.message == "broken"
    assert caller.got == []
    caller.over()


def test_a_run_that_has_not_begun_when_all_fails_gives_its_inputs_back() -> None:
    caller = Caller(EnsembleFlow(plan_of(DIAMOND, "a", "f")))
    (split,) = caller.begin(a="1")
    for value in ("2", "3"):
        caller.held[value] += 1
    caller.flow.answer(split, {"y": "2", "z": "3"})
    caller.flow.fail(internal("no memory"))
    assert caller.end(split) == []
    caller.over()


@given(st.data())
def test_holds_are_balanced_whatever_happens(data: st.DataObject) -> None:
    """A random ensemble, answered in random order, any number of times, with outputs missing, perhaps failing."""
    count = data.draw(st.integers(1, 6))
    steps = []
    tensors = ["t0"]
    for index in range(count):
        reads = data.draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=3))
        writes = [f"t{len(tensors) + number}" for number in range(data.draw(st.integers(1, 2)))]
        tensors += writes
        steps.append(
            (
                f"m{index}",
                {f"x{number}": tensor for number, tensor in enumerate(reads)},
                {f"y{number}": tensor for number, tensor in enumerate(writes)},
            )
        )
    outputs = data.draw(st.lists(st.sampled_from(tensors[1:]), min_size=1, unique=True))
    requested = data.draw(st.none() | st.lists(st.sampled_from(outputs), min_size=1))
    caller = Caller(EnsembleFlow(plan_of(steps, "t0", " ".join(outputs)), requested))
    serial = 0
    open_ = caller.begin(t0="v0")
    while open_:
        run = data.draw(st.sampled_from(open_))
        if data.draw(st.integers(0, 20)) == 0:
            caller.flow.fail(internal("broken"))
        if data.draw(st.booleans()) and serial < 60:
            made = {}
            for name in run.step.outputs:
                if data.draw(st.integers(0, 5)):
                    serial += 1
                    made[name] = f"v{serial}"
            open_ += caller.answer(run, last=False, **made)
        else:
            open_.remove(run)
            open_ += caller.end(run)
    caller.over()


def test_a_plan_says_what_it_is_of() -> None:
    config: Any = text_format.Parse(
        'name: "p" ensemble_scheduling { step { model_name: "m" model_version: 2 input_map { key: "x" value: "a" } } }',
        ModelConfig(),
    )
    plan = EnsemblePlan(config)
    assert (plan.steps[0].model, plan.steps[0].version, plan.steps[0].inputs) == ("m", 2, {"x": "a"})
    assert repr(plan) == "<EnsemblePlan 'p': ['m']>"


@pytest.mark.parametrize("requested", [None, ["c"], ["c", "unknown"]])
def test_a_name_that_is_no_output_changes_nothing(requested: list[str] | None) -> None:
    assert plan_of(CHAIN, "a", "c").route(requested).outputs == ("c",)
