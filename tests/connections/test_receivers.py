"""The pace that messages have to arrive at, on a clock of the test's own."""

from __future__ import annotations

import asyncio

from stubserve.connections.slow_clients import WINDOW_S, RequestPace, SlowClients
from tests.clock import Clock


class Receiver:
    """A message that arrives at `rate` from now on."""

    def __init__(self, clock: Clock, rate: float) -> None:
        self.stalls = 0
        self._clock = clock
        self._began = clock.now
        self._rate = rate

    @property
    def bytes_received(self) -> int:
        return int(self._rate * (self._clock.now - self._began))

    def stalled(self) -> None:
        self.stalls += 1


def swept(clock: Clock, pace: RequestPace, rate: float, seconds: float) -> int:
    """How often a message that arrives at `rate` has stalled when all `seconds` are over."""

    async def run() -> int:
        clients = SlowClients(pace)
        message = Receiver(clock, rate)
        clients.watch_receiver(message)
        end = clock.now + seconds
        while clock.now < end and not message.stalls:
            clock.turns(WINDOW_S / 4)
        clients.unwatch_receiver(message)
        return message.stalls

    return asyncio.run(run())


def test_who_keeps_the_rate_goes_on(clock: Clock) -> None:
    assert swept(clock, RequestPace(500, 0), 501, 3600) == 0


def test_who_sends_less_is_given_up(clock: Clock) -> None:
    assert swept(clock, RequestPace(500, 0), 499, 3 * WINDOW_S) == 1


def test_without_a_rate_one_byte_is_enough(clock: Clock) -> None:
    assert swept(clock, RequestPace(0, 0), 1, 3600) == 0
    assert swept(clock, RequestPace(0, 0), 0, 3 * WINDOW_S) == 1


def test_a_deadline_ends_even_a_fast_one(clock: Clock) -> None:
    assert swept(clock, RequestPace(500, 600), 1 << 20, 590) == 0
    assert swept(clock, RequestPace(500, 600), 1 << 20, 700) == 1


def test_a_client_has_not_stalled_because_the_event_loop_has(clock: Clock) -> None:
    """While the loop does something else nothing is read."""

    async def run() -> None:
        clients = SlowClients(RequestPace(500, 0))
        message = Receiver(clock, 0)
        clients.watch_receiver(message)
        clock.stands(10 * WINDOW_S)
        clients.sweep()
        assert not message.stalls
        clock.turns(WINDOW_S)
        clients.sweep()
        assert message.stalls
        clients.unwatch_receiver(message)

    asyncio.run(run())
