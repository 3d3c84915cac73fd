from __future__ import annotations

import pytest

from stubserve.errors import Code, ServeError
from stubserve.inference.request import Request
from stubserve.inference.work import Work
from stubserve.schedulers.iterative import IterativeScheduler

from .requests import answers, batches, ids, request


def done(scheduler: IterativeScheduler, instance: str, *executed: Request) -> None:
    """An instance has executed these requests, and can have more."""
    scheduler.work_done(instance, Work(executed))
    scheduler.instance_idle(instance)


def test_rescheduled_requests_stay_and_new_ones_join():
    scheduler = IterativeScheduler("m", 2)
    scheduler.instance_idle("i")
    a, b, c = (request(name) for name in "abc")
    for r in (a, b, c):
        scheduler.enqueue(r, 0)
    assert batches(scheduler.poll(1)) == [["a", "b"]]
    assert [(r.correlation_id, r.flags) for r in (a, b)] == [(1, 1), (2, 1)]
    assert scheduler.reschedule(b, 2)
    done(scheduler, "i", a, b)
    assert batches(scheduler.poll(3)) == [["b", "c"]]
    assert (b.correlation_id, b.flags) == (2, 0)
    assert scheduler.reschedule(b, 4)
    assert scheduler.reschedule(c, 4)
    assert scheduler.queued == 2
    done(scheduler, "i", b, c)
    assert batches(scheduler.poll(5)) == [["b", "c"]]
    done(scheduler, "i", b, c)
    assert batches(scheduler.poll(6)) == []
    assert scheduler.queued == 0
    assert not scheduler.reschedule(b, 7)


def test_a_request_stays_on_its_instance():
    scheduler = IterativeScheduler("m", 0)
    a, b, c = (request(name) for name in "abc")
    for instance in ("i", "j"):
        scheduler.instance_idle(instance)
    for r in (a, b, c):
        scheduler.enqueue(r, 0)
    placed = {work.requests[0].id: instance for instance, work in scheduler.poll(1).run}
    assert set(placed) == {"a", "b"}
    for _ in range(3):
        for r in (a, b):
            assert scheduler.reschedule(r, 2)
        for r in (b, a):
            done(scheduler, placed[r.id], r)
        assert {work.requests[0].id: instance for instance, work in scheduler.poll(3).run} == placed
    done(scheduler, placed["b"], b)
    assert [(instance, ids(work.requests)) for instance, work in scheduler.poll(4).run] == [(placed["b"], ["c"])]


def test_cancelled_between_executions_and_while_executing():
    scheduler = IterativeScheduler("m", 4)
    a, b, c = (request(name) for name in "abc")
    for r in (a, b):
        scheduler.enqueue(r, 0)
    scheduler.instance_idle("i")
    scheduler.poll(1)
    scheduler.enqueue(c, 1)
    scheduler.reschedule(a, 2)
    for r in (a, b, c):
        scheduler.cancel(r)
    scheduler.reschedule(b, 3)
    done(scheduler, "i", a, b)
    decision = scheduler.poll(4)
    assert sorted(name for name, _ in answers(decision)) == ["a", "b", "c"]
    assert all(error.code is Code.CANCELLED for _, error in decision.answer)
    assert batches(decision) == []


def test_an_instance_that_is_gone_takes_its_sequences_along():
    scheduler = IterativeScheduler("m", 2)
    a, b = request("a"), request("b")
    scheduler.instance_idle("i")
    scheduler.enqueue(a, 0)
    scheduler.poll(1)
    scheduler.reschedule(a, 2)
    scheduler.instance_gone("i")
    scheduler.enqueue(b, 3)
    assert answers(scheduler.poll(4)) == [("a", "the model instance that ran this sequence is gone")]
    assert [r.id for r in scheduler.drain()] == ["b"]


def test_refusals():
    scheduler = IterativeScheduler("m", 2)
    known = request("a")
    known.correlation_id = 7
    with pytest.raises(ServeError, match="sequences of several requests are not offered"):
        scheduler.enqueue(known, 0)
    with pytest.raises(ServeError, match="must specify batch-size 1 due to requirements of sequence batcher"):
        scheduler.enqueue(request("b", size=2), 0)
