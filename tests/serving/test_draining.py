from __future__ import annotations

import asyncio

import pytest

from stubserve.serving.draining import Draining


def test_whoever_waits_is_told_when_the_last_one_ends() -> None:
    async def scenario() -> None:
        draining = Draining()
        await draining.drained()
        draining.begin()
        draining.begin()
        waiting = [asyncio.ensure_future(draining.drained()) for _ in range(2)]
        await asyncio.sleep(0)
        draining.end()
        await asyncio.sleep(0)
        assert not any(one.done() for one in waiting)
        draining.end()
        await asyncio.gather(*waiting)

    asyncio.run(scenario())


def test_what_begins_before_the_waiting_goes_on_is_waited_for() -> None:
    async def scenario() -> None:
        draining = Draining()
        draining.begin()
        waiting = asyncio.ensure_future(draining.drained())
        await asyncio.sleep(0)
        draining.end()
        draining.begin()  # in the same turn of the event loop
        for _ in range(3):
            await asyncio.sleep(0)
        assert not waiting.done()
        draining.end()
        await waiting

    asyncio.run(scenario())


@pytest.mark.parametrize("turns", range(4))
def test_what_begins_while_a_patient_wait_ends_is_waited_for(turns: int) -> None:
    """How many turns of the event loop such a wait takes to end is up to the version of Python."""

    async def scenario() -> None:
        draining = Draining()
        draining.begin()
        waiting = asyncio.ensure_future(draining.drained_unless_hung(dict, 60.0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        draining.end()
        for _ in range(turns):
            await asyncio.sleep(0)
        if waiting.done():
            return
        draining.begin()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        draining.end()
        assert await waiting

    asyncio.run(scenario())
