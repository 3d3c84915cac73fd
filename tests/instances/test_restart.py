"""The restart policy on a fake clock."""

from __future__ import annotations

from stubserve.instances.death import RestartPolicy


def test_delays_double_up_to_half_a_minute() -> None:
    policy = RestartPolicy(limit=12)
    delays = [policy.next_delay(None, 1.0) for _ in range(6)] + [policy.next_delay(0.0, 0.5) for _ in range(6)]
    assert delays[:4] == [0.1, 0.2, 0.4, 0.8]
    assert delays[-1] == 30.0
    assert policy.next_delay(None, 1.0) is None


def test_having_served_for_a_second_forgives() -> None:
    policy = RestartPolicy(limit=2)
    assert policy.next_delay(0.0, 0.9) == 0.1
    assert policy.next_delay(0.0, 0.9) == 0.2
    assert policy.next_delay(100.0, 101.0) == 0.1


def test_having_executed_something_forgives() -> None:
    policy = RestartPolicy(limit=1)
    for _ in range(5):
        assert policy.next_delay(0.0, 0.1, has_executed=True) == 0.1
    assert policy.next_delay(0.0, 0.1) is None


def test_a_death_at_work_never_ends_it() -> None:
    policy = RestartPolicy(limit=1)
    delays = [policy.next_delay(0.0, 0.1, at_work=True) for _ in range(2000)]
    assert delays[:4] == [0.1, 0.2, 0.4, 0.8]
    assert set(delays[4:]) == {1.0}


def test_deaths_at_work_are_no_failed_starts() -> None:
    policy = RestartPolicy(limit=2)
    for _ in range(3):
        assert policy.next_delay(None, 0.1) == 0.1
        assert policy.next_delay(0.0, 0.1, at_work=True) == 0.1
    assert policy.next_delay(None, 0.1) == 0.1
    assert policy.next_delay(None, 0.1) == 0.2
    assert policy.next_delay(None, 0.1) is None


def test_zero_turns_it_off() -> None:
    policy = RestartPolicy(limit=0)
    assert policy.next_delay(0.0, 1000.0) is None
    assert policy.next_delay(0.0, 1000.0, at_work=True, has_executed=True) is None
