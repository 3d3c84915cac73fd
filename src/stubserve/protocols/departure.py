"""Answers on their way out: what they hold while their clients do not read, and for how long.

An answer that the client does not take lies in the arena until it does. These rules keep such clients from shutting out
others, as those of `arrival` do for clients that do not send:

- A departure that is slow yields when memory is short (`pressure`).
- One that does not move at all for `timeout_s` seconds is given up in any case.

An answer that leaves at once costs nothing: only what has to wait for its client becomes a departure, and only while it
waits. All departures are looked at every LOOK_S.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stubserve.errors import unavailable
from stubserve.protocols.pressure import Owner, Pressure, Transfer

LOOK_S = 0.5


class Departure(Transfer):
    """What waits for one client. `sent()` is how many bytes have left so far, `held` what the rest of them holds."""

    __slots__ = ("sent", "still_s")

    def __init__(self, owner: Owner, held: int, sent: Callable[[], int]) -> None:
        super().__init__(owner)
        self.held = held
        self.sent = sent
        self.has_moved(sent())
        # For how long nothing has left
        self.still_s = 0.0


class Departures:
    """All answers of a server that wait for their clients. A `timeout_s` of 0 gives nobody up but for others' sake."""

    def __init__(self, pressure: Pressure, timeout_s: float) -> None:
        self._pressure = pressure
        self._timeout_s = timeout_s
        self._waiting: set[Departure] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, owner: Owner, held: int, sent: Callable[[], int]) -> Departure:
        """Something has to wait for its client from now on, until `end`. It may be given up in between."""
        departure = Departure(owner, held, sent)
        self._waiting.add(departure)
        self._pressure.add(departure)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)
        return departure

    def end(self, departure: Departure) -> None:
        """It has left, or nobody wants it any more. May be called again."""
        self._waiting.discard(departure)
        self._pressure.discard(departure)

    def _look(self) -> None:
        self._timer = None
        for departure in list(self._waiting):
            if departure not in self._waiting:
                continue  # it went with another
            sent = departure.sent()
            if sent != departure.moved:
                departure.has_moved(sent)
                departure.still_s = 0.0
                continue
            departure.still_s += LOOK_S
            if self._timeout_s and departure.still_s >= self._timeout_s:
                self.end(departure)
                departure.owner.give_up(
                    unavailable(
                        f"given up after {sent} bytes: the client has read nothing for --send-timeout-secs="
                        f"{self._timeout_s:g} seconds"
                    )
                )
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)
