"""Requests at times, and the batches and slots that come of them."""

# ruff: noqa: E501 - a case reads best on one line

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from .playing import Play, scheduler_of, step

# (ms, id, sequence, flag) and further fields of `step`
Event = tuple[Any, ...]
NOT_STARTED = (
    "inference request for sequence {} to model 'm' must specify the START flag on the first request of the sequence"
)
EXPIRED = "timeout of the corresponding sequence has been expired"


@dataclass
class Case:
    name: str
    strategy: str
    events: list[Event]
    # (ms, slots)
    runs: list[tuple[int, list[str | None]]]
    failed: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    busy_ms: int = 10


WAITS = "direct { max_queue_delay_microseconds: 50000 minimum_slot_utilization: 0.5 }"

CASES = [
    Case(
        "sequences keep their slots",
        "direct {}",
        [
            (0, "a1", 1, "start"), (0, "b1", 2, "start"), (0, "c1", 3, "start"),
            (20, "c2", 3), (40, "b2", 2), (60, "a2", 1), (60, "c3", 3),
        ],
        [(0, ["a1", "b1", "c1"]), (20, [None, None, "c2"]), (40, [None, "b2"]), (60, ["a2", None, "c3"])],
    ),
    Case(
        "requests of a sequence run one after the other",
        "direct {}",
        [(0, "a1", 1, "start"), (0, "a2", 1), (0, "a3", 1, "end"), (0, "b1", 2, "both")],
        [(0, ["a1", "b1"]), (10, ["a2"]), (20, ["a3"])],
    ),
    Case(
        "a slot is free when the end has been handed out",
        "direct {}",
        [(0, "a1", 1, "start"), (0, "b1", 2, "start"), (20, "a2", 1, "end"), (25, "c1", 3, "start"), (40, "c2", 3)],
        [(0, ["a1", "b1"]), (20, ["a2"]), (30, ["c1"]), (40, ["c2"])],
    ),
    Case(
        "the backlog gets the slot, all of it",
        "direct {}",
        [(0, "a1", 1, "start"), (0, "b1", 2, "start"), (0, "b2", 2), (5, "c1", 3, "both"), (30, "a2", 1, "end"), (60, "b3", 2, "end")],
        [(0, ["a1"]), (30, ["a2"]), (40, ["b1"]), (50, ["b2"]), (60, ["b3"]), (70, ["c1"])],
        config={"max_batch_size": 1},
    ),
    Case(
        "without batching there is one slot",
        "direct {}",
        [(0, "a1", 1, "start"), (0, "b1", 2, "both"), (20, "a2", 1, "end")],
        [(0, ["a1"]), (20, ["a2"]), (30, ["b1"])],
        config={"max_batch_size": 0},
    ),
    Case(
        "a start in a sequence goes to the same slot",
        "direct {}",
        [(0, "a1", 1, "start"), (0, "b1", 2, "start"), (20, "b2", 2, "start"), (40, "b3", 2, "end")],
        [(0, ["a1", "b1"]), (20, [None, "b2"]), (40, [None, "b3"])],
    ),
    Case(
        "a start behind an end that waits is another sequence",
        "direct {}",
        [(0, "a1", 1, "start"), (1, "a2", 1, "end"), (2, "a3", 1, "start"), (3, "a4", 1, "end")],
        [(0, ["a1"]), (10, ["a2", "a3"]), (20, [None, "a4"])],
    ),
    Case(
        "who has not begun, or has ended",
        "direct {}",
        [(0, "a1", 1), (0, "b1", 2, "both"), (20, "b2", 2, "end"), (20, "c1", "x"), (20, "d1", 0, "start"), (20, "e1", "", "start")],
        [(0, ["b1"])],
        failed={
            "a1": NOT_STARTED.format(1),
            "b2": NOT_STARTED.format(2),
            "c1": NOT_STARTED.format("x"),
            "d1": "inference request to model 'm' must specify a non-zero or non-empty correlation ID",
            "e1": "inference request to model 'm' must specify a non-zero or non-empty correlation ID",
        },
    ),
    Case(
        "ids of two kinds are never equal",
        "direct {}",
        [(0, "a1", 1, "start"), (0, "b1", "1", "start"), (20, "b2", "1")],
        [(0, ["a1", "b1"]), (20, [None, "b2"])],
    ),
    Case(
        "idle for too long",
        "direct {}",
        [(0, "a1", 1, "start"), (50, "b1", 2, "start"), (90, "a2", 1), (200, "a3", 1), (200, "b2", 2)],
        [(0, ["a1"]), (90, ["a2"]), (190, ["b1"]), (200, ["b2"])],
        failed={"a3": NOT_STARTED.format(1)},
        config={"max_batch_size": 1, "idle_ms": 100},
    ),
    Case(
        "idle while it executes: what is queued runs",
        "direct {}",
        [(0, "a1", 1, "start"), (0, "a2", 1), (150, "a3", 1), (150, "b1", 2, "both")],
        [(0, ["a1"]), (300, ["a2", "b1"])],
        failed={"a3": NOT_STARTED.format(1)},
        config={"idle_ms": 100},
        busy_ms=300,
    ),
    Case(
        "out of time in the backlog",
        "direct {}",
        [
            (0, "a1", 1, "start"), (0, "b1", 2, "start"), (5, "b2", 2, "", 30), (6, "b3", 2, "", 90),
            (40, "b4", 2), (50, "a2", 1, "end"), (50, "c1", 3, "both", 30),
        ],
        [(0, ["a1"]), (50, ["a2"]), (60, ["c1"])],
        failed={"b1": EXPIRED, "b2": EXPIRED, "b3": EXPIRED, "b4": NOT_STARTED.format(2)},
        config={"max_batch_size": 1},
    ),
    Case(
        "the shortest time of the backlog counts",
        "direct {}",
        [(0, "a1", 1, "start"), (0, "b1", 2, "start", 90), (5, "b2", 2, "", 30), (40, "c1", 3, "both"), (50, "a2", 1, "end")],
        [(0, ["a1"]), (50, ["a2"]), (60, ["c1"])],
        failed={"b1": EXPIRED, "b2": EXPIRED},
        config={"max_batch_size": 1},
    ),
    Case(
        "a timeout counts in the backlog only",
        "direct {}",
        [(0, "a1", 1, "start", 5), (0, "a2", 1, "end", 5)],
        [(0, ["a1"]), (100, ["a2"])],
        busy_ms=100,
    ),
    Case(
        "half of the slots",
        WAITS,
        [(0, "a1", 1, "start"), (20, "b1", 2, "start"), (40, "b2", 2), (95, "a2", 1, "end"), (95, "b3", 2, "end")],
        [(20, ["a1", "b1"]), (90, [None, "b2"]), (100, ["a2", "b3"])],
    ),
    Case(
        "a delay without utilization, and the other way round, waits for nothing",
        "direct { minimum_slot_utilization: 1.0 }",
        [(0, "a1", 1, "start"), (30, "a2", 1)],
        [(0, ["a1"]), (30, ["a2"])],
    ),
    Case(
        "shapes that differ wait for the next batch",
        "direct {}",
        [(0, "a1", 1, "start", 0, 2), (0, "b1", 2, "start", 0, 3), (0, "c1", 3, "start", 0, 2)],
        [(0, ["a1", None, "c1"]), (10, [None, "b1"])],
        config={"dims": "-1"},
    ),
    Case(
        "more than one row",
        "direct {}",
        [(0, "a1", 1, "start", 0, 1, 2)],
        [],
        failed={"a1": "inference request to model 'm' must specify batch-size 1 due to requirements of sequence batcher"},
    ),
    Case(
        "oldest: one request of each sequence in a batch",
        "oldest { max_candidate_sequences: 4 }",
        [(0, "a1", 1, "start"), (0, "a2", 1, "end"), (0, "b1", 2, "start"), (0, "b2", 2, "end"), (0, "c1", 3, "both")],
        [(0, ["a1", "b1", "c1"]), (10, ["a2", "b2"])],
    ),
    Case(
        "oldest: more candidates than rows",
        "oldest { max_candidate_sequences: 4 }",
        [(0, "a1", 1, "start"), (0, "b1", 2, "start"), (0, "c1", 3, "start"), (0, "a2", 1), (0, "b2", 2)],
        [(0, ["a1", "b1"]), (10, ["c1", "a2"]), (20, ["b2"])],
        config={"max_batch_size": 2},
    ),
    Case(
        "oldest: the backlog waits for a candidate's end",
        "oldest { max_candidate_sequences: 1 }",
        [(0, "a1", 1, "start"), (0, "b1", 2, "start"), (5, "b2", 2, "end"), (30, "a2", 1, "end")],
        [(0, ["a1"]), (30, ["a2"]), (40, ["b1"]), (50, ["b2"])],
    ),
    Case(
        "oldest: preferred sizes and the delay",
        "oldest { max_candidate_sequences: 4 preferred_batch_size: [2] max_queue_delay_microseconds: 50000 }",
        [(0, "a1", 1, "start"), (20, "b1", 2, "start"), (40, "c1", 3, "both")],
        [(20, ["a1", "b1"]), (90, ["c1"])],
    ),
    Case(
        "oldest: the delay counts from when it is a candidate",
        "oldest { max_candidate_sequences: 1 max_queue_delay_microseconds: 50000 }",
        [(0, "a1", 1, "start"), (0, "a2", 1, "end")],
        [(50, ["a1"]), (110, ["a2"])],
    ),
    Case(
        "oldest: idle for too long",
        "oldest { max_candidate_sequences: 1 }",
        [(0, "a1", 1, "start"), (50, "b1", 2, "start"), (110, "b2", 2), (150, "a2", 1)],
        [(0, ["a1"]), (100, ["b1"]), (110, ["b2"])],
        failed={"a2": NOT_STARTED.format(1)},
        config={"idle_ms": 100},
    ),
    Case(
        "oldest: as many candidates as rows where they are not said",
        "oldest {}",
        [(0, "a1", 1, "start"), (0, "b1", 2, "start"), (0, "c1", 3, "both"), (20, "a2", 1, "end")],
        [(0, ["a1", "b1"]), (20, ["a2"]), (30, ["c1"])],
        config={"max_batch_size": 2},
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_as_the_table_has_it(case: Case) -> None:
    play = Play(scheduler_of(case.strategy, **case.config), busy_ms=case.busy_ms)
    for at_ms in sorted({event[0] for event in case.events}):
        play.enqueue(at_ms, *(step(*event[1:]) for event in case.events if event[0] == at_ms))
    play.until()
    assert [(ms, slots) for ms, _, slots in play.log] == case.runs
    assert {id: text for _, id, text in play.failed} == case.failed
    assert play.scheduler.queued == 0


@pytest.mark.parametrize("strategy", ["direct {}", "oldest { max_candidate_sequences: 2 }"])
class TestInstances:
    def test_sequences_spread(self, strategy: str) -> None:
        play = Play(scheduler_of(strategy, 2), ("i", "j"))
        play.enqueue(0, *(step(f"s{number}", number, "start") for number in range(1, 6)))
        assert play.log == [(0, "i", ["s1", "s3"]), (0, "j", ["s2", "s4"])]
        play.enqueue(20, step("t4", 4), step("t1", 1))
        runs = sorted((instance, [one for one in slots if one]) for _, instance, slots in play.log[2:])
        assert runs == [("i", ["t1"]), ("j", ["t4"])]

    def test_a_dead_instance_ends_its_sequences(self, strategy: str) -> None:
        play = Play(scheduler_of(strategy, 2), ("i", "j"))
        play.enqueue(0, step("a1", 1, "start"), step("b1", 2, "start"))
        play.enqueue(2, step("a2", 1), step("b2", 2))
        assert play.lose(5, "i") == ["a1"]
        lost = (
            "sequence 1 of model 'm' has ended because its instance 'i' is gone, and its state with it; begin it anew "
            "with the START flag"
        )
        assert play.failed == [(5, "a2", lost)]
        play.enqueue(30, step("a3", 1))
        assert play.failed[1:] == [(30, "a3", lost)]
        play.enqueue(40, step("a4", 1, "start"), step("b3", 2))
        play.until(60)
        assert sorted(one for one in play.log[-1][2] if one) == ["a4", "b3"]
        assert len(play.failed) == 2

    def test_it_is_told_of_the_loss_until_it_would_have_been_idle_for_too_long(self, strategy: str) -> None:
        play = Play(scheduler_of(strategy, 2, idle_ms=100), ("i", "j"))
        play.enqueue(0, step("a1", 1, "start"))
        play.lose(20, "i")
        play.enqueue(99, step("a2", 1))
        play.enqueue(100, step("a3", 1))
        assert "is gone" in play.failed[0][2]
        assert play.failed[1] == (100, "a3", NOT_STARTED.format(1))

    def test_who_waits_gets_the_slots_of_an_instance_that_joins(self, strategy: str) -> None:
        play = Play(scheduler_of(strategy, 1, idle_ms=100), ())
        play.enqueue(0, step("a1", 1, "start"), step("b1", 2, "start"), step("b2", 2, "end"))
        play.join(500, "i")
        play.enqueue(520, step("a2", 1))
        play.join(530, "j")
        play.until()
        runs = [one for _, _, slots in play.log for one in slots]
        assert sorted(filter(None, runs)) == ["a1", "a2", "b1", "b2"]
        assert play.failed == []

    def test_what_is_drained_is_all_that_waits(self, strategy: str) -> None:
        play = Play(scheduler_of(strategy, 1), ("i",))
        play.enqueue(0, step("a1", 1, "start"))
        play.enqueue(1, step("a2", 1), step("b1", 2, "start"), step("b2", 2, "end"), step("c1", 3, "both"))
        assert sorted(one.id for one in play.scheduler.drain()) == ["a2", "b1", "b2", "c1"]
        assert play.scheduler.queued == 0
        play.until()
        assert play.scheduler.queued == 0


@pytest.mark.parametrize("strategy", ["direct {}", "oldest { max_candidate_sequences: 1 }"])
class TestCancelled:
    def test_one_that_waits_ends_its_sequence(self, strategy: str) -> None:
        play = Play(scheduler_of(strategy, 1))
        requests = [step("a1", 1, "start"), step("a2", 1), step("a3", 1), step("a4", 1)]
        play.enqueue(0, *requests)
        play.enqueue(1, step("b1", 2, "both"))
        play.cancel(5, requests[2])
        assert sorted(id for _, id, _ in play.failed) == ["a3", "a4"]
        play.enqueue(6, step("a5", 1))
        play.until()
        assert play.batches == [["a1"], ["a2"], ["b1"]]
        assert play.failed[2] == (6, "a5", NOT_STARTED.format(1))

    def test_one_in_the_backlog_ends_all_that_waits_with_it(self, strategy: str) -> None:
        play = Play(scheduler_of(strategy, 1))
        other = step("b2", 2)
        play.enqueue(0, step("a1", 1, "start"), step("b1", 2, "start"), other, step("c1", 3, "both"))
        play.cancel(5, other)
        assert sorted(id for _, id, _ in play.failed) == ["b1", "b2"]
        play.enqueue(20, step("a2", 1, "end"))
        play.until()
        assert play.batches == [["a1"], ["a2"], ["c1"]]

    def test_one_that_executes_ends_nothing(self, strategy: str) -> None:
        play = Play(scheduler_of(strategy, 1))
        first = step("a1", 1, "start")
        play.enqueue(0, first)
        play.cancel(5, first)
        play.enqueue(6, step("a2", 1, "end"))
        play.until()
        assert play.batches == [["a1"], ["a2"]]
        assert play.failed == []

    def test_one_that_nobody_waited_for_from_the_start(self, strategy: str) -> None:
        play = Play(scheduler_of(strategy, 1))
        gone = step("a1", 1, "start")
        gone.cancelled = True
        play.enqueue(0, gone)
        play.enqueue(1, step("b1", 2, "both"))
        assert [id for _, id, _ in play.failed] == ["a1"]
        assert play.batches == [["b1"]]


def test_a_candidate_that_is_cancelled_before_it_runs_ends_its_sequence() -> None:
    play = Play(scheduler_of("oldest { max_candidate_sequences: 2 }", 1))
    other = step("b1", 2, "start")
    play.enqueue(0, step("a1", 1, "start"), other, step("b2", 2))
    play.cancel(5, other)
    assert sorted(id for _, id, _ in play.failed) == ["b1", "b2"]
    play.enqueue(6, step("c1", 3, "both"))
    play.until()
    assert play.batches == [["a1"], ["c1"]]


def test_a_slot_is_free_once_when_its_sequence_has_ended_in_two_ways() -> None:
    """It was idle for too long while its request waited, and then that request was cancelled."""
    waits = "oldest { max_candidate_sequences: 2 max_queue_delay_microseconds: 9000 }"
    play = Play(scheduler_of(waits, 2, idle_ms=4), busy_ms=2)
    first = step("a1", 1, "start")
    play.enqueue(0, first)
    play.cancel(5, first)
    play.enqueue(6, step("b1", 2, "start"), step("c1", 3, "start"))
    # Both slots are taken; when that of sequence 3 is free at 10 ms, the fourth shares a batch with the second.
    play.enqueue(9, step("d1", 4, "both"), step("b2", 2))
    play.until()
    assert play.log == [(6, "i", ["b1", "c1"]), (10, "i", ["b2", "d1"])]


def test_a_slot_is_free_when_both_who_had_it_and_who_waited_for_it_are_cancelled() -> None:
    play = Play(scheduler_of("oldest { max_candidate_sequences: 1 max_queue_delay_microseconds: 9000 }", 2))
    last, next_ = step("a1", 1, "both"), step("b1", 2, "start")
    play.enqueue(0, last)
    play.enqueue(1, next_)
    play.cancel(2, next_)
    play.cancel(3, last)
    play.enqueue(4, step("c1", 3, "both"))
    play.until()
    assert play.log == [(13, "i", ["c1"])]


def test_a_cancelled_end_leaves_the_next_sequence_alone() -> None:
    play = Play(scheduler_of("oldest { max_candidate_sequences: 2 }", 1))
    last = step("b1", 2, "both")
    play.enqueue(0, step("a1", 1, "start"), last, step("c1", 3, "both"))
    play.cancel(5, last)
    play.until()
    assert play.batches == [["a1"], ["c1"]]
    assert [id for _, id, _ in play.failed] == ["b1"]
