"""When memory is short, slow clients yield.

What arrives slowly, and what is read slowly, may hold memory as long as nobody else needs it. Where a request finds
none, transfers that moved at less than SLOW_RATE lately are given up for it, the slowest first (of those that stand
still, the largest), and their clients are told why. So clients that trickle, announce and never send, or never read
cannot shut out others, and while there is memory a slow client is served like any other. Time is that of the event
loop (`loop_time`): a client is not slow because the server was.
"""

from __future__ import annotations

from typing import Protocol

from stubserve.connections.loop_time import LoopTime
from stubserve.errors import ServeError, overloaded

# Bytes per second below which a transfer yields, over how long its rate is taken, and after which pause it is none.
SLOW_RATE = 1024 * 1024
RATE_S = 0.5
PAUSE_S = 1.0


class Owner(Protocol):
    """Whoever a transfer is made for."""

    def give_up(self, error: ServeError) -> None:
        """The transfer's memory is to be let go of at once, and the client told of `error` where it can be."""


class Transfer:
    """Bytes on their way from or to a client: `moved` so far, for which `held` bytes of memory are kept.

    `at_once` says whether they are free when it is given up, or only a little later.
    """

    at_once = True

    __slots__ = ("_mark", "_marked", "_rate", "_time", "growing", "held", "last", "moved", "owner")

    def __init__(self, owner: Owner, time: LoopTime) -> None:
        self.owner = owner
        self.moved = 0
        self.held = 0
        # Whether it is the one that needs memory at the moment
        self.growing = False
        self._time = time
        self.begin()

    def begin(self) -> None:
        """It begins, or begins anew: how fast it was says nothing of how fast it will be."""
        # When it last moved; how much had moved at an earlier time, and how fast it was until then
        self.last = self._mark = self._time.now()
        self._marked = self.moved
        self._rate = float("inf")

    def has_moved(self, moved: int) -> None:
        """`moved` bytes in all."""
        self.moved = moved
        self.last = now = self._time.now()
        elapsed = now - self._mark
        if elapsed >= RATE_S:
            self._rate = (moved - self._marked) / elapsed
            self._mark, self._marked = now, moved

    def rate(self, now: float) -> float:
        """Bytes per second, of late; infinite for one that has only begun."""
        if now - self.last >= PAUSE_S:
            return 0.0
        elapsed = now - self._mark
        rate = (self.moved - self._marked) / max(elapsed, RATE_S)
        return max(rate, self._rate) if elapsed < RATE_S else rate


class Pressure:
    """All transfers of a server that hold memory."""

    def __init__(self) -> None:
        self._transfers: set[Transfer] = set()
        self.time = LoopTime(self._transfers)
        self.forget = self._transfers.discard

    def add(self, transfer: Transfer) -> None:
        self._transfers.add(transfer)
        self.time.run()

    def make_room(self) -> bool:
        """Gives up the slowest transfer; whether there is more room now. There may be more later though not now."""
        now = self.time.now()
        slow = [one for one in self._transfers if not one.growing and one.rate(now) < SLOW_RATE]
        if not slow:
            return False
        slowest = min(slow, key=lambda one: (not one.at_once, one.rate(now), -one.held))
        self.forget(slowest)
        slowest.owner.give_up(
            overloaded(
                f"given up after {slowest.moved} bytes, which came or went slowly, because other requests need the "
                "memory; be faster, or raise --shm-limit"
            )
        )
        return slowest.at_once
