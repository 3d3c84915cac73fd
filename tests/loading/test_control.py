"""Model control with fake models: turns, places, who waits for what, who gives up, polling, and the end."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from stubserve.errors import Code, ServeError, invalid
from stubserve.loading import finding
from stubserve.loading.control import ModelControl
from stubserve.repository.registry import Registry
from stubserve.settings.groups import EXPLICIT, POLL, RepositorySettings
from tests.loading.fakes import Disk, FakeModel, FakeStarter, Start, in_time, log_lines, services, states, until


class Clock:
    """A `sleep` that lasts until the test says so."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[float] = asyncio.Queue()
        self._ticks: asyncio.Queue[None] = asyncio.Queue()

    async def sleep(self, seconds: float) -> None:
        self.asked.put_nowait(seconds)
        await self._ticks.get()

    async def tick(self) -> None:
        """Ends the sleep that there is, or the next one."""
        assert await in_time(self.asked.get()) == 7
        self._ticks.put_nowait(None)


class World:
    """Model control of fake models, and the disk that they come from."""

    def __init__(self, repository: Path, **settings: Any) -> None:
        self.disk = Disk(repository)
        self.registry = Registry()
        self.starter = FakeStarter()
        self.clock = Clock()
        chosen = RepositorySettings((repository,), **{"control_mode": EXPLICIT, "poll_secs": 7, **settings})
        self.control = ModelControl(chosen, self.starter, self.registry, services(self.registry), 5.0, self.clock.sleep)

    async def load(self, name: str = "m", count: int = 1) -> FakeModel:
        """Loads one version, which starts."""
        self.disk.write(name, count=count)
        load = asyncio.ensure_future(self.control.load(name))
        model = (await self.starter.next()).succeed()
        await in_time(load)
        return model


def run(repository: Path, scenario: Callable[[World], Awaitable[None]], **settings: Any) -> None:
    async def whole() -> None:
        world = World(repository, **settings)
        await scenario(world)
        await in_time(world.control.stop(30.0))

    asyncio.run(whole())


async def refused(change: Coroutine[Any, Any, None]) -> ServeError:
    with pytest.raises(ServeError) as caught:
        await in_time(change)
    return caught.value


def test_changes_of_one_model_take_turns(repository: Path) -> None:
    async def scenario(world: World) -> None:
        world.disk.write()
        first, second = (asyncio.ensure_future(world.control.load("m")) for _ in range(2))
        start = await world.starter.next()
        unload = asyncio.ensure_future(world.control.unload("m"))
        other = asyncio.ensure_future(world.control.load("nosuch"))
        assert (await refused(_wait(other))).message.endswith("model not found in any model repository")
        assert world.starter.waiting == 0
        start.fail(invalid("broken"))
        assert "broken" in (await refused(_wait(first))).message
        model = (await world.starter.next()).succeed()
        await in_time(second)
        await in_time(unload)
        await until(lambda: states(world.registry) == {1: ("UNAVAILABLE", "unloaded")})
        assert model.stopped_within == [5.0]

    run(repository, scenario)


async def _wait(task: asyncio.Future[None]) -> None:
    await task


def test_a_load_inside_a_load_gets_its_place(repository: Path) -> None:
    async def scenario(world: World) -> None:
        world.disk.write("inner")
        world.disk.write("outer")
        outer = asyncio.ensure_future(world.control.load("outer"))
        start = await world.starter.next()
        inner = asyncio.ensure_future(start.services.control.load("inner", None, {}))
        (await world.starter.next()).fail(invalid("broken"))
        assert "broken" in (await refused(_wait(inner))).message
        inner = asyncio.ensure_future(start.services.control.load("inner", None, {}))
        (await world.starter.next()).succeed()
        await in_time(inner)
        await in_time(start.services.control.unload("inner"))
        assert (await refused(start.services.control.load("outer", None, {}))).message.startswith(
            "model 'outer' cannot load or unload itself"
        )
        start.succeed()
        await in_time(outer)
        assert states(world.registry, "outer") == {1: ("READY", "")}

    run(repository, scenario, load_threads=1)


def test_who_asks_may_go_away(repository: Path) -> None:
    async def scenario(world: World) -> None:
        world.disk.write()
        load = asyncio.ensure_future(world.control.load("m"))
        start = await world.starter.next()
        load.cancel()
        await asyncio.wait([load])
        assert load.cancelled()
        assert states(world.registry) == {1: ("LOADING", "")}
        start.succeed()
        await until(lambda: states(world.registry) == {1: ("READY", "")})

    run(repository, scenario)


