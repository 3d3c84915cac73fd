"""Which sequence each place of a batch is of, for the stub that keeps their states, and who is told to be over."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stubserve.inference.work import Work
from stubserve.schedulers.base import Scheduler
from tests.schedulers.requests import MS

from .playing import places, scheduler_of, step

STATE = 'state { input_name: "S" output_name: "T" data_type: TYPE_INT32 dims: [ 1 ] }'
OLDEST = "oldest { max_candidate_sequences: 2 }"


class Owner:
    """Polls a scheduler with one instance, which has done its work as soon as it is told."""

    def __init__(self, strategy: str, more: str = STATE, **config: int) -> None:
        self.scheduler: Scheduler = scheduler_of(f"{strategy} {more}", **config)
        self.scheduler.instance_idle("i")
        # In the order in which an owner does it
        self.told: list[object] = []

    def at(self, ms: int, *steps: tuple[object, ...]) -> None:
        for id, sequence, *flag in steps:
            self.scheduler.enqueue(step(id, sequence, *flag), ms * MS)  # type: ignore[arg-type]
        while True:
            decision = self.scheduler.poll(ms * MS)
            self.told += [number for _, number in decision.ended_sequences]
            for instance, work in decision.run:
                self.told.append(sequences(work))
                self.scheduler.work_done(instance, work)
                self.scheduler.instance_idle(instance)
            if not decision.run:
                return


def sequences(work: Work) -> dict[str | None, int]:
    numbers: Sequence[int] = work.sequences or ()
    assert len(numbers) == len(work.slots)
    return dict(zip(places(work), numbers, strict=True))


@pytest.mark.parametrize("strategy", ["direct {}", OLDEST])
def test_a_number_is_a_sequence_and_no_client(strategy: str) -> None:
    owner = Owner(strategy)
    owner.at(0, ("a1", 1, "start"), ("b1", "x", "start"))
    owner.at(1, ("a2", 1), ("b2", "x", "end"))
    # The same client again, in the slot that is free, and one that begins anew without an end
    owner.at(2, ("b3", "x", "both"), ("a3", 1, "start"))
    owner.at(3, ("b4", "x", "start"), ("a4", 1, "end"))
    assert owner.told == [
        {"a1": 1, "b1": 2},
        {"a2": 1, "b2": 2},
        {"a3": 1, "b3": 3},
        {"a4": 1, "b4": 4},
    ]


def test_the_next_sequence_of_a_slot_has_its_own_number() -> None:
    """Also where the request with END is still to be batched when the slot is given away."""
    for strategy, config in (("direct {}", {"max_batch_size": 1}), ("oldest { max_candidate_sequences: 1 }", {})):
        owner = Owner(strategy, **config)
        owner.at(0, ("a1", 1, "start"), ("b1", 2, "start"), ("a2", 1, "end"), ("b2", 2, "end"))
        assert owner.told == [{"a1": 1}, {"a2": 1}, {"b1": 2}, {"b2": 2}], strategy


def test_empty_places_are_of_no_sequence() -> None:
    owner = Owner("direct {}")
    owner.at(0, ("a1", 1, "start"), ("b1", 2, "start"))
    owner.at(1, ("b2", 2))
    assert owner.told[-1] == {None: 0, "b2": 2}


@pytest.mark.parametrize(("strategy", "config"), [("direct {}", {"max_batch_size": 1}), (OLDEST.replace("2", "1"), {})])
def test_who_is_idle_or_cancelled_is_told_before_the_next_one_runs(strategy: str, config: dict[str, int]) -> None:
    owner = Owner(strategy, idle_ms=100, **config)
    owner.at(0, ("a1", 1, "start"), ("b1", 2, "start"))
    assert owner.told == [{"a1": 1}]
    owner.at(150)
    assert owner.told == [{"a1": 1}, 1, {"b1": 2}]
    waits = step("b2", 2)
    owner.scheduler.enqueue(waits, 160 * MS)
    owner.scheduler.cancel(waits)
    owner.at(160)
    assert owner.told == [{"a1": 1}, 1, {"b1": 2}, 2]
    owner.scheduler.instance_gone("i")
    owner.at(170)
    assert owner.told[4:] == []


def test_models_without_states_pay_nothing() -> None:
    for strategy in ("direct {}", OLDEST):
        scheduler = scheduler_of(strategy, idle_ms=100)
        scheduler.instance_idle("i")
        scheduler.enqueue(step("a", 1, "start"), 0)
        ((_, work),) = scheduler.poll(0).run
        assert work.sequences is None
        scheduler.work_done("i", work)
        scheduler.instance_idle("i")
        assert scheduler.poll(500 * MS).ended_sequences == ()
