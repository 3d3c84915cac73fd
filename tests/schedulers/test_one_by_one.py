from __future__ import annotations

import pytest

from stubserve.errors import Code
from stubserve.schedulers.dynamic_batcher import DynamicBatcher

from .requests import MS, Run, answers, batches, ids, request


def test_each_request_runs_alone_in_order_of_arrival():
    run = Run(DynamicBatcher(1), ["a"], busy_ns=10 * MS)
    run.enqueue([request(i) for i in range(4)])
    run.until_quiet()
    # Triton 2.51 runs a model without `dynamic_batching` the same way, max_batch_size 8 or not.
    assert run.log == [(10 * i * MS, "a", [str(i)]) for i in range(4)]


def test_the_longest_idle_instance_is_fed_first():
    scheduler = DynamicBatcher(1)
    for instance in "abc":
        scheduler.instance_idle(instance)
    fed = []
    for i, finishes in enumerate(["", "b", "", "a", ""]):
        if finishes:
            scheduler.instance_idle(finishes)
        scheduler.enqueue(request(i), i)
        fed += [instance for instance, _ in scheduler.poll(i).run]
        if i == 1:
            assert fed == ["a", "b"]
    assert fed == ["a", "b", "c", "a"]
    scheduler.instance_idle("c")
    assert [instance for instance, _ in scheduler.poll(9).run] == ["c"]


def test_one_poll_feeds_all_idle_instances_once_each():
    scheduler = DynamicBatcher(1)
    for instance in "aba":
        scheduler.instance_idle(instance)
    for i in range(3):
        scheduler.enqueue(request(i), 0)
    decision = scheduler.poll(0)
    assert [(instance, ids(work.requests)) for instance, work in decision.run] == [("a", ["0"]), ("b", ["1"])]
    assert decision.wake_at_ns is None
    assert scheduler.queued == 1


def test_an_instance_that_is_gone_gets_nothing():
    scheduler = DynamicBatcher(1)
    scheduler.instance_idle("a")
    scheduler.instance_idle("b")
    scheduler.instance_gone("a")
    scheduler.instance_gone("never seen")
    scheduler.enqueue(request(1), 0)
    scheduler.enqueue(request(2), 0)
    assert [instance for instance, _ in scheduler.poll(0).run] == ["b"]


def test_a_cancelled_request_is_answered_once_and_never_runs():
    scheduler = DynamicBatcher(1)
    requests = [request(i) for i in range(3)]
    for r in requests:
        scheduler.enqueue(r, 5)
    scheduler.cancel(requests[1])
    scheduler.cancel(requests[1])
    assert requests[1].cancelled
    assert scheduler.queued == 3
    decision = scheduler.poll(6)
    assert answers(decision) == [("1", "[request id: 1] Request was cancelled while it waited in the queue")]
    assert decision.answer[0][1].code is Code.CANCELLED
    assert scheduler.queued == 2
    for instance in "ab":
        scheduler.instance_idle(instance)
    decision = scheduler.poll(7)
    assert batches(decision) == [["0"], ["2"]]
    assert decision.answer == []


def test_cancelling_a_running_request_only_marks_it():
    scheduler = DynamicBatcher(1)
    scheduler.instance_idle("a")
    running = request(1)
    scheduler.enqueue(running, 0)
    assert batches(scheduler.poll(0)) == [["1"]]
    scheduler.cancel(running)
    assert running.cancelled
    assert scheduler.poll(1).answer == []


def test_a_request_cancelled_before_it_is_queued_is_answered():
    scheduler = DynamicBatcher(1)
    scheduler.instance_idle("a")
    gone = request(1)
    gone.cancelled = True
    scheduler.enqueue(gone, 0)
    decision = scheduler.poll(0)
    assert decision.run == []
    assert [r.id for r, _ in decision.answer] == ["1"]


@pytest.mark.parametrize("cancelled", [None, 0, 2])
def test_drain_returns_everything_not_yet_answered(cancelled):
    scheduler = DynamicBatcher(1)
    requests = [request(i) for i in range(3)]
    for r in requests:
        scheduler.enqueue(r, 0)
    if cancelled is not None:
        scheduler.cancel(requests[cancelled])
    assert sorted(ids(scheduler.drain())) == ["0", "1", "2"]
    assert scheduler.queued == 0
    scheduler.instance_idle("a")
    decision = scheduler.poll(1)
    assert (decision.run, decision.answer, decision.wake_at_ns) == ([], [], None)


def test_enqueue_notes_when_the_request_was_queued():
    scheduler = DynamicBatcher(1)
    r = request()
    scheduler.enqueue(r, 1234)
    assert r.queue_start_ns == 1234
