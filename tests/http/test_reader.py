"""The watch over requests that have arrived in part."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stubserve.connections import stall
from stubserve.connections.slow_clients import Pressure
from stubserve.connections.stall import Pace
from stubserve.http.reader import RequestReader
from stubserve.http.shared import Connections

# All of the server that the watch needs
SERVER = cast(
    Any,
    SimpleNamespace(pace=Pace(min_rate=1), idle_timeout_s=0, max_connections=0, send_timeout_s=0, pressure=Pressure()),
)


class Arriving:
    """A connection that receives bytes, until it does not."""

    def __init__(self, receives: int) -> None:
        self.bytes_received = 0
        self.receives = receives
        self.has_stalled = asyncio.Event()

    def stalled(self) -> None:
        self.has_stalled.set()


def test_a_request_that_stops_arriving_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall, "WINDOW_S", 0.02)

    async def watch() -> None:
        connections = Connections(SERVER)
        slow, stopped = Arriving(20), Arriving(0)
        connections.watch(slow)
        connections.watch(stopped)

        async def receive() -> None:
            while slow.receives:
                slow.receives -= 1
                slow.bytes_received += 1
                await asyncio.sleep(0.002)

        receiving = asyncio.ensure_future(receive())
        await asyncio.wait_for(stopped.has_stalled.wait(), 10)
        connections.unwatch(stopped)
        await receiving
        await asyncio.wait_for(slow.has_stalled.wait(), 10)
        connections.unwatch(slow)

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

    class Watching(Connections):
        def watch(self, watched_: Any) -> None:
            watched.append(watched_)

    transport = Transport()
    connections = Watching(SERVER)
    reader = RequestReader(connections, cast(Any, transport))
    beginning = b"GET /v2 HTTP/1.1\r\n"
    connections.scratch_view[: len(beginning)] = beginning
    reader.received(len(beginning))
    reader.settle(waits=True)
    assert transport.paused
    assert not watched
    assert not reader.take_head()
    reader.settle(waits=False)
    assert not transport.paused
    assert watched == [reader]
