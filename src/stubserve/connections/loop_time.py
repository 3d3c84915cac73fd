"""Time in which the event loop turned.

While the loop does something long, or this process gets no core, no socket is read or written. A clock would count that
as the delay of clients. So time is counted here by turns of the loop: between two ticks each socket has had its turn,
and however late the second tick comes, no more than TICK_S has passed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sized
from time import monotonic

TICK_S = 0.1


class LoopTime:
    """The time of one loop, which passes as long as there are any of `those` that are timed."""

    def __init__(self, those: Sized) -> None:
        self._those = those
        self._passed = 0.0
        self._ticked = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def run(self) -> None:
        """There are some now."""
        if self._timer is None:
            self._tick()

    def now(self) -> float:
        return self._passed + min(monotonic() - self._ticked, TICK_S)

    def _tick(self) -> None:
        self._passed = self.now()
        self._ticked = monotonic()
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick) if self._those else None
