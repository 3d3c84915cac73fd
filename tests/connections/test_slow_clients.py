"""The one sweep over all clients, on a clock of the test's own."""

from __future__ import annotations

import asyncio

import pytest

from stubserve.connections.open_connections import OpenConnections
from stubserve.connections.slow_clients import PAUSE_S, TICK_S, WINDOW_S, RequestPace, SlowClients
from stubserve.errors import ServeError
from tests.clock import Clock


class Client:
    """A connection that neither sends nor reads, and notes what becomes of it."""

    idle = True
    bytes_received = 0
    unsent = 1000

    def __init__(self) -> None:
        self.told: list[str] = []

    def stalled(self) -> None:
        self.told.append("stalled")

    def send_timed_out(self) -> None:
        self.told.append("timed out")

    def give_up(self, error: ServeError) -> None:
        self.told.append("given up")

    def close_idle(self) -> None:
        self.told.append("idle")

    def close_after_answer(self) -> None:
        raise AssertionError("nothing ends here")


def test_one_timer_looks_at_all_clients_and_none_where_there_are_none(clock: Clock) -> None:
    """Of two protocols: what arrives, what leaves, and what is only open."""

    async def run() -> None:
        clients = SlowClients(RequestPace(500, 0), send_timeout_s=WINDOW_S, idle_timeout_s=4 * WINDOW_S)
        protocols = [OpenConnections(clients), OpenConnections(clients)]
        assert not clock.timers
        opened, sends, reads = Client(), Client(), Client()
        protocols[0].add(opened, 5)
        [timer] = clock.timers
        assert timer.at == clock.now + WINDOW_S
        clients.watch_receiver(sends)
        clients.watch_unread(reads)
        protocols[1].add(Client(), 5)
        [timer] = clock.timers
        assert timer.at == clock.now + TICK_S
        clock.turns(2 * WINDOW_S)
        assert len(clock.timers) == 1
        assert sends.told[0] == "stalled"
        assert reads.told[0] == "timed out"
        assert not opened.told
        clients.unwatch_receiver(sends)
        clients.unwatch_unread(reads)
        clock.turns(3 * WINDOW_S + 1)
        [timer] = clock.timers
        assert timer.at > clock.now + TICK_S
        assert opened.told[0] == "idle"
        for connections in protocols:
            for connection in list(connections._open):
                connections.forget(connection)
        clock.turns(2 * WINDOW_S)
        assert not clock.timers

    asyncio.run(run())


def test_others_are_looked_at_again_after_an_error_inside_the_server(clock: Clock) -> None:
    class Faulty(Client):
        def stalled(self) -> None:
            raise RuntimeError("a fault of ours")

    async def run() -> None:
        clients = SlowClients(RequestPace(500, 0))
        faulty, other = Faulty(), Client()
        clients.watch_receiver(faulty)
        clients.watch_receiver(other)
        with pytest.raises(RuntimeError):
            clock.turns(2 * WINDOW_S)
        clients.unwatch_receiver(faulty)
        clock.turns(2 * WINDOW_S)
        assert other.told[0] == "stalled"
        clients.unwatch_receiver(other)

    asyncio.run(run())


def test_a_connection_that_is_closed_for_idleness_may_begin_something(clock: Clock) -> None:
    """Its last words wait for a client that does not read: one timer goes on, and gives it up."""

    class Wordy(Client):
        def close_idle(self) -> None:
            self.told.append("idle")
            clients.watch_unread(self)

    clients = SlowClients(send_timeout_s=60, idle_timeout_s=100)

    async def run() -> None:
        connections = OpenConnections(clients)
        client = Wordy()
        connections.add(client, 5)
        for _ in range(8):
            if not client.told:
                clock.turns(25)
        connections.forget(client)
        assert len(clock.timers) == 1
        clock.turns(PAUSE_S)
        clients.make_room()
        assert client.told == ["idle", "given up"]
        clients.unwatch_unread(client)

    asyncio.run(run())
