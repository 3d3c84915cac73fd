"""Clients that are slow, or have gone silently: one sweep looks at all of them, with one timer.

- A request that falls behind `--request-min-rate`, or is not complete within `--request-timeout-secs`, is given up.
- A client that takes nothing of its answer for `--send-timeout-secs` is given up.
- A connection that is idle for `--idle-timeout-secs` is closed (`open_connections`).
- When memory is short, slow clients yield. Slow transfers may hold memory as long as nobody else needs it. If a request
  finds no memory, transfers that moved at less than SLOW_RATE lately are given up for it, the slowest first (of those
  that stand still, the largest), and their clients get the reason. So a client that trickles, announces and never
  sends, or never reads cannot shut out others. While there is memory, a slow client is served like any other.

Time is the time in which the event loop turned. While the loop does something long, or this process gets no core, no
socket is read or written, and a clock would count that as the clients' delay. So the timer's ticks count the time:
between two ticks each socket has had its turn, and however late the second tick comes, at most TICK_S has passed. Only
idleness and the deadline of a request go by the clock.

The timer ticks while anything is under way. While connections are only open it wakes up four times in an idle timeout,
and without connections never. How much of an answer is unsent is computed only when it is needed, so an answer that
leaves at once costs one entry in a dictionary, every few seconds.
"""

# Compiled by mypyc.
from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import NamedTuple, Protocol

from stubserve.errors import ServeError, overloaded

log = logging.getLogger("stubserve.server")

TICK_S = 0.1
# A transfer below SLOW_RATE (bytes per second, over RATE_S) yields. After PAUSE_S of silence its rate is 0.
SLOW_RATE = 1024 * 1024
RATE_S = 0.5
PAUSE_S = 1.0
# Seconds over which the rate of a request is taken; a client gets as many at the beginning
WINDOW_S = 20.0
# How often the sweep looks at what is under way, unless a timeout needs it more often
_SWEEP_S = 5.0


class RequestPace(NamedTuple):
    """How fast messages have to arrive: `min_rate` bytes per second, and at least one byte in WINDOW_S.

    All of a message has to arrive within `deadline_s` seconds; 0: no deadline.
    """

    min_rate: int = 500
    deadline_s: float = 3600.0


class Owner(Protocol):
    """The owner of a transfer."""

    def give_up(self, error: ServeError) -> None:
        """Frees the transfer's memory at once, and tells the client of `error` if it can be told."""


class Receiver(Protocol):
    """What has arrived in part: a connection's request, or a stream's message."""

    @property
    def bytes_received(self) -> int: ...

    def stalled(self) -> None: ...


class Unread(Owner, Protocol):
    """A connection or a stream that may have something unsent. It is given up as a whole."""

    @property
    def unsent(self) -> int:
        """Bytes that wait for the client; 0 if nothing waits in this process."""

    def send_timed_out(self) -> None:
        """The client has taken nothing for too long."""


class Transfer:
    """Bytes on their way from or to a client: `moved` so far, for which `held` bytes of memory are kept.

    `at_once` says whether giving the transfer up frees them at once, or only a little later.
    """

    at_once = True

    __slots__ = ("_clients", "_mark", "_marked", "_rate", "growing", "held", "last", "moved", "owner")

    def __init__(self, owner: Owner, clients: SlowClients) -> None:
        self.owner = owner
        self.moved = 0
        self.held = 0
        # Whether this transfer needs memory at the moment
        self.growing = False
        self._clients = clients
        self.begin()

    def begin(self) -> None:
        """Begins, or begins anew: the earlier rate says nothing about the next."""
        # When it last moved; how much had moved at an earlier time, and the rate until then
        self.last = self._mark = self._clients.now()
        self._marked = self.moved
        self._rate = float("inf")

    def has_moved(self, moved: int) -> None:
        self.moved = moved
        self.last = now = self._clients.now()
        elapsed = now - self._mark
        if elapsed >= RATE_S:
            self._rate = (moved - self._marked) / elapsed
            self._mark, self._marked = now, moved

    def rate(self, now: float) -> float:
        """The latest rate in bytes per second; infinite for a transfer that has only begun."""
        if now - self.last >= PAUSE_S:
            return 0.0
        elapsed = now - self._mark
        rate = (self.moved - self._marked) / max(elapsed, RATE_S)
        return max(rate, self._rate) if elapsed < RATE_S else rate


class UnreadAnswer(Transfer):
    """The unsent bytes of one connection or stream. Their memory is blocks of the arena, and text in the heap."""

    __slots__ = ("_unread",)

    # Closing a connection gives its memory back a little later.
    at_once = False

    def __init__(self, unread: Unread, clients: SlowClients) -> None:
        self._unread = unread
        super().__init__(unread, clients)

    def begin(self) -> None:
        super().begin()
        self.held = self._unread.unsent

    def look(self) -> int:
        """Notes the progress; returns the bytes that are left."""
        unsent = self._unread.unsent
        if unsent < self.held:
            self.has_moved(self.moved + self.held - unsent)
        self.held = unsent
        return unsent

    def rate(self, now: float) -> float:
        return super().rate(now) if self.look() else float("inf")


class _Received:
    """When a request began to arrive, by the clock; and its bytes at a later time, by the event loop's time."""

    __slots__ = ("at", "began", "seen")

    def __init__(self, at: float, seen: int) -> None:
        self.began = monotonic()
        self.at = at
        self.seen = seen


