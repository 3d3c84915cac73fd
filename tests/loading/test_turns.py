"""Turns of models: who waits, who does not, and who is refused because it would wait for itself."""

from __future__ import annotations

import asyncio

import pytest

from stubserve.errors import ServeError
from stubserve.loading import changes
from stubserve.loading.changes import Ends, Obsolete, Turn, Turns, asked_by_itself
from tests.real_server import PATIENCE_S


class Change:
    """A load that has its turn, or waits for it, until it is told to end."""

    def __init__(
        self, turns: Turns, model: str, outer: Turn | None = None, ends: Ends | None = None, wanted: object = None
    ) -> None:
        self.turn: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        self._may_end = asyncio.Event()
        self.task = asyncio.ensure_future(self._run(turns, model, outer, ends, wanted))

    async def _run(self, turns: Turns, model: str, outer: Turn | None, ends: Ends | None, wanted: object) -> None:
        async with turns.take(model, outer, wanted, ends) as turn:
            self.turn.set_result(turn)
            await self._may_end.wait()

    async def end(self) -> None:
        self._may_end.set()
        await self.task


async def settle() -> None:
    """Lets everything run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_one_after_the_other_for_each_model() -> None:
    async def scenario() -> None:
        turns = Turns()
        first, second, third = (Change(turns, "a") for _ in range(3))
        other = Change(turns, "b")
        await settle()
        assert [change.turn.done() for change in (first, second, third, other)] == [True, False, False, True]
        second.task.cancel()  # who gives up does not hold up the next, nor let it in too early
        await settle()
        assert not third.turn.done()
        await first.end()
        await settle()
        assert third.turn.done()
        await third.end()
        await other.end()

    asyncio.run(scenario())


def test_a_load_inside_a_load() -> None:
    async def scenario() -> None:
        turns = Turns()
        outer = Change(turns, "a")
        inner = Change(turns, "b", await outer.turn)
        innermost = Change(turns, "c", await inner.turn)
        for model in "abc":
            with pytest.raises(ServeError, match="itself while" if model == "c" else "cannot wait for model"):
                await Change(turns, model, await innermost.turn).task
        await innermost.end()
        await inner.end()
        again = Change(turns, "b", await outer.turn)
        await again.turn
        await again.end()
        await outer.end()

    asyncio.run(scenario())


def test_loads_that_want_each_other() -> None:
    async def scenario() -> None:
        turns = Turns()
        a, b = Change(turns, "a"), Change(turns, "b")
        waiting = Change(turns, "b", await a.turn)
        await settle()
        assert not waiting.turn.done()
        with pytest.raises(ServeError, match="model 'b' is being loaded and cannot wait for model 'a'"):
            await Change(turns, "a", await b.turn).task
        await b.end()
        await waiting.turn
        await waiting.end()
        await a.end()

    asyncio.run(scenario())


def test_a_queue_behind_a_load_that_waits() -> None:
    async def scenario() -> None:
        turns = Turns()
        a, c = Change(turns, "a"), Change(turns, "c")
        # c's next turn waits for c only, but c waits for a.
        queued = Change(turns, "c")
        waiting = Change(turns, "a", await c.turn)
        await settle()
        with pytest.raises(ServeError, match="cannot wait for model 'c'"):
            await Change(turns, "c", await a.turn).task
        for change in (a, waiting, c, queued):
            await change.end()

    asyncio.run(scenario())


def test_a_newer_one_ends_all_that_are_obsolete_before_it() -> None:
    async def scenario() -> None:
        turns = Turns(patient=False)
        first, second = Change(turns, "a"), Change(turns, "a")
        newer = Change(turns, "a", ends=asked_by_itself)
        await asyncio.wait_for(newer.turn, PATIENCE_S)
        for older in (first, second):
            with pytest.raises(Obsolete, match="the load of model 'a' was ended by a newer load or unload of it"):
                await older.task
        await newer.end()

    asyncio.run(scenario())


def test_the_same_again_has_no_further_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a client that has given up and asked again: each of its loads would never end."""
    monkeypatch.setattr(changes, "PATIENCE_S", 3600.0)
    monkeypatch.setattr(changes, "_AGAIN_S", 0.01)

    async def scenario() -> None:
        turns = Turns()
        same = [Change(turns, "a", wanted="this") for _ in range(4)]
        other = Change(turns, "a", wanted="that")
        (await same[0].turn).began_s -= changes.PATIENCE_S
        newer = Change(turns, "a", ends=asked_by_itself)
        await asyncio.wait_for(other.turn, PATIENCE_S)
        for older in same:
            with pytest.raises(Obsolete):
                await older.task
        await other.end()
        await newer.turn
        await newer.end()

    asyncio.run(scenario())


def test_who_is_waited_for_by_another_load_is_not_ended() -> None:
    async def scenario() -> None:
        turns = Turns(patient=False)
        outer = Change(turns, "ensemble")
        inner = Change(turns, "a", await outer.turn)
        await inner.turn
        newer = Change(turns, "a", ends=asked_by_itself)
        await settle()
        assert not newer.turn.done()
        await inner.end()
        await asyncio.wait_for(newer.turn, PATIENCE_S)
        await newer.end()
        await outer.end()

    asyncio.run(scenario())


def test_a_server_that_exits_is_not_mistaken_for_a_newer_load() -> None:
    async def scenario() -> None:
        turns = Turns(patient=False)
        change = Change(turns, "a")
        await change.turn
        change.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await change.task

    asyncio.run(scenario())
