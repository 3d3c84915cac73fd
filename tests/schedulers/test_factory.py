from __future__ import annotations

import pytest

from stubserve.errors import Code, ServeError
from stubserve.inference.work import Grouping
from stubserve.model_config.parse import parse_text
from stubserve.schedulers.delay import BACKLOG_VARIABLE, HOLD_VARIABLE
from stubserve.schedulers.dynamic_batcher import DynamicBatcher
from stubserve.schedulers.factory import create_scheduler
from stubserve.schedulers.policy_queue import PriorityLevels, QueuePolicy
from stubserve.sequences.direct import DirectBatcher
from stubserve.sequences.oldest import OldestBatcher

from .requests import batches, request


def config_of(text: str):
    return parse_text(f'name: "m" {text}', "config.pbtxt")


def test_no_choice_is_the_default_scheduler():
    assert isinstance(create_scheduler(config_of("max_batch_size: 8")), DynamicBatcher)


def test_an_empty_dynamic_batching_is_a_choice():
    assert isinstance(create_scheduler(config_of("max_batch_size: 8 dynamic_batching {}")), DynamicBatcher)


def test_what_is_not_offered_is_refused_by_name():
    with pytest.raises(ServeError) as refused:
        create_scheduler(config_of("ensemble_scheduling {}"))
    assert refused.value.code is Code.UNSUPPORTED
    assert refused.value.message == (
        "model 'm' is configured with 'ensemble_scheduling', which stubserve does not offer yet"
    )


@pytest.mark.parametrize(
    ("choice", "kind"),
    [
        ("", DirectBatcher),
        ("direct {}", DirectBatcher),
        ("oldest {}", OldestBatcher),
        ("iterative_sequence: true", DirectBatcher),
        ("oldest {} iterative_sequence: true", OldestBatcher),
    ],
)
def test_strategies_of_sequences(choice, kind):
    assert isinstance(create_scheduler(config_of(f"sequence_batching {{ {choice} }}")), kind)


def test_a_backend_that_answers_one_by_one_gets_no_batches():
    scheduler = create_scheduler(
        config_of('backend: "remote" max_batch_size: 8 dynamic_batching { preferred_batch_size: 4 }')
    )
    for _ in range(8):
        scheduler.enqueue(request(), 0)
    scheduler.instance_idle("i", 2)
    assert [len(work.requests) for _, work in scheduler.poll(0).run] == [1, 1]


def test_policies_are_read_in_full():
    config = config_of(
        """dynamic_batching {
             priority_levels: 3 default_priority_level: 2
             default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 7 max_queue_size: 8 }
             priority_queue_policy { key: 3 value { default_timeout_microseconds: 9 allow_timeout_override: true } }
           }"""
    )
    assert PriorityLevels.from_config(config.dynamic_batching) == PriorityLevels(
        count=3,
        default=2,
        policy=QueuePolicy(delay_expired=True, default_timeout_us=7, max_queue_size=8),
        policies={3: QueuePolicy(default_timeout_us=9, allow_timeout_override=True)},
    )


@pytest.mark.parametrize(
    ("inputs", "trivial"),
    [
        ("dims: [3, 4]", True),
        ("dims: [3, -1]", False),
        ("dims: [-1] allow_ragged_batch: true", True),
        ("dims: [3] optional: true", False),
        ("dims: [3] is_shape_tensor: true", False),
    ],
)
def test_which_inputs_have_to_be_equal(inputs, trivial):
    config = config_of(f'input {{ name: "IN" data_type: TYPE_INT32 {inputs} }}')
    assert Grouping.from_config(config).trivial is trivial


@pytest.mark.parametrize(("value", "held"), [(None, 0), ("", 0), ("3", 3), ("no number", 0), ("-2", 0)])
def test_the_hold_variable(monkeypatch, value, held):
    if value is None:
        monkeypatch.delenv(HOLD_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(HOLD_VARIABLE, value)
    scheduler = create_scheduler(config_of("max_batch_size: 8 dynamic_batching {}"))
    scheduler.instance_idle("a")
    for i in range(4):
        scheduler.enqueue(request(i), 0)
        decision = scheduler.poll(0)
        # There are enough: it waits for one more, but not for long.
        if batches(decision) or decision.wake_at_ns == 10_000_000:
            break
    assert i + 1 == max(1, held)


@pytest.mark.parametrize(
    ("in_slots", "backlog", "needed"), [("", "2", 1), ("3", "", 3), ("3", "2", 5), ("2", "2", 5), ("x", "2", 1)]
)
def test_the_hold_variables_of_sequences(monkeypatch, in_slots, backlog, needed):
    """Three requests get to slots and then two to the backlog, which alone holds nothing, as upstream."""
    monkeypatch.setenv(HOLD_VARIABLE, in_slots)
    monkeypatch.setenv(BACKLOG_VARIABLE, backlog)
    scheduler = create_scheduler(
        config_of("max_batch_size: 1 sequence_batching { max_sequence_idle_microseconds: 1000000 }")
    )
    scheduler.instance_idle("a")
    for number, sequence in enumerate((7, 7, 7, 8, 9)):
        one = request(number, correlation_id=sequence, flags=1)
        scheduler.enqueue(one, 0)
        decision = scheduler.poll(0)
        ran = batches(decision)
        # There are enough: it waits for one more, but not for long.
        if ran or decision.wake_at_ns == 10_000_000:
            break
    assert number + 1 == needed
    assert ran or batches(scheduler.poll(10_000_000))
