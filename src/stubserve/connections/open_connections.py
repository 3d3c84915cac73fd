"""The open connections: when idle ones are closed, and how connections end with the server.

Idle connections are closed after a time, and when descriptors run out. A connection's own number tells how many
descriptors are in use, because the system gives the lowest free number. The last RESERVE below the limit are kept for
the server itself (stubs, files, the health answer of a new connection). A connection that gets one of these closes idle
connections; if none is idle and the last half of the reserve is in use, it closes itself. So the server can always
accept.

At the server's end idle connections stay open, and are served, until the requests under way are answered.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Iterator
from time import monotonic
from typing import Protocol

from stubserve.connections.slow_clients import SlowClients

log = logging.getLogger("stubserve.server")

RESERVE = 64
# So many idle connections are closed at once, so that not every new connection looks at all of them.
_CLOSED_AT_ONCE = 32
_LOG_PAUSE_S = 60.0
_YOUNG_S = 1.0


class OpenConnection(Protocol):
    """A connection of any protocol."""

    @property
    def idle(self) -> bool:
        """Whether no request is under way; the beginning of a head is no request."""

    @property
    def bytes_received(self) -> int: ...

    def close_idle(self) -> None: ...

    def close_after_answer(self) -> None:
        """Takes no further request."""


class OpenConnections:
    """The connections of one protocol. The sweep of `clients` closes those that are idle for too long.

    There may be `most` of them; 0: as many as there are descriptors.
    """

    def __init__(self, clients: SlowClients, most: int = 0) -> None:
        self._clients = clients
        self._most = most
        # When each connection was last seen to have received more, and how much it had received then
        self._open: dict[OpenConnection, tuple[float, int]] = {}
        self._last_log = float("-inf")
        # Whether the server is about to go, and connections take one request more
        self._leaving = False
        # At the end: the connections with requests that are waited for
        self._awaited: set[OpenConnection] = set()
        self._answered = asyncio.Event()
        self._all_closed = asyncio.Event()
        clients.add_idle_sweep(self.sweep)

    def add(self, connection: OpenConnection, descriptor: int) -> bool:
        """A new connection; False if there is no room or descriptor for it, and it must be refused."""
        if (
            self._most
            and len(self._open) >= self._most
            and not self._close_idle(
                1, "%d connections are open, as many as --max-connections allows; %s", len(self._open)
            )
        ):
            return False
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if descriptor >= limit - RESERVE and not self._make_room(descriptor, limit):
            return False
        self._open[connection] = (monotonic(), 0)
        if self._leaving:
            connection.close_after_answer()
        self._all_closed.clear()
        self._clients.opened()
        return True

    def __iter__(self) -> Iterator[OpenConnection]:
        return iter(list(self._open))

    def forget(self, connection: OpenConnection) -> None:
        self._open.pop(connection, None)
        if not self._open:
            self._all_closed.set()
        if self._awaited:
            self._awaited.discard(connection)
            if not self._awaited:
                self._answered.set()

    def begin_leaving(self) -> None:
        """Has each connection closed with its next answer, new ones too: so nobody uses one when the server goes."""
        self._leaving = True
        for connection in self._open:
            connection.close_after_answer()

    def begin_drain(self) -> None:
        """The end waits for the requests that are under way now; their connections take no other."""
        for connection in self._open:
            if not connection.idle:
                self._awaited.add(connection)
                connection.close_after_answer()

    async def drain(self) -> None:
        """Waits until the awaited requests are answered; then, or when cancelled, has all connections closed."""
        try:
            if self._awaited:
                await self._answered.wait()
        finally:
            for connection in list(self._open):
                (connection.close_idle if connection.idle else connection.close_after_answer)()

    async def end(self, grace_s: float) -> None:
        """Has each connection without a request closed, at once or later, and after `grace_s` the rest."""
        for connection in list(self._open):
            connection.close_after_answer()
        if self._open:
            try:
                await asyncio.wait_for(self._all_closed.wait(), grace_s)
            except asyncio.TimeoutError:
                for connection in list(self._open):
                    connection.close_idle()

    def sweep(self) -> bool:
        """Closes connections that have been idle for too long; whether any are open."""
        now = monotonic()
        expired = []
        for connection, (at, seen) in self._open.items():
            if not connection.idle or connection.bytes_received != seen:
                self._open[connection] = (now, connection.bytes_received)
            elif now - at >= self._clients.idle_timeout_s:
                expired.append(connection)
        for connection in expired:
            connection.close_idle()
        return bool(self._open)

    def _make_room(self, descriptor: int, limit: int) -> bool:
        """Closes idle connections; whether a new connection may stay."""
        text = "out of descriptors: %d of %d are in use, %d by connections; %s. Raise the limit (ulimit -n)"
        closed = self._close_idle(_CLOSED_AT_ONCE, text, descriptor, limit, len(self._open))
        return closed or descriptor < limit - RESERVE // 2

    def _close_idle(self, count: int, text: str, *numbers: int) -> bool:
        """Closes up to `count` idle connections, first those that have never sent a request; whether there were any.

        Logs now and then: the text with these numbers, and what happens to new connections.
        """
        idle = [connection for connection in self._open if connection.idle]
        now = monotonic()
        young = now - _YOUNG_S  # bytes of such a connection may not have been read yet

        def by_use(connection: OpenConnection) -> tuple[bool, float]:
            at = self._open[connection][0]
            return connection.bytes_received > 0 or at > young, at

        for connection in sorted(idle, key=by_use)[:count]:
            connection.close_idle()
        if now - self._last_log >= _LOG_PAUSE_S:
            self._last_log = now
            what = "idle ones are closed" if idle else "none of them is idle, so new ones are refused"
            log.warning(text, *numbers, what)
        return bool(idle)
