"""The watch over requests that have arrived in part."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stubserve.connections import slow_clients
from stubserve.connections.slow_clients import RequestPace, SlowClients
from stubserve.http.endpoint import HttpEndpoint

from ..real_server import PATIENCE_S


def server(slow_clients: Any) -> Any:
    """All of the server that the reader needs."""
    return SimpleNamespace(slow_clients=slow_clients, max_connections=0)


class Receiver:
    """A connection that receives bytes, until it does not."""

    def __init__(self, receives: int) -> None:
        self.bytes_received = 0
        self.receives = receives
        self.has_stalled = asyncio.Event()

    def stalled(self) -> None:
        self.has_stalled.set()


def test_a_request_that_stops_arriving_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_clients, "WINDOW_S", 0.02)

    async def watch() -> None:
        clients = SlowClients(RequestPace(min_rate=1))
        slow, stopped = Receiver(20), Receiver(0)
        clients.watch_receiver(slow)
        clients.watch_receiver(stopped)

        async def receive() -> None:
            while slow.receives:
                slow.receives -= 1
                slow.bytes_received += 1
                await asyncio.sleep(0.002)

        receiving = asyncio.ensure_future(receive())
        await asyncio.wait_for(stopped.has_stalled.wait(), PATIENCE_S)
        clients.unwatch_receiver(stopped)
        await receiving
        await asyncio.wait_for(slow.has_stalled.wait(), PATIENCE_S)
        clients.unwatch_receiver(slow)

    asyncio.run(watch())


class Transport:
    """Reads, or does not."""

    def __init__(self) -> None:
        self.paused = False

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_closing(self) -> bool:
        return False


def test_a_request_that_waits_for_the_server_has_not_stalled() -> None:
    watched: list[Any] = []

    clients = SlowClients()
    clients.watch_receiver = watched.append  # type: ignore[method-assign]
    transport = Transport()
    connections = HttpEndpoint(server(clients))
    reader = connections.reader(cast(Any, transport))
    beginning = b"GET /v2 HTTP/1.1\r\n"
    connections.scratch[: len(beginning)] = beginning
    reader.received(len(beginning))
    reader.pause_or_resume(waits=True)
    assert transport.paused
    assert not watched
    assert not reader.take_head()
    reader.pause_or_resume(waits=False)
    assert not transport.paused
    assert watched == [reader]
