"""Versions of a model that take over from what serves, in every order of success, failure and cancellation."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from stubserve.errors import ServeError, invalid
from stubserve.loading.changeover import Changeover
from stubserve.repository.candidate import Candidate
from stubserve.repository.registry import Registry
from tests.loading.fakes import Disk, FakeModel, FakeStarter, in_time, log_lines, services, states, until

READY = ("READY", "")
UNLOADED = ("UNAVAILABLE", "unloaded")
BROKEN = ("UNAVAILABLE", "Invalid argument: broken")


class World:
    """A changeover of fake models, and the disk that they come from."""

    def __init__(self, repository: Path, slots: int = 9, retries: int = 0) -> None:
        self.disk = Disk(repository)
        self.registry = Registry()
        self.starter = FakeStarter()
        self.changeover = Changeover(self.starter, self.registry, asyncio.Semaphore(slots), 5.0, retries)

    def begin(self, candidate: Candidate | None = None) -> asyncio.Task[Sequence[asyncio.Task[None]]]:
        candidate = candidate or self.disk.candidate()
        return asyncio.ensure_future(self.changeover.replace(candidate, services(self.registry)))

    async def load(self, *versions: int, **more: object) -> dict[int, FakeModel]:
        """Loads these versions of the model `m`, all of which start."""
        self.disk.write(versions=versions, **more)  # type: ignore[arg-type]
        load = self.begin()
        models = {version: start.succeed() for version, start in (await self.starter.several(len(versions))).items()}
        await in_time(load)
        return models

    async def refused(self, load: asyncio.Task[Sequence[asyncio.Task[None]]]) -> str:
        with pytest.raises(ServeError) as caught:
            await in_time(load)
        return caught.value.message


def run(repository: Path, scenario: Callable[[World], Awaitable[None]], slots: int = 9, retries: int = 0) -> None:
    async def whole() -> None:
        await scenario(World(repository, slots, retries))

    asyncio.run(whole())


def test_versions_take_over_in_one_step(repository: Path) -> None:
    async def scenario(world: World) -> None:
        world.disk.write(versions=(1, 2))
        load = world.begin()
        starts = await world.starter.several(2)
        assert states(world.registry) == {1: ("LOADING", ""), 2: ("LOADING", "")}
        starts[2].succeed()
        await asyncio.sleep(0)
        assert not world.registry.serves("m", 2)
        starts[1].succeed()
        assert await in_time(load) == []
        assert states(world.registry) == {1: READY, 2: READY}

    run(repository, scenario)


@pytest.mark.parametrize("order", list(itertools.permutations((1, 2, 3))))
@pytest.mark.parametrize("good", list(itertools.product((True, False), repeat=3)))
def test_all_or_none(repository: Path, order: tuple[int, ...], good: tuple[bool, ...]) -> None:
    async def scenario(world: World) -> None:
        world.disk.write(versions=(1, 2, 3))
        load = world.begin()
        starts = await world.starter.several(3)
        models = []
        for version in order:
            if good[version - 1]:
                models.append(starts[version].succeed())
            else:
                starts[version].fail(invalid("broken"))
            await asyncio.sleep(0)
        if all(good):
            await in_time(load)
            assert states(world.registry) == {1: READY, 2: READY, 3: READY}
            return
        expected = "".join(
            f"version {version} is at UNAVAILABLE state: Invalid argument: broken;"
            for version in (1, 2, 3)
            if not good[version - 1]
        )
        assert await world.refused(load) == f"load failed for model 'm': {expected}\n"
        await until(lambda: all(model.stopped_within == [5.0] for model in models))
        outcome = {version: UNLOADED if good[version - 1] else BROKEN for version in (1, 2, 3)}
        await until(lambda: states(world.registry) == outcome)

    run(repository, scenario)


def test_what_is_replaced_goes_when_it_is_idle(repository: Path) -> None:
    async def scenario(world: World) -> None:
        old = await world.load(1, 2)
        old[1].idle.clear()
        (repository / "m" / "2").rmdir()
        world.disk.touch()
        load = world.begin()
        new = (await world.starter.next()).succeed()
        await in_time(load)
        assert world.registry.find("m", "") is new
        await until(lambda: old[2].stopped_within == [5.0])
        assert states(world.registry) == {1: READY, 2: ("UNLOADING", "")}
        old[1].idle.set()
        await until(lambda: states(world.registry) == {1: READY, 2: UNLOADED})
        assert (old[1].stopped_within, new.stopped_within) == ([5.0], [])
        # The next load finds that the folder is gone.
        world.disk.touch()
        load = world.begin()
        (await world.starter.next()).succeed()
        await in_time(load)
        assert states(world.registry) == {1: READY}

    run(repository, scenario)


def test_a_reload_that_fails_leaves_what_serves(repository: Path) -> None:
    async def scenario(world: World) -> None:
        old = await world.load(1)
        world.disk.write(versions=(1, 2))
        world.disk.touch()
        load = world.begin()
        starts = await world.starter.several(2)
        new = starts[1].succeed()
        starts[2].fail(invalid("broken"))
        await world.refused(load)
        await until(lambda: new.stopped_within == [5.0])
        assert (world.registry.find("m", ""), old[1].stopped_within) == (old[1], [])
        assert states(world.registry) == {1: READY, 2: BROKEN}
        # What failed once is only unloaded when a later load leaves it out.
        world.disk.write(policy="specific { versions: [ 1 ] }")
        load = world.begin()
        (await world.starter.next()).succeed()
        await in_time(load)
        assert states(world.registry) == {1: READY, 2: UNLOADED}

    run(repository, scenario)


def test_an_error_that_nobody_expects_is_one_of_the_load(repository: Path) -> None:
    async def scenario(world: World) -> None:
        world.disk.write()
        load = world.begin()
        with log_lines() as lines:
            (await world.starter.next()).fail(KeyError("what"))
            text = await world.refused(load)
        assert text.endswith("state: Internal: unexpected error: KeyError('what');\n")
        assert "unexpected error while models were loaded or unloaded" in lines
        assert states(world.registry) == {1: ("UNAVAILABLE", "Internal: unexpected error: KeyError('what')")}

    run(repository, scenario)


def test_a_load_that_is_given_up(repository: Path) -> None:
    async def scenario(world: World) -> None:
        old = await world.load(1)
        world.disk.write(versions=(1, 2, 3))
        world.disk.touch()
        load = world.begin()
        starts = await world.starter.several(3)
        started = starts[1].succeed()
        starts[3].fail(invalid("broken"))
        await asyncio.sleep(0)
        load.cancel()
        with pytest.raises(asyncio.CancelledError):
            await in_time(load)
        assert starts[2].outcome.cancelled()
        await until(lambda: started.stopped_within == [5.0])
        assert world.registry.find("m", "") is old[1]
        assert states(world.registry) == {1: READY, 2: ("UNAVAILABLE", "the load was given up"), 3: BROKEN}

    run(repository, scenario)


@pytest.mark.parametrize("how", ["fails", "cancelled", "no versions", "cancelled at once"])
def test_the_folder_that_was_made_for_a_load_goes_with_it(repository: Path, how: str) -> None:
    async def scenario(world: World) -> None:
        world.disk.write(versions=() if how == "no versions" else (1, 2))
        made = replace(world.disk.candidate(), contents=None)
        load = world.begin(made)
        if how == "cancelled at once":
            await asyncio.sleep(0)
            load.cancel()
            await asyncio.wait([load])
        elif how == "no versions":
            assert "at least one version must be available" in await world.refused(load)
        else:
            starts = await world.starter.several(2)
            started = starts[1].succeed()
            if how == "fails":
                starts[2].fail(invalid("broken"))
                await world.refused(load)
            else:
                await asyncio.sleep(0)
                load.cancel()
                await asyncio.wait([load])
            await until(lambda: started.stopped_within == [5.0])
        await until(lambda: not made.folder.path.exists())
        assert states(world.registry) == {}

    run(repository, scenario)


def test_without_versions_what_serves_goes_on(repository: Path) -> None:
    async def scenario(world: World) -> None:
        old = await world.load(1)
        (repository / "m" / "1").rmdir()
        text = await world.refused(world.begin())
        assert text == (
            "load failed for model 'm': at least one version must be available under the version policy of model 'm'\n"
        )
        assert world.registry.find("m", "") is old[1]
        assert world.registry.entry("m").reason.startswith("at least one version")

    run(repository, scenario)


# Versions that stay


def test_other_instances_leave_the_version_in_its_place(repository: Path) -> None:
    async def scenario(world: World) -> None:
        old = await world.load(1, 2)
        gone = asyncio.ensure_future(asyncio.Event().wait())
        old[2].surplus = [gone]  # type: ignore[list-item]
        world.disk.write(versions=(1, 2, 3), count=2)
        load = world.begin()
        starts = await world.starter.several(3)
        assert [starts[version].model for version in (1, 2, 3)] == [old[1], old[2], None]
        new = starts[3].succeed()
        starts[1].succeed()
        await asyncio.sleep(0)
        assert old[1].configs == []  # not before all are ready
        starts[2].succeed()
        assert await in_time(load) == [gone]
        gone.cancel()
        assert [len(model.configs) for model in old.values()] == [1, 1]
        assert [world.registry.find("m", str(version)) for version in (1, 2, 3)] == [old[1], old[2], new]
        assert [model.stopped_within for model in (*old.values(), new)] == [[], [], []]

    run(repository, scenario)


@pytest.mark.parametrize("failing", [1, 2, 3])
@pytest.mark.parametrize("last", [True, False])
def test_an_update_that_fails_changes_nothing(repository: Path, failing: int, last: bool) -> None:
    async def scenario(world: World) -> None:
        old = await world.load(1, 2)
        world.disk.write(versions=(1, 2, 3), count=2)
        load = world.begin()
        starts = await world.starter.several(3)
        new: list[FakeModel] = []
        for version in sorted((1, 2, 3), key=lambda one: (one == failing) == last):
            if version == failing:
                starts[version].fail(invalid("broken"))
            else:
                new.append(starts[version].succeed())
            await asyncio.sleep(0)
        state = "READY" if failing < 3 else "UNAVAILABLE"
        assert f"version {failing} is at {state} state: Invalid argument: broken;" in await world.refused(load)
        for version, model in old.items():
            assert (model.configs, len(model.retired)) == ([], int(version != failing))
            assert world.registry.find("m", str(version)) is model
            assert states(world.registry)[version] == ("READY", BROKEN[1] if version == failing else "")
        if failing != 3:
            (started,) = set(new) - set(old.values())
            await until(lambda: started.stopped_within == [5.0])

    run(repository, scenario)


def test_an_update_that_cannot_be_carried_out_keeps_nobody_waiting(repository: Path) -> None:
    async def scenario(world: World) -> None:
        old = await world.load(1, 2)
        old[1].change_error = RuntimeError("what")
        world.disk.write(versions=(1, 2), count=2)
        load = world.begin()
        for start in (await world.starter.several(2)).values():
            start.succeed()
        with log_lines() as lines:
            assert await in_time(load) == []
        assert "unexpected error while version 1 got other instances" in lines
        assert (len(old[2].configs), states(world.registry)) == (1, {1: READY, 2: READY})

    run(repository, scenario)


def test_a_load_of_what_has_not_changed_does_nothing(repository: Path) -> None:
    async def scenario(world: World) -> None:
        old = await world.load(1)
        world.registry.entry("m").reason = "an earlier load has failed"
        assert not await in_time(world.begin())
        assert world.starter.waiting == 0
        assert world.registry.find("m", "1") is old[1]
        assert not world.registry.entry("m").reason

    run(repository, scenario)


def test_what_is_down_is_loaded_though_nothing_has_changed(repository: Path) -> None:
    async def scenario(world: World) -> None:
        old = await world.load(1)
        old[1].is_down = True
        load = world.begin()
        start = await world.starter.next()
        assert start.model is None
        new = start.succeed()
        await in_time(load)
        assert world.registry.find("m", "1") is new

    run(repository, scenario)


def test_a_version_that_fails_is_tried_again(repository: Path) -> None:
    async def scenario(world: World) -> None:
        world.disk.write()
        load = world.begin()
        for _ in range(2):
            (await world.starter.next()).fail(invalid("not yet"))
        model = (await world.starter.next()).succeed()
        await in_time(load)
        assert world.registry.find("m", "1") is model
        world.disk.write(count=2)
        load = world.begin(world.disk.candidate(override='{"backend": "python", "max_batch_size": 3}'))
        for _ in range(3):
            (await world.starter.next()).fail(invalid("never"))
        assert "never" in await world.refused(load)

    run(repository, scenario, retries=2)


# Places, and the end


def test_no_more_start_at_a_time_than_there_are_places(repository: Path) -> None:
    async def scenario(world: World) -> None:
        world.disk.write(versions=(1, 2))
        load = world.begin()
        first = await world.starter.next()
        await asyncio.sleep(0)
        assert world.starter.waiting == 0
        first.fail(invalid("broken"))
        (await world.starter.next()).succeed()
        await world.refused(load)

    run(repository, scenario, slots=1)


def test_the_end_of_one_and_of_all(repository: Path) -> None:
    async def scenario(world: World) -> None:
        models = await world.load(1, 2)
        models[1].idle.clear()
        world.changeover.retire("m")
        world.changeover.retire("m")
        world.changeover.retire("nosuch")
        assert states(world.registry) == {1: ("UNLOADING", ""), 2: ("UNLOADING", "")}
        again = await world.load(1, 2)
        ending = asyncio.ensure_future(world.changeover.retire_all(30.0))
        await until(lambda: again[1].stopped_within == [5.0])
        assert not ending.done()
        models[1].idle.set()
        await in_time(ending)
        assert [model.stopped_within for model in models.values()] == [[5.0], [5.0]]

    run(repository, scenario)
