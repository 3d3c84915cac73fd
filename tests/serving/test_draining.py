from __future__ import annotations

import asyncio

import pytest

from stubserve.inference.statistics import ModelStatistics
from stubserve.serving.delivery import Delivery
from tests.inference.models import echo


def delivery() -> Delivery:
    return Delivery(echo("m", "FP32", "1"), ModelStatistics())


def test_whoever_waits_is_told_when_the_last_one_ends() -> None:
    async def scenario() -> None:
        draining = delivery()
        await draining.drained()
        draining.reserve()
        draining.reserve()
        waiting = [asyncio.ensure_future(draining.drained()) for _ in range(2)]
        await asyncio.sleep(0)
        draining.release()
        await asyncio.sleep(0)
        assert not any(one.done() for one in waiting)
        draining.release()
        await asyncio.gather(*waiting)

    asyncio.run(scenario())


def test_what_begins_before_the_waiting_goes_on_is_waited_for() -> None:
    async def scenario() -> None:
        draining = delivery()
        draining.reserve()
        waiting = asyncio.ensure_future(draining.drained())
        await asyncio.sleep(0)
        draining.release()
        draining.reserve()  # in the same turn of the event loop
        for _ in range(3):
            await asyncio.sleep(0)
        assert not waiting.done()
        draining.release()
        await waiting

    asyncio.run(scenario())


@pytest.mark.parametrize("turns", range(4))
def test_what_begins_while_a_patient_wait_ends_is_waited_for(turns: int) -> None:
    """How many turns of the event loop such a wait takes to end is up to the version of Python."""

    async def scenario() -> None:
        draining = delivery()
        draining.reserve()
        waiting = asyncio.ensure_future(draining.drained_unless_hung(dict, 60.0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        draining.release()
        for _ in range(turns):
            await asyncio.sleep(0)
        if waiting.done():
            return
        draining.reserve()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        draining.release()
        assert await waiting

    asyncio.run(scenario())
