from __future__ import annotations

import heapq
from collections.abc import Callable

import pytest

from stubserve.inference.work import Work
from stubserve.schedulers.depth import AGAIN, AROUND_NS, FIRST, LEAST, NEVER, QUICK_NS, Cost, Depth
from stubserve.schedulers.dynamic_batcher import DynamicBatcher

from .requests import request

US = 1000


def by_request(size: int) -> int:
    """As of a model on a processor."""
    return (50 + 80 * size) * US


def at_once(size: int) -> int:
    """As of a model on a device that takes as long for many as for one."""
    return 5000 * US


def learned(takes: Callable[[int], int], *sizes: int) -> Cost:
    cost = Cost(AROUND_NS, QUICK_NS)
    for size in sizes:
        cost.learn(size, takes(size))
    return cost


def test_halves_are_worth_it_where_time_grows_with_requests() -> None:
    sizes = [16, 8, 12, 4] * FIRST
    assert learned(by_request, *sizes).halves_from == LEAST
    assert learned(at_once, *sizes).halves_from == NEVER
    assert learned(lambda size: 1000 * US - by_request(size), *sizes).halves_from == NEVER


@pytest.mark.parametrize(
    ("at_all_us", "each_us", "halves_from"),
    [
        pytest.param(380, 1000, 16, id="what a second execution costs is less than the wait"),
        pytest.param(280, 20, 30, id="and than half of what the requests add"),
        pytest.param(0, 10, 40, id="half of them is not quick any more"),
    ],
)
def test_from_so_many_on(at_all_us: int, each_us: int, halves_from: int) -> None:
    cost = learned(lambda size: (at_all_us + each_us * size) * US, *[16, 8, 12, 4] * FIRST)
    assert cost.halves_from == pytest.approx(halves_from, abs=1)


def test_nothing_is_said_before_something_is_known() -> None:
    assert learned(by_request, *[16, 8] * (FIRST // 2)).halves_from == NEVER


def test_halves_are_tried_where_all_have_one_size_and_again_after_a_while() -> None:
    cost = learned(at_once, *[16] * (FIRST + 1))
    assert cost.halves_from == LEAST
    for size in (8, 8):
        cost.learn(size, at_once(size))
    assert cost.halves_from == NEVER
    tried = []
    for turn in range(10 * AGAIN):
        cost.learn(16, at_once(16) + turn % 2 * 200 * US)
        tried.append(cost.halves_from == LEAST)
    assert not any(tried[: AGAIN - 1])
    assert any(tried)


def test_few_sizes_and_many_other_reasons_leave_doubt() -> None:
    cost = learned(by_request, *[8] * FIRST)
    for turn in range(100):
        # The ones that are larger happen to be quicker, but so do others.
        cost.learn(8 + (turn % 21 == 20), by_request(8) + (turn % 5 - 2) * 150 * US)
        assert cost.halves_from == LEAST


def in_a_circle(takes: Callable[[int], int], clients: int, batches: int) -> list[int]:
    """The sizes of batches where each client asks again when it has its answer.

    Parent and clients take 50 µs for an answer and the next request, one after the other. All times are made up.
    """
    depth, batcher = Depth(early=True), DynamicBatcher(64)
    depth.join("i")
    sizes: list[int] = []
    # Times, and the request that comes then, or what the instance has done
    coming: list[tuple[int, int, Work | None]] = [(number, number, None) for number in range(clients)]
    ready: list[Work] = []
    now = free_ns = 0
    while len(sizes) < batches:
        now, number, done = heapq.heappop(coming)
        if done is None:
            batcher.enqueue(request(number), now)
        else:
            depth.done("i", done)
            ready.remove(done)
            for _ in done.requests:
                free_ns = max(free_ns, now) + 50 * US
                number += 1
                heapq.heappush(coming, (free_ns, number, None))
        batcher.instance_idle("i", *depth.room("i"))
        for _, work in batcher.poll(now).run:
            depth.handed_out("i", work, batcher.queued)
            first = work.requests[0]
            begins = max(now, ready[-1].requests[0].compute_infer_end_ns) if ready else now
            first.compute_input_end_ns, first.compute_infer_end_ns = begins, begins + takes(len(work.requests))
            ready.append(work)
            heapq.heappush(coming, (first.compute_infer_end_ns, 1000 * len(sizes), work))
            sizes.append(len(work.requests))
    return sizes


def test_clients_of_a_model_that_takes_its_time_for_each_are_parted_in_halves() -> None:
    # Those whose answers are on their way are not counted.
    assert set(in_a_circle(by_request, 16, 600)[-400:]) <= {6, 7, 8}


def test_clients_of_a_model_that_takes_as_long_for_many_stay_together() -> None:
    # One goes ahead as soon as there is one, all others follow.
    assert set(in_a_circle(at_once, 16, 600)[-200:]) == {1, 15}


def test_a_few_clients_are_not_parted() -> None:
    sizes = in_a_circle(by_request, LEAST - 1, 300)
    assert max(sizes[-100:]) > (LEAST - 1) // 2
