"""`iterative_sequence`: requests that execute again and again, each of them a sequence."""

from __future__ import annotations

from typing import Any

import pytest

from stubserve.errors import Code, ServeError
from stubserve.inference.request import Request
from stubserve.inference.work import Work
from stubserve.sequences.batcher import SequenceBatcher
from tests.schedulers.requests import request

from .playing import places, scheduler_of, step

Batches = list[tuple[str, list[str | None]]]


class Iterating:
    """A scheduler, whose instances say which requests they want to execute again."""

    def __init__(self, strategy: str, *instances: str, max_batch_size: int = 4) -> None:
        scheduler = scheduler_of(f"{strategy} iterative_sequence: true", max_batch_size, idle_ms=1)
        assert isinstance(scheduler, SequenceBatcher)
        self.scheduler = scheduler
        self.busy: dict[Any, Work] = {}
        self.answers: list[tuple[str, Code]] = []
        self.now_ns = 0
        for instance in instances or ("i",):
            scheduler.instance_idle(instance)

    def run(self, *requests: Request) -> Batches:
        """Requests come; the batches that are handed out."""
        # Any time between two executions is longer than max_sequence_idle_microseconds, which does not count here.
        self.now_ns += 1_000_000_000
        for one in requests:
            self.scheduler.enqueue(one, self.now_ns)
        decision = self.scheduler.poll(self.now_ns)
        self.busy.update(decision.run)
        self.answers += [(one.id, error.code) for one, error in decision.answer]
        return [(str(instance), places(work)) for instance, work in decision.run]

    def told(self, *requests: Request) -> list[tuple[object, int]]:
        """The sequence ids and flags that the model is told of requests that execute."""
        found = []
        for one in requests:
            [work] = [work for work in self.busy.values() if one in work.slots]
            assert work.options is not None
            found.append((work.options[work.slots.index(one)] or one.options)[:2])
        return found

    def done(self, *again: Request, instance: str = "i") -> None:
        work = self.busy.pop(instance)
        for one in again:
            assert self.scheduler.reschedule(one, self.now_ns)
        self.scheduler.work_done(instance, work)
        self.scheduler.instance_idle(instance)


def some(names: str) -> list[Request]:
    return [request(name) for name in names]


def test_rescheduled_requests_keep_their_places_and_new_ones_join() -> None:
    it = Iterating("direct {}", max_batch_size=3)
    a, b, c, d = some("abcd")
    assert it.run(a, b, c, d) == [("i", ["a", "b", "c"])]
    assert it.told(a, b, c) == [(1, 1), (2, 1), (3, 1)]
    it.done(a, c)
    assert it.run() == [("i", ["a", "d", "c"])]
    assert it.told(a, d, c) == [(1, 0), (4, 1), (3, 0)]
    it.done(c)
    assert it.scheduler.queued == 1
    assert it.run() == [("i", [None, None, "c"])]
    it.done()
    assert it.run() == []
    assert not it.scheduler.reschedule(c, 0)
    assert it.scheduler.sequences == it.scheduler.queued == 0


def test_the_oldest_strategy_has_no_empty_places() -> None:
    it = Iterating("oldest { max_candidate_sequences: 2 }")
    a, b, c = some("abc")
    assert it.run(a, b, c) == [("i", ["a", "b"])]
    it.done(b)
    assert it.run() == [("i", ["b", "c"])]
    assert it.told(b, c) == [(2, 0), (3, 1)]
    it.done(c)
    assert it.run() == [("i", ["c"])]


@pytest.mark.parametrize("strategy", ["direct {}", "oldest { max_candidate_sequences: 1 }"])
class TestWhateverTheStrategy:
    def test_a_request_stays_on_its_instance(self, strategy: str) -> None:
        it = Iterating(strategy, "i", "j", max_batch_size=0)
        a, b, c = some("abc")
        assert it.run(a, b, c) == [("i", ["a"]), ("j", ["b"])]
        for _ in range(3):
            it.done(b, instance="j")
            it.done(a)
            assert sorted(it.run()) == [("i", ["a"]), ("j", ["b"])]
        it.done(instance="j")
        assert it.run() == [("j", ["c"])]

    def test_those_of_one_id_run_one_after_the_other_however_often(self, strategy: str) -> None:
        it = Iterating(strategy)
        a, b, c = step("a", 7, "both"), step("b", 7, "start"), step("c", 7)
        assert it.run(a, b, c) == [("i", ["a"])]
        it.done(a)
        assert it.run() == [("i", ["a"])]
        it.done()
        assert it.run() == [("i", ["b"])]
        it.done(b)
        it.run()
        it.done()
        assert it.run() == [("i", ["c"])]
        it.done()
        it.run()
        with pytest.raises(ServeError, match="sequence 7 to model 'm' must specify the START flag"):
            it.run(step("d", 7, "end"))

    def test_ids_that_clients_have_are_not_given_to_others(self, strategy: str) -> None:
        it = Iterating(strategy)
        (a,) = some("a")
        it.run(step("own", 1, "start"), step("other", 2, "start"), a)
        while a not in it.busy["i"].slots:
            it.done()
            it.run()
        assert it.told(a) == [(3, 1)]

    def test_cancelled_between_executions_and_while_executing(self, strategy: str) -> None:
        it = Iterating(strategy, "i", "j")
        a, b, c = some("abc")
        assert it.run(a, b) == [("i", ["a"]), ("j", ["b"])]
        it.scheduler.cancel(b)
        it.done(a)
        it.scheduler.cancel(a)
        it.done(b, instance="j")
        assert [slots[-1] for _, slots in it.run(c)] == ["c"]
        assert sorted(it.answers) == [("a", Code.CANCELLED), ("b", Code.CANCELLED)]

    def test_one_behind_it_that_is_cancelled_leaves_the_one_that_runs_alone(self, strategy: str) -> None:
        it = Iterating(strategy, max_batch_size=1)
        a, b = step("a", 7, "start"), step("b", 7)
        it.run(a, b)
        it.scheduler.cancel(b)
        it.run(*some("c"))
        it.done(a)
        assert it.run() == [("i", ["a"])]
        it.done()
        assert it.run() == [("i", ["c"])]

    def test_an_instance_that_is_gone_takes_its_sequences_along(self, strategy: str) -> None:
        it = Iterating(strategy, max_batch_size=1)
        a, b = some("ab")
        it.run(a)
        it.done(a)
        it.scheduler.instance_gone("i")
        assert it.run(b) == []
        assert it.answers == [("a", Code.UNAVAILABLE)]
        assert [one.id for one in it.scheduler.drain()] == ["b"]


def test_more_than_one_row() -> None:
    with pytest.raises(ServeError, match="must specify batch-size 1 due to requirements of sequence batcher"):
        Iterating("direct {}").run(request("b", size=2))