def test_who_takes_instances_away_waits_until_they_are_gone_and_nobody_else_does(repository: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(count=2)
        over = asyncio.Event()
        model.surplus = [asyncio.ensure_future(_when(over))]
        world.disk.write(count=1)
        client = asyncio.ensure_future(world.control.load("m"))
        update = await world.starter.next()
        assert update.succeed() is model
        await until(lambda: len(model.configs) == 1)
        # The turn is over: the next may begin, and a stub's own load does not wait for the end of the surplus either.
        world.disk.write(count=2)
        stub = asyncio.ensure_future(update.services.control.load("m", None, {}))
        (await world.starter.next()).succeed()
        await in_time(stub)
        assert not client.done()
        over.set()
        await in_time(client)

    run(repository, scenario)


async def _when(event: asyncio.Event) -> None:
    await event.wait()


@pytest.mark.parametrize("change", ["load", "unload"])
def test_an_error_that_nobody_expects_is_answered(
    repository: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("what")

    async def scenario(world: World) -> None:
        await world.load()
        with monkeypatch.context() as patch, log_lines() as lines:
            patch.setattr(finding, "find_candidate", broken)
            patch.setattr(world.registry, "forget", broken)
            world.registry.entry("bare")
            error = await refused(world.control.load("m") if change == "load" else world.control.unload("bare"))
        assert (error.code, "unexpected error: RuntimeError('what')" in error.message) == (Code.INTERNAL, True)
        assert "unexpected error while models were loaded or unloaded" in lines
        # Nobody's turn has been forgotten.
        await in_time(world.control.unload("m"))

    run(repository, scenario)


def test_a_server_that_stops_gives_loads_up(repository: Path) -> None:
    async def scenario(world: World) -> None:
        served = await world.load("served")
        world.disk.write(versions=(1, 2))
        load = asyncio.ensure_future(world.control.load("m"))
        waiting = asyncio.ensure_future(world.control.unload("m"))
        starts = await world.starter.several(2)
        started = starts[1].succeed()
        await asyncio.sleep(0)
        await in_time(world.control.stop(30.0))
        for one in (load, waiting):
            error = await refused(_wait(one))
            assert (error.code, error.message) == (Code.UNAVAILABLE, "Server exiting")
        assert starts[2].outcome.cancelled()
        assert (served.stopped_within, started.stopped_within) == ([5.0], [5.0])
        assert (await refused(world.control.load("m"))).message == "Server exiting"

    run(repository, scenario)


@pytest.mark.parametrize("mode", [EXPLICIT, POLL])
def test_until_the_repositories_are_listed_no_model_is_unknown(repository: Path, mode: str) -> None:
    """The port is open before, and a client that is told 404 gives up."""

    async def scenario(world: World) -> None:
        world.disk.write("m")
        loading = asyncio.ensure_future(world.control.load_all())
        seen = set()
        while not loading.done() and not world.starter.waiting:
            for name in ("m", "other"):
                with pytest.raises(ServeError) as raised:
                    world.registry.find(name, "")
                seen.add((name, raised.value.code))
            await asyncio.sleep(0)
        assert seen >= {("m", Code.UNAVAILABLE), ("other", Code.UNAVAILABLE)}
        assert ("m", Code.NOT_FOUND) not in seen
        start = await world.starter.next()
        with pytest.raises(ServeError, match="unknown model: 'other'"):
            world.registry.find("other", "")
        start.succeed()
        assert await in_time(loading)
        assert world.registry.find("m", "").name == "m"

    run(repository, scenario, control_mode=mode, load_models=("m",) if mode == EXPLICIT else (), poll_secs=0)


def test_what_is_loaded_at_the_start(repository: Path) -> None:
    async def scenario(world: World) -> None:
        for name in ("a", "b", "c"):
            world.disk.write(name)
        loading = asyncio.ensure_future(world.control.load_all())
        starts = [await world.starter.next() for _ in range(2)]
        assert {start.candidate.folder.name for start in starts} == {"a", "c"}
        starts[0].succeed()
        starts[1].fail(invalid("broken"))
        assert await in_time(loading) is False
        assert [row["name"] for row in await world.control.index(False)] == ["a", "b", "c"]

    run(repository, scenario, load_models=("a", "c"))


def test_a_repository_that_is_not_there(repository: Path) -> None:
    async def scenario(world: World) -> None:
        shutil.rmtree(repository)
        assert (await refused(_all(world))).message.startswith(f"failed to stat file {repository}")

    run(repository, scenario)


async def _all(world: World) -> None:
    await world.control.load_all()


# Polling


async def polled(world: World, **outcomes: Exception | None) -> dict[str, Start]:
    """Ends the loads of these models, which the next look begins, each with its error or without."""
    starts = {}
    for _ in outcomes:
        start = await world.starter.next()
        name = start.candidate.folder.name
        starts[name] = start
        error = outcomes[name]
        if error is None:
            start.succeed()
        else:
            start.fail(error)
    await until(lambda: not world.control._watch._loads)
    return starts


async def look(world: World) -> bool:
    """One look, and its loads."""
    return await (await world.control._watch.look())


def test_what_changes_on_disk_is_loaded_and_what_is_gone_unloaded(repository: Path) -> None:
    async def scenario(world: World) -> None:
        world.disk.write("a")
        world.disk.write("b")
        loading = asyncio.ensure_future(world.control.load_all())
        await polled(world, a=None, b=invalid("broken"))
        assert await in_time(loading) is False
        await world.clock.tick()
        await polled(world, b=invalid("broken"))  # what has failed is tried again, what serves is left alone
        await world.clock.tick()
        world.disk.write("c")
        await polled(world, b=None, c=None)
        shutil.rmtree(repository / "a")
        world.disk.touch("c")
        await world.clock.tick()
        await polled(world, c=None)
        await until(lambda: states(world.registry, "a") == {1: ("UNAVAILABLE", "unloaded")})
        assert states(world.registry, "b") == states(world.registry, "c") == {1: ("READY", "")}
        assert "polling is enabled" in (await refused(world.control.load("c"))).message

    run(repository, scenario, control_mode=POLL)


def test_what_fails_and_stays_as_it_is_is_tried_less_and_less(repository: Path) -> None:
    async def scenario(world: World) -> None:
        world.disk.write("a")
        loading = asyncio.ensure_future(world.control.load_all())
        await polled(world, a=None)
        await in_time(loading)
        world.disk.touch("a")
        tries = []
        for number in range(1, 13):
            looks = asyncio.ensure_future(look(world))
            start = asyncio.ensure_future(world.starter.next())
            await asyncio.wait({looks, start}, return_when=asyncio.FIRST_COMPLETED)
            if start.done():
                tries.append(number)
                start.result().fail(invalid("broken"))
            else:
                start.cancel()
            assert await in_time(looks) is False
        assert tries == [1, 2, 3, 5, 8]
        assert "broken" in world.registry.models["a"].on_disk
        world.disk.touch("a")
        looks = asyncio.ensure_future(look(world))
        await polled(world, a=None)
        assert await in_time(looks) is True
        assert world.registry.models["a"].on_disk == ""

    run(repository, scenario, control_mode=POLL)


def test_the_log_has_a_mistake_once_until_files_change(repository: Path) -> None:
    async def scenario(world: World) -> None:
        world.disk.write("a")
        loading = asyncio.ensure_future(world.control.load_all())
        await polled(world, a=None)
        await in_time(loading)
        config = repository / "a" / "config.pbtxt"
        config.write_text("max_batch_size: [")
        with log_lines() as lines:
            for _ in range(4):
                await in_time(look(world))
            assert [line.partition(":")[0] for line in lines] == [
                "Poll failed for model directory 'a'",
                "model 'a' could not be loaded again",
            ]
            config.write_text("max_batch_size: [ # saved once more")
            for _ in range(2):
                await in_time(look(world))
            assert len(lines) == 4
        assert "max_batch_size" in world.registry.models["a"].on_disk
        # Of a model that never served, from its first try on
        world.disk.write("b")
        (repository / "b" / "config.pbtxt").write_text("max_batch_size: [")
        with log_lines() as lines:
            for _ in range(3):
                await in_time(look(world))
        assert [line.partition(":")[0] for line in lines] == ["Poll failed for model directory 'b'"]

    run(repository, scenario, control_mode=POLL, poll_secs=0)


def test_polling_survives_what_it_cannot_read(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Any) -> None:
        raise RuntimeError("what")

    async def scenario(world: World) -> None:
        assert await in_time(world.control.load_all()) is True
        with log_lines() as lines:
            world.disk.take_away()
            await world.clock.tick()
            await until(lambda: any("failed to open directory" in line for line in lines))
            world.disk.bring_back()
            with monkeypatch.context() as patch:
                patch.setattr(world.control._watch, "_look_at_all", lambda: broken(None))
                await world.clock.tick()
                await until(lambda: "cannot look for changes: unexpected error: RuntimeError('what')" in lines)
        world.disk.write("a")
        await world.clock.tick()
        await polled(world, a=None)
        await until(lambda: states(world.registry, "a") == {1: ("READY", "")})

    run(repository, scenario, control_mode=POLL)


def test_a_server_that_stops_does_not_wait_for_a_look(repository: Path) -> None:
    async def scenario(world: World) -> None:
        await in_time(world.control.load_all())
        world.disk.write("a")
        await world.clock.tick()
        start = await world.starter.next()
        await in_time(world.control.stop(30.0))
        assert start.outcome.cancelled()

    run(repository, scenario, control_mode=POLL)


def test_one_look_only(repository: Path) -> None:
    async def scenario(world: World) -> None:
        assert await in_time(world.control.load_all()) is True
        await asyncio.sleep(0)
        assert world.clock.asked.empty()

    run(repository, scenario, control_mode=POLL, poll_secs=0)