class SlowClients:
    """The sweep over a server's clients. A timeout of 0 gives up no client."""

    def __init__(
        self,
        pace: RequestPace = RequestPace(),  # noqa: B008  # it is immutable
        send_timeout_s: float = 0.0,
        idle_timeout_s: float = 0.0,
    ) -> None:
        self.pace = pace
        self.idle_timeout_s = idle_timeout_s
        self._send_timeout_s = send_timeout_s
        # What holds memory; requests that have arrived in part; answers that may have unsent bytes
        self._transfers: set[Transfer] = set()
        self._receivers: dict[Receiver, _Received] = {}
        self._unread: dict[Unread, UnreadAnswer] = {}
        # Each closes idle connections, and says whether any are open
        self._idle_sweeps: list[Callable[[], bool]] = []
        self._any_open = False
        # The event loop's time, and the clock when it was last counted
        self._passed = 0.0
        self._ticked = 0.0
        # The timer; whether it ticks; by the clock, the next look at what is under way, and at what is idle
        self._timer: asyncio.TimerHandle | None = None
        self._ticks = False
        self._next_sweep = 0.0
        self._next_idle_sweep = 0.0

    def now(self) -> float:
        """The event loop's time, which passes as long as anything is under way."""
        return self._passed + min(monotonic() - self._ticked, TICK_S)

    # Transfers that hold memory

    def add(self, transfer: Transfer) -> None:
        self._transfers.add(transfer)
        self._run()

    def forget(self, transfer: Transfer) -> None:
        self._transfers.discard(transfer)

    def make_room(self) -> bool:
        """Gives up the slowest transfer; whether that frees memory at once. If not, it may do so a little later."""
        now = self.now()
        slow = [one for one in self._transfers if not one.growing and one.rate(now) < SLOW_RATE]
        if not slow:
            return False
        slowest = min(slow, key=lambda one: (not one.at_once, one.rate(now), -one.held))
        self.forget(slowest)
        slowest.owner.give_up(
            overloaded(
                f"given up after {slowest.moved} bytes: the transfer was slow, and other requests need the memory. "
                "Send or read faster, or raise --shm-limit"
            )
        )
        return slowest.at_once

    # Receivers

    def watch_receiver(self, receiver: Receiver) -> None:
        """`receiver` has begun and is not complete: its client must go on sending."""
        self._receivers[receiver] = _Received(self.now(), receiver.bytes_received)
        self._run()

    def unwatch_receiver(self, receiver: Receiver) -> None:
        """`receiver` is complete, or its client may not send."""
        self._receivers.pop(receiver, None)

    # Answers

    def watch_unread(self, unread: Unread) -> None:
        """New bytes may be unsent, after the client had taken all earlier ones."""
        answer = self._unread.get(unread)
        if answer is not None:
            answer.begin()
            return
        answer = UnreadAnswer(unread, self)
        if answer.held:
            self._unread[unread] = answer
            self.add(answer)

    def wrote_more(self, unread: Unread, nbytes: int) -> None:
        """`nbytes` more wait, behind earlier bytes that the client has not taken."""
        answer = self._unread.get(unread)
        if answer is not None:
            answer.held += nbytes

    def unwatch_unread(self, unread: Unread) -> None:
        """All has left, or nobody wants it any more."""
        answer = self._unread.pop(unread, None)
        if answer is not None:
            self.forget(answer)

    # Open connections

    def add_idle_sweep(self, sweep: Callable[[], bool]) -> None:
        """Adds a `sweep` that closes connections idle for too long, and says whether any are open."""
        self._idle_sweeps.append(sweep)

    def opened(self) -> None:
        if not self._any_open and self.idle_timeout_s:
            self._any_open = True
            self._next_idle_sweep = monotonic() + self.idle_timeout_s / 4
            if self._timer is None:
                self._run_on()

    # The sweep

    def sweep(self) -> None:
        """Looks at all that is under way."""
        now = self.now()
        min_rate, deadline_s = self.pace
        for one, received in list(self._receivers.items()):
            elapsed = now - received.at
            if deadline_s and monotonic() - received.began > deadline_s:
                one.stalled()
            elif elapsed >= WINDOW_S:
                if one.bytes_received - received.seen < max(min_rate * elapsed, 1):
                    one.stalled()
                received.at, received.seen = now, one.bytes_received
        for unread, answer in list(self._unread.items()):
            if not answer.look():
                self.unwatch_unread(unread)
            elif self._send_timeout_s and now - answer.last >= self._send_timeout_s:
                log.info(
                    "closing a connection whose client has taken nothing of its answer for %d s", self._send_timeout_s
                )
                unread.send_timed_out()

    def _run(self) -> None:
        """Starts the ticks of the timer: something is under way."""
        if not self._ticks:
            self._ticks = True
            self._plan_sweep()
            self._tick()

    def _tick(self) -> None:
        self._passed = self.now()
        self._ticked = clock = monotonic()
        try:
            if self._ticks and clock >= self._next_sweep:
                self._plan_sweep()
                self.sweep()
            if self._any_open and clock >= self._next_idle_sweep:
                self._next_idle_sweep = clock + self.idle_timeout_s / 4
                are_open = [sweep() for sweep in self._idle_sweeps]
                self._any_open = any(are_open)
        finally:
            # Whatever an owner did, the others are looked at again.
            self._run_on()

    def _plan_sweep(self) -> None:
        pause_s = min(_SWEEP_S, WINDOW_S / 4)
        self._next_sweep = monotonic() + (min(self._send_timeout_s / 4, pause_s) if self._send_timeout_s else pause_s)

    def _run_on(self) -> None:
        self._ticks = bool(self._transfers or self._receivers or self._unread)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._ticks:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        elif self._any_open:
            pause_s = max(self._next_idle_sweep - monotonic(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._tick)
