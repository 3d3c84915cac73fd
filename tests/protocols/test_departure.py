"""Connections with something unsent, on a clock of the test's own."""

from __future__ import annotations

import asyncio

import pytest

from stubserve.errors import ServeError
from stubserve.protocols import departure, pressure
from stubserve.protocols.departure import SendWatch
from stubserve.protocols.pressure import PAUSE_S, Pressure


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Sender:
    """A connection whose client reads as the test says."""

    def __init__(self, unsent: int) -> None:
        self.unsent = unsent
        self.given_up: ServeError | None = None
        self.timed_out = False

    def give_up(self, error: ServeError) -> None:
        self.given_up = error

    def send_timed_out(self) -> None:
        self.timed_out = True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pressure, "monotonic", clock)
    monkeypatch.setattr(departure, "monotonic", clock)
    return clock


def test_who_takes_nothing_is_closed_and_who_takes_a_byte_is_not(clock: Clock) -> None:
    async def run() -> None:
        watch = SendWatch(Pressure(), 60)
        stuck, slow, done = Sender(1000), Sender(1000), Sender(1000)
        for sender in (stuck, slow, done):
            watch.watch(sender)
        done.unsent = 0
        for _ in range(14):
            clock.now += 5
            slow.unsent -= 1
            watch.sweep()
        assert stuck.timed_out
        assert not slow.timed_out
        assert not done.timed_out

    asyncio.run(run())


def test_a_timeout_begins_anew_with_each_answer(clock: Clock) -> None:
    async def run() -> None:
        watch = SendWatch(Pressure(), 60)
        sender = Sender(1000)
        watch.watch(sender)
        sender.unsent = 0
        clock.now += 50
        watch.sweep()
        sender.unsent = 500
        watch.watch(sender)
        clock.now += 50
        watch.sweep()
        assert not sender.timed_out

    asyncio.run(run())


def test_who_does_not_read_yields_to_who_needs_memory(clock: Clock) -> None:
    async def run() -> None:
        pressure = Pressure()
        watch = SendWatch(pressure, 60)
        stuck, quick, done = Sender(10 << 20), Sender(1 << 30), Sender(1000)
        for sender in (stuck, quick, done):
            watch.watch(sender)
        done.unsent = 0
        pressure.make_room()
        assert stuck.given_up is None  # it has only begun
        clock.now += PAUSE_S
        quick.unsent -= 100 << 20
        assert not pressure.make_room()  # its memory comes back a little later
        assert stuck.given_up is not None
        pressure.make_room()
        assert quick.given_up is None
        assert done.given_up is None

    asyncio.run(run())


def test_what_has_left_is_not_looked_at_any_more(clock: Clock) -> None:
    async def run() -> None:
        pressure = Pressure()
        watch = SendWatch(pressure, 60)
        sender = Sender(1000)
        watch.watch(sender)
        watch.unwatch(sender)
        watch.unwatch(sender)
        clock.now += 100
        watch.sweep()
        pressure.make_room()
        assert sender.given_up is None
        assert not sender.timed_out

    asyncio.run(run())
