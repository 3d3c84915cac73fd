"""Answers that wait for their clients; the clock and the timers are the test's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stubserve.errors import ServeError
from stubserve.protocols import departure, pressure
from stubserve.protocols.departure import LOOK_S, Departures
from stubserve.protocols.pressure import SLOW_RATE, Pressure


class Clock:
    """Time, and the one timer that is set at a time."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timer: Any = None

    def call_later(self, delay: float, act: Any) -> Any:
        assert delay == LOOK_S
        assert self.timer is None
        self.timer = act
        return act

    def passes(self, seconds: float) -> None:
        for _ in range(round(seconds / LOOK_S)):
            self.now += LOOK_S
            timer, self.timer = self.timer, None
            if timer is not None:
                timer()


class Reader:
    """A client that takes `rate` bytes per second."""

    def __init__(self, clock: Clock, departures: Departures, rate: float, held: int = 100) -> None:
        self.error: ServeError | None = None
        began = clock.now
        self.departure = departures.begin(self, held, lambda: int((clock.now - began) * rate))

    def give_up(self, error: ServeError) -> None:
        self.error = error


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pressure, "monotonic", lambda: clock.now)
    monkeypatch.setattr(departure, "asyncio", SimpleNamespace(get_running_loop=lambda: clock))
    return clock


def test_who_reads_nothing_is_given_up_and_who_reads_little_is_not(clock: Clock) -> None:
    departures = Departures(Pressure(), 60)
    silent, slow = Reader(clock, departures, 0), Reader(clock, departures, 10)
    clock.passes(59)
    assert silent.error is None
    clock.passes(2)
    assert silent.error is not None
    assert "--send-timeout-secs=60" in silent.error.message
    clock.passes(1000)
    assert slow.error is None
    departures.end(slow.departure)
    clock.passes(1)
    assert clock.timer is None


def test_without_a_timeout_everybody_may_wait(clock: Clock) -> None:
    silent = Reader(clock, Departures(Pressure(), 0), 0)
    clock.passes(10_000)
    assert silent.error is None


def test_when_memory_is_short_the_slowest_yields(clock: Clock) -> None:
    room = Pressure()
    departures = Departures(room, 60)
    silent = [Reader(clock, departures, 0, held) for held in (10, 1000)]
    slow, quick = Reader(clock, departures, SLOW_RATE / 2), Reader(clock, departures, SLOW_RATE * 2)
    clock.passes(3)
    order = []
    while room.make_room():
        order.append([one.error is not None for one in (*silent, slow, quick)])
    assert order == [[False, True, False, False], [True, True, False, False], [True, True, True, False]]


def test_what_has_left_yields_nothing(clock: Clock) -> None:
    room = Pressure()
    departures = Departures(room, 60)
    one = Reader(clock, departures, 0)
    departures.end(one.departure)
    departures.end(one.departure)
    clock.passes(100)
    assert not room.make_room()
    assert one.error is None
