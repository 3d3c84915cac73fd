"""Clients that stop, or all but stop, in the middle of what they send."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import NamedTuple, Protocol

from stubserve.connections.loop_time import LoopTime

# Over how long a rate is taken. It is also what a client has to begin with.
WINDOW_S = 20.0


class Pace(NamedTuple):
    """How fast messages have to arrive: `min_rate` bytes per second, and at least one in WINDOW_S.

    All of a message has to be there within `deadline_s` seconds, where that is not 0.
    """

    min_rate: int = 500
    deadline_s: float = 3600.0


class Watched(Protocol):
    """What has arrived in part: a connection's request, or a stream's message."""

    @property
    def bytes_received(self) -> int: ...

    def stalled(self) -> None: ...


class _Mark:
    """When something began to arrive, and how much there was at a later time, which is that of the event loop."""

    __slots__ = ("at", "began", "seen")

    def __init__(self, at: float, seen: int) -> None:
        self.began = monotonic()
        self.at = at
        self.seen = seen


class StallWatch:
    """Tells those that are watched when they fall behind the pace; without any it costs nothing."""

    def __init__(self, pace: Pace = Pace()) -> None:  # noqa: B008  # it is immutable
        self.pace = pace
        self._unfinished: dict[Watched, _Mark] = {}
        self._time = LoopTime(self._unfinished)
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, watched: Watched) -> None:
        """It has begun to arrive and is not complete: its client must go on sending."""
        self._unfinished[watched] = _Mark(self._time.now(), watched.bytes_received)
        self._time.run()
        if self._timer is None:
            self._sweep_later()

    def unwatch(self, watched: Watched) -> None:
        self._unfinished.pop(watched, None)

    def _sweep_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(WINDOW_S / 4, self.sweep)

    def sweep(self) -> None:
        """Looks who has fallen behind; the timer calls it."""
        self._timer = None
        now = self._time.now()
        min_rate, deadline_s = self.pace
        for one, mark in list(self._unfinished.items()):
            elapsed = now - mark.at
            if deadline_s and monotonic() - mark.began > deadline_s:
                one.stalled()
            elif elapsed >= WINDOW_S:
                if one.bytes_received - mark.seen < max(min_rate * elapsed, 1):
                    one.stalled()
                mark.at, mark.seen = now, one.bytes_received
        if self._unfinished:
            self._sweep_later()
