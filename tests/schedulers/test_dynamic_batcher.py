"""The rules of the dynamic batcher, one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stubserve.errors import Code, ServeError
from stubserve.inference.work import Grouping
from stubserve.schedulers.dynamic_batcher import DynamicBatcher
from stubserve.schedulers.policy_queue import PriorityLevels, QueuePolicy

from .requests import MS, Run, answers, batches, ids, request


def filled(batcher: DynamicBatcher, sizes: list[int], now_ns: int = 0, first_id: int = 0) -> DynamicBatcher:
    for i, size in enumerate(sizes, first_id):
        batcher.enqueue(request(i, size=size), now_ns)
    return batcher


def sizes_of_batches(batcher: DynamicBatcher, now_ns: int, instances: int = 9) -> list[list[int]]:
    for i in range(instances):
        batcher.instance_idle(i)
    return [[r.batch_size for r in work.requests] for _, work in batcher.poll(now_ns).run]


# How large a batch is, where max_batch_size, preferred sizes and request sizes disagree


@pytest.mark.parametrize(
    ("max_batch_size", "preferred", "sizes", "expected"),
    [
        pytest.param(8, [], [1], [[1]], id="one"),
        pytest.param(8, [], [1] * 10, [[1] * 8, [1] * 2], id="full, then the rest"),
        pytest.param(8, [], [8, 8], [[8], [8]], id="full requests"),
        pytest.param(8, [], [3, 3, 3], [[3, 3], [3]], id="a request is never split"),
        pytest.param(8, [], [7, 3, 1], [[7], [3, 1]], id="a request is never skipped"),
        pytest.param(0, [], [1, 1], [[1], [1]], id="no batch dimension"),
        pytest.param(1, [], [1, 1], [[1], [1]], id="batches of one"),
        pytest.param(8, [4], [1] * 3, [[1] * 3], id="less than preferred does not wait"),
        pytest.param(8, [4], [1] * 6, [[1] * 4, [1] * 2], id="preferred wins over more"),
        pytest.param(8, [4], [1] * 8, [[1] * 4, [1] * 4], id="twice preferred is two batches"),
        pytest.param(8, [2, 4], [1] * 7, [[1] * 4, [1] * 2, [1]], id="the largest preferred that fits"),
        pytest.param(8, [4, 2], [1] * 3, [[1] * 2, [1]], id="a smaller preferred wins over all"),
        pytest.param(8, [4], [3, 3], [[3], [3]], id="preferred would be exceeded"),
        pytest.param(8, [4], [6, 1], [[6], [1]], id="larger than every preferred size runs alone"),
        pytest.param(8, [4], [6], [[6]], id="larger than every preferred size, nothing behind"),
        pytest.param(8, [4, 8], [5, 1], [[5, 1]], id="between preferred sizes"),
        pytest.param(8, [4, 8], [5, 4], [[5], [4]], id="between preferred sizes, the next too large"),
        pytest.param(8, [2, 8], [2, 3, 4], [[2], [3, 4]], id="back to the last preferred size"),
        pytest.param(8, [8], [3, 6], [[3], [6]], id="max would be exceeded"),
        pytest.param(8, [1], [1, 1], [[1], [1]], id="preferred one"),
        pytest.param(8, [3], [2, 2, 2], [[2], [2], [2]], id="preferred cannot be reached"),
        pytest.param(4, [4], [0, 0, 4], [[0, 0], [4]], id="a request of no rows counts as one"),
    ],
)
def test_batch_sizes_without_delay(max_batch_size, preferred, sizes, expected):
    batcher = filled(DynamicBatcher(max_batch_size, preferred), sizes)
    assert sizes_of_batches(batcher, now_ns=0) == expected


@pytest.mark.parametrize(
    ("preferred", "sizes", "young", "overdue"),
    [
        pytest.param([], [1] * 3, [], [[1] * 3], id="waits to fill up"),
        pytest.param([], [1] * 8, [[1] * 8], [[1] * 8], id="full"),
        pytest.param([], [1] * 9, [[1] * 8], [[1] * 8, [1]], id="the rest waits"),
        pytest.param([], [5, 5], [[5]], [[5], [5]], id="cannot grow any more"),
        pytest.param([4], [1] * 3, [], [[1] * 3], id="waits for the preferred size"),
        pytest.param([4], [1] * 4, [[1] * 4], [[1] * 4], id="preferred"),
        pytest.param([4], [1] * 6, [[1] * 4], [[1] * 6], id="overdue ignores preferred sizes"),
        pytest.param([4], [3, 3], [[3]], [[3, 3]], id="overdue fills up to max"),
        pytest.param([4], [6], [[6]], [[6]], id="beyond preferred does not wait"),
        pytest.param([4], [6, 1], [[6]], [[6, 1]], id="beyond preferred, the rest waits"),
        pytest.param([2, 8], [2, 3], [[2]], [[2, 3]], id="a preferred size at hand"),
        pytest.param([4, 8], [3, 2], [], [[3, 2]], id="jumped over a preferred size"),
    ],
)
def test_batch_sizes_with_delay(preferred, sizes, young, overdue):
    def sizes_at(now_ns):
        return sizes_of_batches(filled(DynamicBatcher(8, preferred, max_queue_delay_us=1000), sizes), now_ns)

    assert sizes_at(MS - 1) == young
    assert sizes_at(MS) == overdue


# Work that no later request could join


@pytest.mark.parametrize(
    ("max_batch_size", "preferred", "sizes", "closed"),
    [
        pytest.param(8, [], [1] * 7, [], id="one more could join"),
        pytest.param(8, [], [1] * 8, [[1] * 8], id="full"),
        pytest.param(8, [], [1] * 9, [[1] * 8], id="full, and one more"),
        pytest.param(8, [], [5, 5], [[5]], id="the next does not fit"),
        pytest.param(1, [], [1, 1], [[1], [1]], id="batches of one"),
        pytest.param(8, [2, 4], [1] * 2, [], id="a larger preferred size could be reached"),
        pytest.param(8, [2, 4], [1] * 5, [[1] * 4], id="the largest preferred size is reached"),
        pytest.param(8, [4], [3, 3], [[3]], id="preferred would be exceeded"),
    ],
)
def test_closed_work_is_what_cannot_grow_any_more(max_batch_size, preferred, sizes, closed):
    batcher = DynamicBatcher(max_batch_size, preferred)
    batcher.instance_idle("a", 0, 9)
    filled(batcher, sizes)
    assert [[r.batch_size for r in work.requests] for _, work in batcher.poll(0).run] == closed
    batcher.instance_idle("a", 1, 0)
    rest = [[r.batch_size for r in work.requests] for _, work in batcher.poll(0).run]
    assert rest == ([sizes[sum(map(len, closed)) :]] if sum(map(len, closed)) < len(sizes) else [])


def test_another_shape_closes_a_batch():
    batcher = DynamicBatcher(8, grouping=Grouping(variable={"IN"}))
    batcher.instance_idle("a", 1, 2)
    for i, width in enumerate([1, 2, 2, 3, 4, 4, 5]):
        batcher.enqueue(request(i, width=width), 0)
    assert batches(batcher.poll(0)) == [["0"], ["1", "2"], ["3"]]  # one of any kind, and two closed ones
    assert batches(batcher.poll(0)) == []
    batcher.instance_idle("a", 0, 9)
    assert batches(batcher.poll(0)) == [["4", "5"]]
    batcher.enqueue(request(7, width=5), 0)
    assert batches(batcher.poll(0)) == []
    batcher.instance_idle("a", 2, 9)
    assert batches(batcher.poll(0)) == [["6", "7"]]


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 2)), max_size=40),
    st.integers(0, 8),
    st.sets(st.integers(1, 8)),
)
def test_closed_work_is_the_batch_that_would_have_been_formed_later(arrivals, max_batch_size, preferred):
    early, late = (DynamicBatcher(max_batch_size, preferred, grouping=Grouping(variable={"IN"})) for _ in range(2))
    formed = []
    for i, (size, width) in enumerate(arrivals):
        early.enqueue(request(i, size, width=width), i)
        late.enqueue(request(i, size, width=width), i)
        early.instance_idle("a", 0, 100)
        formed += batches(early.poll(i))
    for batcher in early, late:
        batcher.instance_idle("a", 100, 0)
    assert formed + batches(early.poll(99)) == batches(late.poll(99))


# Work that is ripe


def test_a_batch_that_could_grow_goes_ahead_when_it_is_ripe():
    batcher = DynamicBatcher(4)
    batcher.instance_idle("a", 1, 1, 700)
    filled(batcher, [1], first_id=0)
    assert batches(batcher.poll(100)) == [["0"]]
    assert batcher.poll(150).wake_at_ns is None
    filled(batcher, [1], first_id=1)
    assert (batches(decision := batcher.poll(200)), decision.wake_at_ns) == ([], 800)
    filled(batcher, [1], first_id=2)
    assert (batches(decision := batcher.poll(799)), decision.wake_at_ns) == ([], 800)
    assert (batches(decision := batcher.poll(800)), decision.wake_at_ns) == ([["1", "2"]], None)
    filled(batcher, [1], first_id=3)
    assert (batches(decision := batcher.poll(9999)), decision.wake_at_ns) == ([], None)  # one ahead, not two
    batcher.instance_idle("a", 0, 1, 700)  # it executes the second one now
    assert (batches(decision := batcher.poll(10_000)), decision.wake_at_ns) == ([], 10_700)
    batcher.instance_idle("a", 1, 1, 700)
    assert batches(batcher.poll(10_300)) == [["3"]]


def test_a_full_batch_goes_ahead_before_it_is_ripe():
    batcher = DynamicBatcher(2)
    batcher.instance_idle("a", 1, 1, 700)
    filled(batcher, [1, 1, 1, 1, 1])
    assert (batches(decision := batcher.poll(100)), decision.wake_at_ns) == ([["0", "1"], ["2", "3"]], None)


def test_what_is_ripe_while_nothing_waits_goes_ahead_as_it_comes():
    batcher = DynamicBatcher(4)
    batcher.instance_idle("a", 0, 1, 700)
    assert batcher.poll(100).wake_at_ns is None
    filled(batcher, [1])
    assert batches(batcher.poll(900)) == [["0"]]


def test_a_ripe_batch_waits_for_its_delay_all_the_same():
    batcher = DynamicBatcher(4, max_queue_delay_us=1)
    batcher.instance_idle("a", 0, 1, 700)
    assert batcher.poll(100).wake_at_ns is None
    filled(batcher, [1], now_ns=750)
    assert (batches(decision := batcher.poll(800)), decision.wake_at_ns) == ([], 1750)
    assert batches(batcher.poll(1750)) == [["0"]]


def test_what_is_said_of_an_instance_counts_in_place_of_what_was_said_before():
    batcher = DynamicBatcher(1)
    batcher.instance_idle("a", 2, 3)
    batcher.instance_idle("a", 0, 0)
    filled(batcher, [1, 1])
    assert batches(batcher.poll(0)) == []


def test_the_delay_counts_from_the_oldest_request():
    batcher = DynamicBatcher(8, max_queue_delay_us=1000)
    batcher.instance_idle("a")
    filled(batcher, [1], now_ns=100)
    assert batcher.poll(100).wake_at_ns == 100 + MS
    filled(batcher, [1], now_ns=700_000, first_id=1)
    assert batcher.poll(700_000).wake_at_ns == 100 + MS
    assert batcher.poll(99 + MS).run == []
    decision = batcher.poll(100 + MS)
    assert batches(decision) == [["0", "1"]]
    assert decision.wake_at_ns is None


def test_the_rest_of_a_batch_waits_from_its_own_arrival():
    batcher = DynamicBatcher(8, [2], max_queue_delay_us=1000)
    batcher.instance_idle("a")
    batcher.instance_idle("b")
    filled(batcher, [1], now_ns=0)
    filled(batcher, [1, 1], now_ns=400_000, first_id=1)
    decision = batcher.poll(400_000)
    assert batches(decision) == [["0", "1"]]
    assert decision.wake_at_ns == 400_000 + MS


def test_a_waiting_batch_leaves_as_soon_as_it_is_complete():
    batcher = DynamicBatcher(8, [3, 6], max_queue_delay_us=1000)
    batcher.instance_idle("a")
    for i in range(2):
        filled(batcher, [1], now_ns=i, first_id=i)
        assert batcher.poll(i).run == []
    filled(batcher, [1], now_ns=2, first_id=2)
    assert batches(batcher.poll(2)) == [["0", "1", "2"]]


def test_a_cancelled_request_makes_a_waiting_batch_smaller():
    batcher = DynamicBatcher(8, [3], max_queue_delay_us=1000)
    batcher.instance_idle("a")
    first = request("first")
    batcher.enqueue(first, 0)
    filled(batcher, [1], now_ns=10)
    assert batcher.poll(10).wake_at_ns == MS
    batcher.cancel(first)
    filled(batcher, [1], now_ns=20, first_id=1)
    decision = batcher.poll(20)
    assert decision.run == []
    assert [r.id for r, _ in decision.answer] == ["first"]
    assert decision.wake_at_ns == 10 + MS
    filled(batcher, [1], now_ns=30, first_id=2)
    assert batches(batcher.poll(30)) == [["0", "1", "2"]]


def test_a_cancelled_request_no_longer_sets_the_time():
    batcher = DynamicBatcher(8, max_queue_delay_us=1000)
    batcher.instance_idle("a")
    first = request("first")
    batcher.enqueue(first, 0)
    filled(batcher, [1], now_ns=10)
    assert batcher.poll(10).wake_at_ns == MS
    batcher.cancel(first)
    assert batcher.poll(20).wake_at_ns == 10 + MS


def test_a_large_request_completes_a_waiting_batch():
    batcher = filled(DynamicBatcher(8, [4], max_queue_delay_us=1000), [1])
    batcher.instance_idle("a")
    assert batcher.poll(0).run == []
    filled(batcher, [3], now_ns=1, first_id=1)
    assert batches(batcher.poll(1)) == [["0", "1"]]


# Instances


def test_without_an_idle_instance_no_batch_is_formed_and_nothing_wakes():
    batcher = filled(DynamicBatcher(8, max_queue_delay_us=1000), [1])
    decision = batcher.poll(0)
    assert (decision.run, decision.answer, decision.wake_at_ns) == ([], [], None)
    filled(batcher, [1] * 6, now_ns=5 * MS, first_id=1)
    batcher.instance_idle("a")
    # All that arrived while the instance was busy shares the batch.
    assert batches(batcher.poll(5 * MS)) == [[str(i) for i in range(7)]]


def test_batches_go_to_the_longest_idle_instance():
    batcher = DynamicBatcher(1)
    for instance in ["a", "b", "c"]:
        batcher.instance_idle(instance)
    batcher.instance_gone("b")
    filled(batcher, [1, 1, 1])
    decision = batcher.poll(0)
    assert [(instance, ids(work.requests)) for instance, work in decision.run] == [("a", ["0"]), ("c", ["1"])]
    batcher.instance_idle("c")
    batcher.instance_idle("a")
    assert [instance for instance, _ in batcher.poll(1).run] == ["c"]


def test_a_waiting_batch_whose_instance_is_gone_waits_for_the_next_one():
    batcher = filled(DynamicBatcher(8, max_queue_delay_us=1000), [1])
    batcher.instance_idle("a")
    assert batcher.poll(0).wake_at_ns == MS
    batcher.instance_gone("a")
    decision = batcher.poll(MS)
    assert (decision.run, decision.wake_at_ns) == ([], None)
    batcher.instance_idle("b")
    assert batches(batcher.poll(MS)) == [["0"]]


def test_cancelled_requests_are_answered_without_an_idle_instance():
    batcher = DynamicBatcher(8)
    requests = [request(i) for i in range(3)]
    for r in requests:
        batcher.enqueue(r, 0)
    batcher.cancel(requests[0])
    batcher.cancel(requests[2])
    assert batcher.queued == 3
    decision = batcher.poll(0)
    assert [(r.id, error.code) for r, error in decision.answer] == [("0", Code.CANCELLED), ("2", Code.CANCELLED)]
    assert batcher.queued == 1
    batcher.instance_idle("a")
    assert batches(batcher.poll(0)) == [["1"]]


def test_a_request_cancelled_before_it_is_queued_is_answered():
    batcher = DynamicBatcher(8)
    gone = request(1)
    gone.cancelled = True
    batcher.enqueue(gone, 0)
    assert [r.id for r, _ in batcher.poll(0).answer] == ["1"]
    assert batcher.queued == 0


def test_drain_returns_everything_and_forgets_what_waited():
    batcher = filled(DynamicBatcher(8, max_queue_delay_us=1000), [1, 1])
    batcher.instance_idle("a")
    cancelled = request("cancelled")
    batcher.enqueue(cancelled, 0)
    assert batcher.poll(0).wake_at_ns == MS
    batcher.cancel(cancelled)
    assert ids(batcher.drain()) == ["0", "1", "cancelled"]
    assert batcher.queued == 0
    decision = batcher.poll(1)
    assert (decision.run, decision.answer, decision.wake_at_ns) == ([], [], None)
    filled(batcher, [1], now_ns=50, first_id=2)
    assert batcher.poll(50).wake_at_ns == 50 + MS
    assert ids(batcher.drain()) == ["2"]
    filled(batcher, [1], now_ns=90, first_id=3)
    assert batcher.poll(90).wake_at_ns == 90 + MS


# Shapes


def test_only_requests_of_equal_shape_share_a_batch():
    batcher = DynamicBatcher(8, grouping=Grouping(["IN"]))
    for i, width in enumerate([2, 2, 3, 2]):
        batcher.enqueue(request(i, width=width), 0)
    for i in range(4):
        batcher.instance_idle(i)
    # None is skipped: request 3 does not overtake request 2.
    assert batches(batcher.poll(0)) == [["0", "1"], ["2"], ["3"]]


def test_a_request_of_another_shape_sends_the_waiting_ones():
    batcher = DynamicBatcher(8, max_queue_delay_us=1000, grouping=Grouping(["IN"]))
    batcher.instance_idle("a")
    batcher.instance_idle("b")
    for i in range(2):
        batcher.enqueue(request(i, width=2), i)
        assert batcher.poll(i).run == []
    batcher.enqueue(request(2, width=3), 2)
    decision = batcher.poll(2)
    assert batches(decision) == [["0", "1"]]
    assert decision.wake_at_ns == 2 + MS


def test_a_preferred_size_before_another_shape_is_still_preferred():
    batcher = DynamicBatcher(8, [2, 8], grouping=Grouping(["IN"]))
    for i, width in enumerate([2, 2, 2, 3]):
        batcher.enqueue(request(i, width=width), 0)
    batcher.instance_idle("a")
    assert batches(batcher.poll(0)) == [["0", "1"]]


def test_waiting_requests_are_not_compared_again_and_again():
    class Counting(Grouping):
        calls = 0

        def key(self, request):
            self.calls += 1
            return super().key(request)

    grouping = Counting(["IN"])
    batcher = DynamicBatcher(1000, max_queue_delay_us=1000, grouping=grouping)
    batcher.instance_idle("a")
    for i in range(999):
        batcher.enqueue(request(i), i)
        assert batcher.poll(i).run == []
    batcher.enqueue(request(999), 999)
    assert len(batcher.poll(999).run[0][1].requests) == 1000
    # Once on arrival, once when the batch leaves; looking through the queue at every poll would take 500 000.
    assert grouping.calls <= 2001


# Policies


def levels(**policy: object) -> PriorityLevels:
    return PriorityLevels(policy=QueuePolicy(**policy))  # type: ignore[arg-type]


def test_expired_requests_are_answered_when_they_expire_without_an_idle_instance():
    batcher = filled(DynamicBatcher(8, priorities=levels(default_timeout_us=1000)), [1, 1])
    decision = batcher.poll(0)
    assert (decision.answer, decision.wake_at_ns) == ([], MS)
    decision = batcher.poll(MS)
    assert answers(decision) == [("0", "Request timeout expired"), ("1", "Request timeout expired")]
    assert decision.wake_at_ns is None
    assert batcher.queued == 0


def test_a_timeout_shorter_than_the_delay_wins():
    # Triton 2.51 does the same: with an idle instance at hand, the requests expire.
    run = Run(DynamicBatcher(8, max_queue_delay_us=1500, priorities=levels(default_timeout_us=300)), ["a"], busy_ns=MS)
    run.enqueue([request(i) for i in range(6)])
    run.until_quiet()
    assert run.log == []
    assert [(now, id) for now, id, _ in run.failed] == [(300_000, str(i)) for i in range(6)]


def test_the_next_wake_up_is_the_earlier_of_delay_and_timeout():
    policy = levels(default_timeout_us=800, allow_timeout_override=True)
    batcher = DynamicBatcher(8, max_queue_delay_us=500, priorities=policy)
    batcher.instance_idle("a")
    batcher.enqueue(request(0), 0)
    assert batcher.poll(0).wake_at_ns == 500_000
    batcher.enqueue(request(1, timeout_us=100), 10)
    assert batcher.poll(10).wake_at_ns == 100_010
    decision = batcher.poll(100_010)
    assert [r.id for r, _ in decision.answer] == ["1"]
    assert decision.wake_at_ns == 500_000
    assert batches(batcher.poll(500_000)) == [["0"]]


def test_what_ran_out_of_time_under_delay_is_served_last():
    run = Run(DynamicBatcher(1, priorities=levels(delay_expired=True, default_timeout_us=1000)), ["a"], busy_ns=2 * MS)
    run.enqueue([request(i) for i in range(3)])
    run.poll()
    run.now_ns = MS * 3 // 2
    run.enqueue([request("late")])
    run.until_quiet()
    assert run.batches == [["0"], ["late"], ["1"], ["2"]]
    assert run.failed == []


def test_a_full_queue_refuses():
    batcher = filled(DynamicBatcher(8, priorities=levels(max_queue_size=2)), [1, 1])
    with pytest.raises(ServeError, match=r"^\[request id: x\] Exceeds maximum queue size$"):
        batcher.enqueue(request("x"), 0)
    assert batcher.queued == 2
    batcher.instance_idle("a")
    assert batches(batcher.poll(0)) == [["0", "1"]]
    filled(batcher, [1])
    assert batcher.queued == 1


def test_a_batch_takes_higher_priorities_first_and_may_mix_them():
    batcher = DynamicBatcher(4, priorities=PriorityLevels(2, 2))
    for i, priority in enumerate([2, 2, 1, 2]):
        batcher.enqueue(request(i, priority=priority), 0)
    batcher.instance_idle("a")
    assert batches(batcher.poll(0)) == [["2", "0", "1", "3"]]


def test_a_late_request_of_higher_priority_changes_what_waits():
    batcher = DynamicBatcher(8, [1, 8], max_queue_delay_us=1000, priorities=PriorityLevels(2, 2))
    batcher.instance_idle("a")
    batcher.enqueue(request("low", size=3), 0)
    assert batcher.poll(0).wake_at_ns == MS
    batcher.enqueue(request("high", priority=1), 10)
    # Alone it is a preferred size.
    assert batches(batcher.poll(10)) == [["high"]]


def test_the_oldest_request_of_a_batch_need_not_be_the_first():
    batcher = DynamicBatcher(8, max_queue_delay_us=1000, priorities=PriorityLevels(2, 2))
    batcher.instance_idle("a")
    batcher.enqueue(request("low"), 0)
    batcher.enqueue(request("high", priority=1), 900_000)
    assert batcher.poll(900_000).wake_at_ns == MS
    assert batches(batcher.poll(MS)) == [["high", "low"]]


# Holding back


def test_hold_until_so_many_wait_then_never_again():
    batcher = DynamicBatcher(8, hold_until=3)
    batcher.instance_idle("a")
    for i in range(2):
        filled(batcher, [1], first_id=i)
        decision = batcher.poll(i)
        assert (decision.run, decision.wake_at_ns) == ([], None)
    filled(batcher, [1], first_id=2)
    decision = batcher.poll(2)
    # There are enough: it waits for one more, but not for long.
    assert (decision.run, decision.wake_at_ns) == ([], 2 + 10 * MS)
    filled(batcher, [1], first_id=3)
    assert batches(batcher.poll(3)) == [["0", "1", "2", "3"]]
    batcher.instance_idle("a")
    filled(batcher, [1], first_id=4)
    assert batches(batcher.poll(4)) == [["4"]]


def test_the_hold_ends_even_while_no_instance_is_idle():
    batcher = filled(DynamicBatcher(8, hold_until=2), [1, 1])
    assert batcher.poll(0).run == []
    assert batcher.poll(10 * MS).run == []
    batcher.enqueue(batcher.drain()[0], 10 * MS)
    batcher.instance_idle("a")
    assert batches(batcher.poll(10 * MS)) == [["0"]]


def test_requests_expire_while_they_are_held_back():
    batcher = filled(DynamicBatcher(8, priorities=levels(default_timeout_us=1000), hold_until=2), [1])
    batcher.instance_idle("a")
    assert batcher.poll(0).wake_at_ns == MS
    assert [r.id for r, _ in batcher.poll(MS).answer] == ["0"]


# Work of no more than so many requests


def test_a_batch_has_no_more_requests_than_the_instance_wants_and_is_closed_then():
    batcher = DynamicBatcher(8)
    batcher.instance_idle("a", 1, 1, 700, 3)
    filled(batcher, [1, 2, 1, 1, 1])
    assert batches(batcher.poll(0)) == [["0", "1", "2"]]
    assert batches(batcher.poll(10)) == []  # the two that are left could grow
    filled(batcher, [1], first_id=5)
    assert batches(batcher.poll(20)) == [["3", "4", "5"]]
    batcher.instance_idle("a")
    filled(batcher, [1] * 5, first_id=6)
    assert batches(batcher.poll(30)) == [["6", "7", "8", "9", "10"]]


@pytest.mark.parametrize(
    "batcher",
    [
        pytest.param(DynamicBatcher(8, [4]), id="a preferred size"),
        pytest.param(DynamicBatcher(4, max_queue_delay_us=1), id="a delay"),
    ],
)
def test_the_configuration_decides_where_it_says_something_of_sizes(batcher):
    batcher.instance_idle("a", 1, 0, 0, 2)
    filled(batcher, [1] * 4)
    assert batches(batcher.poll(0)) == [["0", "1", "2", "3"]]


def test_the_largest_size_is_preferred_anyway():
    batcher = DynamicBatcher(4, [4])
    batcher.instance_idle("a", 1, 0, 0, 2)
    filled(batcher, [1] * 4)
    assert batches(batcher.poll(0)) == [["0", "1"]]
