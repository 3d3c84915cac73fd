"""The watch over requests that have arrived in part."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from stubserve.protocols import stall
from stubserve.protocols.http.shared import Connections


class Arriving:
    """A connection that receives bytes, until it does not."""

    def __init__(self, receives: int) -> None:
        self.bytes_received = 0
        self.receives = receives
        self.has_stalled = asyncio.Event()

    def stalled(self) -> None:
        self.has_stalled.set()


def test_a_request_that_stops_arriving_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall, "STALL_S", 0.02)

    async def watch() -> None:
        connections = Connections(cast(Any, None))
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
