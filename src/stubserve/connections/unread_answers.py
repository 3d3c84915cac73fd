"""Answers that wait for their clients to read them.

What a client does not take stays in memory: blocks of the arena, text in the heap. A connection that has something
unsent is watched: it yields when others need the memory and it is slow (`pressure`), and it is closed when its client
has taken nothing for `--send-timeout-secs`. How much is unsent is only asked when somebody wants to know, so an
answer that leaves at once pays for one entry in a dictionary, every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from stubserve.connections.loop_time import LoopTime
from stubserve.connections.slow_clients import Owner, Pressure, Transfer

log = logging.getLogger("stubserve.server")

_SWEEP_S = 5.0


class Sender(Owner, Protocol):
    """A connection. What is given up of it is the connection."""

    @property
    def unsent(self) -> int:
        """Bytes that wait for the client; none where nothing waits in this process."""

    def send_timed_out(self) -> None:
        """The client has taken nothing for too long."""


class Departure(Transfer):
    """What one connection has unsent."""

    __slots__ = ("_sender",)

    # Closing a connection gives its memory back a little later.
    at_once = False

    def __init__(self, sender: Sender, time: LoopTime) -> None:
        self._sender = sender
        super().__init__(sender, time)

    def begin(self) -> None:
        super().begin()
        self.held = self._sender.unsent

    def look(self) -> int:
        """Notes how far it has come; the bytes that are left."""
        unsent = self._sender.unsent
        if unsent < self.held:
            self.has_moved(self.moved + self.held - unsent)
        self.held = unsent
        return unsent

    def rate(self, now: float) -> float:
        return super().rate(now) if self.look() else float("inf")


class SendWatch:
    """All connections of a protocol that may have something unsent. Without a `timeout_s` none is closed for that."""

    def __init__(self, pressure: Pressure, timeout_s: float) -> None:
        self._pressure = pressure
        self._timeout_s = timeout_s
        self._departures: dict[Sender, Departure] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, sender: Sender) -> None:
        """Something was written to it that may not have left, after its client had taken what was written before."""
        departure = self._departures.get(sender)
        if departure is not None:
            departure.begin()
            return
        departure = Departure(sender, self._pressure.time)
        if departure.held:
            self._departures[sender] = departure
            self._pressure.add(departure)
            if self._timer is None:
                self._sweep_later()

    def wrote(self, sender: Sender, nbytes: int) -> None:
        """So much more waits, behind what its client has not taken."""
        departure = self._departures.get(sender)
        if departure is not None:
            departure.held += nbytes

    def unwatch(self, sender: Sender) -> None:
        """All of it has left, or nobody wants it any more."""
        departure = self._departures.pop(sender, None)
        if departure is not None:
            self._pressure.forget(departure)

    def sweep(self) -> None:
        """Looks at all now; the timer calls it."""
        self._timer = None
        now = self._pressure.time.now()
        for sender, departure in list(self._departures.items()):
            if not departure.look():
                del self._departures[sender]
                self._pressure.forget(departure)
            elif self._timeout_s and now - departure.last >= self._timeout_s:
                log.info("closing a connection whose client has taken nothing of its answer for %d s", self._timeout_s)
                sender.send_timed_out()
        if self._departures:
            self._sweep_later()

    def _sweep_later(self) -> None:
        pause_s = min(self._timeout_s / 4, _SWEEP_S) if self._timeout_s else _SWEEP_S
        self._timer = asyncio.get_running_loop().call_later(pause_s, self.sweep)
