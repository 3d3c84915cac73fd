"""The pace that messages have to arrive at, on a clock of the test's own."""

from __future__ import annotations

import asyncio

from stubserve.connections.stall import WINDOW_S, Pace, StallWatch
from tests.clock import Clock


class Arriving:
    """A message of which bytes arrive as the test says."""

    def __init__(self) -> None:
        self.bytes_received = 0
        self.stalls = 0

    def stalled(self) -> None:
        self.stalls += 1


def swept(clock: Clock, pace: Pace, rate: float, seconds: float) -> int:
    """How often a message that arrives at `rate` has stalled when all `seconds` are over."""

    async def run() -> int:
        watch = StallWatch(pace)
        message = Arriving()
        watch.watch(message)
        end = clock.now + seconds
        while clock.now < end and not message.stalls:
            clock.turns(WINDOW_S / 4)
            message.bytes_received += int(rate * WINDOW_S / 4)
            watch.sweep()
        watch.unwatch(message)
        return message.stalls

    return asyncio.run(run())


def test_who_keeps_the_rate_goes_on(clock: Clock) -> None:
    assert swept(clock, Pace(500, 0), 501, 3600) == 0


def test_who_sends_less_is_given_up(clock: Clock) -> None:
    assert swept(clock, Pace(500, 0), 499, 3 * WINDOW_S) == 1


def test_without_a_rate_one_byte_is_enough(clock: Clock) -> None:
    assert swept(clock, Pace(0, 0), 1, 3600) == 0
    assert swept(clock, Pace(0, 0), 0, 3 * WINDOW_S) == 1


def test_a_deadline_ends_even_a_fast_one(clock: Clock) -> None:
    assert swept(clock, Pace(500, 600), 1 << 20, 590) == 0
    assert swept(clock, Pace(500, 600), 1 << 20, 700) == 1


def test_a_client_has_not_stalled_because_the_event_loop_has(clock: Clock) -> None:
    """While the loop does something else nothing is read."""

    async def run() -> None:
        watch = StallWatch(Pace(500, 0))
        message = Arriving()
        watch.watch(message)
        clock.stands(10 * WINDOW_S)
        watch.sweep()
        assert not message.stalls
        clock.turns(WINDOW_S)
        watch.sweep()
        assert message.stalls
        watch.unwatch(message)

    asyncio.run(run())
