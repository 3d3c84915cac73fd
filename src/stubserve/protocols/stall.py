"""Clients that stop in the middle of what they send."""

from __future__ import annotations

import asyncio
from typing import Protocol

STALL_S = 60.0


class Watched(Protocol):
    """What has arrived in part: a connection's request, or a stream's message."""

    @property
    def bytes_received(self) -> int: ...

    def stalled(self) -> None: ...


class StallWatch:
    """Tells those that are watched when nothing more has come for STALL_S; without any it costs nothing."""

    def __init__(self) -> None:
        self._unfinished: dict[Watched, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, watched: Watched) -> None:
        """It has begun to arrive and is not complete: its client must go on sending."""
        self._unfinished[watched] = -1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(STALL_S / 2, self._sweep)

    def unwatch(self, watched: Watched) -> None:
        self._unfinished.pop(watched, None)

    def _sweep(self) -> None:
        self._timer = None
        for one, seen in list(self._unfinished.items()):
            if one.bytes_received == seen:
                one.stalled()
            else:
                self._unfinished[one] = one.bytes_received
        if self._unfinished:
            self._timer = asyncio.get_running_loop().call_later(STALL_S / 2, self._sweep)
