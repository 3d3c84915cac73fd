"""The list of open connections: idleness, descriptors and the end, on a clock of the test's own."""

from __future__ import annotations

import asyncio
import resource

import pytest

from stubserve.connections import open_connections
from stubserve.connections.open_connections import RESERVE, OpenConnections
from stubserve.connections.slow_clients import SlowClients
from tests.clock import Clock

from ..real_server import PATIENCE_S


class One:
    """A connection; it closes at once."""

    def __init__(self, connections: OpenConnections, descriptor: int = 5, idle: bool = True) -> None:
        self.idle = idle
        self.bytes_received = 0
        self.closed = False
        self.last = False
        self._connections = connections
        self.added = connections.add(self, descriptor)

    def close_idle(self) -> None:
        assert self.idle
        self.close()

    def close_after_answer(self) -> None:
        self.last = True

    def close(self) -> None:
        self.closed = True
        self._connections.forget(self)


def test_where_the_server_leaves_each_takes_one_request_more() -> None:
    async def run() -> None:
        connections = OpenConnections(SlowClients(idle_timeout_s=100))
        before = One(connections)
        connections.begin_leaving()
        after = One(connections)
        assert (before.last, after.last, before.closed, after.closed) == (True, True, False, False)

    asyncio.run(run())


def test_idle_ones_are_closed_after_a_time(clock: Clock) -> None:
    async def run() -> None:
        connections = OpenConnections(SlowClients(idle_timeout_s=100))
        idle, talks, busy = One(connections), One(connections), One(connections, idle=False)
        for _ in range(5):
            talks.bytes_received += 10
            clock.turns(25)
        assert idle.closed
        assert not talks.closed
        assert not busy.closed

    asyncio.run(run())


def test_when_descriptors_run_out_idle_ones_go_and_it_is_said_once_a_minute(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    connections = OpenConnections(SlowClients())
    asked, busy = One(connections), One(connections, idle=False)
    asked.bytes_received = 100
    silent = [One(connections) for _ in range(open_connections._CLOSED_AT_ONCE)]
    clock.now += 2
    assert One(connections, limit - RESERVE).added
    assert all(one.closed for one in silent)
    assert not asked.closed
    assert One(connections, limit - 1).added
    assert asked.closed
    assert not busy.closed
    assert caplog.text.count("out of descriptors") == 1
    clock.now += 61
    One(connections, limit - 1)
    assert caplog.text.count("out of descriptors") == 2


def test_one_connection_yields_to_one_more_than_there_may_be(clock: Clock) -> None:
    """Of those that have said nothing; but not who has only just come, whose request may not have been read."""
    connections = OpenConnections(SlowClients(), most=3)
    asked, silent = One(connections), One(connections)
    asked.bytes_received = 100
    clock.now += 2
    young = One(connections)
    assert One(connections, idle=False).added
    assert (asked.closed, silent.closed, young.closed) == (False, True, False)
    assert One(connections, idle=False).added
    assert (asked.closed, young.closed) == (True, False)
    young.idle = False
    assert not One(connections).added


def test_where_none_is_idle_the_last_descriptors_are_kept() -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    connections = OpenConnections(SlowClients())
    One(connections, idle=False)
    assert One(connections, limit - RESERVE, idle=False).added
    assert not One(connections, limit - RESERVE // 2, idle=False).added


def test_the_end_waits_for_what_was_under_way(clock: Clock) -> None:
    async def run() -> None:
        connections = OpenConnections(SlowClients())
        idle, busy = One(connections), One(connections, idle=False)
        connections.begin_drain()
        assert busy.last
        draining = asyncio.ensure_future(connections.drain())
        await asyncio.sleep(0)
        assert not idle.closed
        idle.idle = False  # another request, which does not prolong the end
        busy.close()
        await draining
        assert idle.last
        assert not idle.closed

    asyncio.run(run())


def test_a_request_after_the_beginning_of_the_end_is_not_waited_for() -> None:
    """Nor is its connection closed before the others."""

    async def run() -> None:
        connections = OpenConnections(SlowClients())
        late, busy = One(connections), One(connections, idle=False)
        connections.begin_drain()
        late.idle = False
        draining = asyncio.ensure_future(connections.drain())
        await asyncio.sleep(0)
        assert not late.last
        busy.close()
        await draining
        assert late.last
        assert not late.closed

    asyncio.run(run())


def test_the_end_does_not_wait_for_longer_than_it_may() -> None:
    async def run() -> None:
        connections = OpenConnections(SlowClients())
        idle, busy = One(connections), One(connections, idle=False)
        connections.begin_drain()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(connections.drain(), 0.01)
        assert idle.closed
        assert busy.last

    asyncio.run(run())


def test_an_end_with_grace_waits_for_answers_and_no_longer_than_it_may() -> None:
    """As gRPC's: each connection ends by itself with its last answer, and what has not is closed then."""

    class Ending(One):
        def close_idle(self) -> None:
            self.close()

    async def run() -> None:
        connections = OpenConnections(SlowClients())
        answered, stuck = Ending(connections, idle=False), Ending(connections, idle=False)
        ending = asyncio.ensure_future(connections.end(0.01))
        await asyncio.sleep(0)
        assert answered.last
        assert stuck.last
        answered.close()
        await ending
        assert stuck.closed
        last = Ending(connections, idle=False)
        ending = asyncio.ensure_future(connections.end(3600))
        await asyncio.sleep(0)
        last.close()
        await asyncio.wait_for(ending, PATIENCE_S)

    asyncio.run(run())
