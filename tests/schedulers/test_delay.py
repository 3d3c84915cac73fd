"""Keeping requests back until so many wait, and a little longer."""

from __future__ import annotations

from stubserve.schedulers.delay import SchedulerDelay

MS = 1_000_000


def test_what_comes_right_behind_the_last_that_is_waited_for_shares_its_batch() -> None:
    hold = SchedulerDelay(3)
    assert hold.holds(2, 0, 0)
    assert hold.until_ns is None
    assert hold.holds(3, 0, 5 * MS)
    assert hold.until_ns == 15 * MS
    # Polled for something else
    assert hold.holds(3, 0, 9 * MS)
    assert not hold.holds(4, 0, 9 * MS)
    assert hold.until_ns is None
    assert not hold.holds(1, 0, 10 * MS)


def test_nobody_else_is_waited_for_long() -> None:
    hold = SchedulerDelay(2, 1)
    assert hold.holds(4, 0, 0)
    assert hold.holds(4, 1, 20 * MS)
    assert hold.holds(4, 1, 29 * MS)
    assert not hold.holds(4, 1, 30 * MS)
    assert not hold.holds(0, 0, 31 * MS)


def test_a_number_for_the_backlog_alone_holds_nothing() -> None:
    hold = SchedulerDelay(0, 2)
    assert not hold.holds(0, 0, 0)
    assert hold.until_ns is None
