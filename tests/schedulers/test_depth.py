from __future__ import annotations

import pytest

from stubserve.inference.work import Work
from stubserve.schedulers.depth import AHEAD_NS, AROUND_NS, MOST_AHEAD, QUICK_IN_A_ROW, QUICK_NS, SLOW_NS, Depth

from .requests import request

NONE, IDLE = (0, 0, 0, 0), (1, 0, 0, 0)


def executed(took_ns: int) -> Work:
    done = request()
    done.compute_input_end_ns, done.compute_infer_end_ns = 5, 5 + took_ns
    return Work([done])


def warmed(depth: Depth, instance: str, times: int = QUICK_IN_A_ROW, took_ns: int = 10) -> None:
    depth.join(instance)
    for _ in range(times):
        assert depth.room(instance) == IDLE
        depth.handed_out(instance, executed(0))
        assert depth.room(instance) == NONE
        depth.done(instance, executed(took_ns))


def test_who_is_always_quick_has_one_work_ahead_and_closed_ones_besides() -> None:
    depth = Depth(early=True)
    warmed(depth, "i")
    rooms = [depth.room("i")]
    for _ in range(1 + MOST_AHEAD):
        depth.handed_out("i", executed(0))
        rooms.append(depth.room("i"))
    closed = range(MOST_AHEAD - 1, -1, -1)
    assert rooms == [(2, MOST_AHEAD - 1, 0, 0), (1, MOST_AHEAD - 1, 0, 0), *((0, left, 0, 0) for left in closed)]
    depth.done("i", executed(10))
    assert depth.room("i") == (0, 1, 0, 0)


@pytest.mark.parametrize("took_ns", [QUICK_NS - 1, 100_000, 10])
def test_what_lies_ready_is_about_so_long(took_ns: int) -> None:
    depth = Depth(early=True)
    warmed(depth, "i", took_ns=took_ns)
    ahead = sum(depth.room("i")) - 1
    assert 1 < ahead <= MOST_AHEAD
    assert ahead == MOST_AHEAD or AHEAD_NS - took_ns - AROUND_NS < ahead * (took_ns + AROUND_NS) <= AHEAD_NS


def test_a_slower_execution_is_remembered_for_a_while() -> None:
    depth = Depth(early=True)
    warmed(depth, "i")
    quick = depth.room("i")
    depth.handed_out("i", executed(0))
    depth.done("i", executed(QUICK_NS - 1))
    slower = depth.room("i")
    assert slower < quick
    for _ in range(100):
        depth.handed_out("i", executed(0))
        depth.done("i", executed(10))
    assert depth.room("i") == quick


def test_an_execution_that_takes_long_ends_it() -> None:
    depth = Depth(early=True)
    warmed(depth, "i")
    depth.handed_out("i", executed(0))
    depth.handed_out("i", executed(0))
    depth.done("i", executed(QUICK_NS))
    assert depth.room("i") == NONE
    depth.done("i", executed(0))
    assert depth.room("i") == IDLE


def test_who_is_slower_has_one_work_ahead_if_it_is_closed_or_ripe() -> None:
    depth = Depth(early=True)
    depth.join("i")
    for took_ns in (900_000, 800_000):
        assert depth.room("i") == IDLE  # nothing is known of it before it has executed twice
        depth.handed_out("i", executed(0))
        depth.done("i", executed(took_ns))
    assert depth.room("i") == (1, 1, 700_000, 0)
    depth.handed_out("i", executed(0))
    assert depth.room("i") == (0, 1, 700_000, 0)
    depth.handed_out("i", executed(0))
    assert depth.room("i") == NONE
    depth.done("i", executed(1_600_000))
    assert depth.room("i") == (0, 1, 700_000, 0)
    depth.done("i", executed(2_400_000))
    assert depth.room("i") == (1, 1, 1_400_000, 0)


@pytest.mark.parametrize("took_ns", [QUICK_NS - 1, SLOW_NS])
def test_who_is_slow_or_not_yet_known_to_be_quick_has_nothing_ahead(took_ns: int) -> None:
    depth = Depth(early=True)
    depth.join("i")
    for _ in range(3):
        depth.handed_out("i", executed(0))
        depth.done("i", executed(took_ns))
    assert depth.room("i") == IDLE
    depth.handed_out("i", executed(0))
    assert depth.room("i") == NONE


def test_nothing_ahead_before_it_is_known_to_be_quick() -> None:
    depth = Depth(early=True)
    warmed(depth, "i", QUICK_IN_A_ROW - 1)
    assert depth.room("i") == IDLE


@pytest.mark.parametrize("took_ns", [10, 10 * QUICK_NS])
def test_nothing_ahead_where_the_queue_has_rules(took_ns: int) -> None:
    depth = Depth(early=False)
    warmed(depth, "i", took_ns=took_ns)
    assert depth.room("i") == IDLE


def test_nothing_ahead_past_another_instance() -> None:
    depth = Depth(early=True)
    warmed(depth, "i")
    depth.join("j")
    assert depth.room("i") == IDLE
    depth.handed_out("i", executed(0))
    assert depth.room("i") == NONE
    depth.leave("j")
    assert depth.room("i") == (1, MOST_AHEAD - 1, 0, 0)


def test_a_new_stub_has_to_show_that_it_is_quick() -> None:
    depth = Depth(early=True)
    warmed(depth, "i")
    depth.leave("i")
    depth.join("i")
    assert depth.room("i") == IDLE


def test_work_that_did_not_get_there_leaves_room() -> None:
    depth = Depth(early=True)
    depth.join("i")
    depth.join("j")
    depth.handed_out("i", executed(0))
    assert depth.idle() == ["j"]
    depth.handed_back("i", executed(0))
    assert depth.room("i") == IDLE
    assert depth.idle() == ["i", "j"]
    assert len(depth) == 2


def test_who_has_left_gets_nothing() -> None:
    depth = Depth(early=True)
    depth.join("i")
    depth.handed_out("i", executed(0))
    depth.leave("i")
    depth.leave("i")
    depth.done("i", executed(0))
    depth.handed_back("i", executed(0))
    assert depth.room("i") == NONE
    assert len(depth) == 0
    with pytest.raises(KeyError):
        depth.handed_out("i", executed(0))
