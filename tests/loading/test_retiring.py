"""Models that go: when, in which order, and whatever goes wrong on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stubserve.loading.retiring import Loaded, Retiring
from stubserve.repository.registry import Registry, VersionEntry, VersionState
from tests.loading.fakes import Disk, FakeModel, in_time, log_lines, states, until

UNLOADED = ("UNAVAILABLE", "unloaded")


class World:
    """Two versions of a model that are about to go."""

    def __init__(self, repository: Path) -> None:
        disk = Disk(repository)
        disk.write(versions=(1, 2))
        self.registry = Registry()
        self.retiring = Retiring(self.registry, 5.0)
        self.models = [FakeModel(version=1), FakeModel(version=2)]
        self.loaded = Loaded(disk.candidate(), [*self.models])
        self.made = Loaded(replace(self.loaded.candidate, contents=None), [*self.models])

    def leaving(self) -> list[VersionEntry]:
        return [self.registry.set_version("m", version, VersionState.UNLOADING) for version in (1, 2)]


def run(repository: Path, scenario: Callable[[World], Awaitable[None]]) -> None:
    async def whole() -> None:
        await scenario(World(repository))

    asyncio.run(whole())


def test_each_ends_when_it_is_idle_and_the_entries_when_all_have(repository: Path) -> None:
    async def scenario(world: World) -> None:
        first, second = world.models
        first.idle.clear()
        world.retiring.begin(world.loaded, world.leaving())
        await until(lambda: second.stopped_within == [5.0])
        assert first.stopped_within == []
        assert states(world.registry) == {1: ("UNLOADING", ""), 2: ("UNLOADING", "")}
        first.idle.set()
        await in_time(world.retiring.drain(30.0))
        assert (first.stopped_within, states(world.registry)) == ([5.0], {1: UNLOADED, 2: UNLOADED})
        assert world.loaded.candidate.folder.path.exists()

    run(repository, scenario)


def test_a_model_that_hangs_is_ended_where_nobody_is_patient(repository: Path) -> None:
    async def scenario(world: World) -> None:
        first, second = world.models
        first.hangs = True
        world.retiring.begin(world.loaded, world.leaving(), patient=False)
        await in_time(world.retiring.drain(30.0))
        assert (first.patience_s, first.stopped_within) == (4.0, [1.0])
        assert (second.patience_s, second.stopped_within) == (4.0, [5.0])
        assert states(world.registry) == {1: UNLOADED, 2: UNLOADED}

    run(repository, scenario)


def test_of_what_was_made_of_files_nothing_is_left(repository: Path) -> None:
    async def scenario(world: World) -> None:
        world.retiring.begin(world.made, world.leaving())
        await in_time(world.retiring.drain(30.0))
        assert states(world.registry) == {}
        assert "m" not in world.registry.models
        assert not world.made.candidate.folder.path.exists()

    run(repository, scenario)


def test_an_entry_that_has_been_replaced_is_left_alone(repository: Path) -> None:
    async def scenario(world: World) -> None:
        world.retiring.begin(world.loaded, world.leaving())
        world.registry.set_version("m", 1, VersionState.LOADING)
        await in_time(world.retiring.drain(30.0))
        assert states(world.registry) == {1: ("LOADING", ""), 2: UNLOADED}

    run(repository, scenario)


@pytest.mark.parametrize("bad", [0, 1])
def test_a_model_that_cannot_be_ended_keeps_nothing_else_from_its_drain_and_stop(repository: Path, bad: int) -> None:
    async def scenario(world: World) -> None:
        world.models[bad].stop_error = OSError("what")
        with log_lines() as lines:
            world.retiring.begin(world.made, world.leaving())
            await in_time(world.retiring.drain(30.0))
        assert lines == [
            f"failed to end 'm' version {bad + 1}",
            f"successfully unloaded 'm' version {2 - bad}",
        ]
        assert [model.stopped_within for model in world.models] == [[5.0], [5.0]]
        assert states(world.registry) == {}
        assert not world.made.candidate.folder.path.exists()

    run(repository, scenario)


def test_who_is_late_is_hurried(repository: Path) -> None:
    async def scenario(world: World) -> None:
        for model in world.models:
            model.idle.clear()
        world.models[0].stop_error = OSError("what")
        world.retiring.begin(world.made)
        with log_lines() as lines:
            await in_time(world.retiring.drain(0.0))
        assert lines == ["Exit timeout expired. Exiting immediately.", "failed to end 'm' version 1"]
        assert [model.stopped_within for model in world.models] == [[1.0], [1.0]]
        assert not world.made.candidate.folder.path.exists()
        await in_time(world.retiring.drain(0.0))  # nobody is left

    run(repository, scenario)
