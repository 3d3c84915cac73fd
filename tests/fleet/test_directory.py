"""The directory of a fleet: who is listed, and what a replica has to do before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from stubserve.fleet import directory as directories
from stubserve.fleet.directory import Change, Directory, Fleet, Front, ReplicaInfo

FRONT = Front("f", "127.0.0.1", 1)
LOAD = Change(0, "all", "model m", "/v2/repository/models/m/load", b"{}")


def replica(id: str, group: str = "all", models: tuple[str, ...] = ()) -> ReplicaInfo:
    return ReplicaInfo(id, group, models, "127.0.0.1", 1, 2, 3)


async def join(directory: Directory, one: ReplicaInfo) -> ReplicaInfo:
    """As a replica does: it announces itself until it knows no more than before."""
    told = await directory.announce(one, 0, False)
    assert not (await directory.announce(one, told.last, True)).changes
    return one


async def listed(directory: Directory) -> list[str]:
    fleet = await directory.fleet(FRONT, -1)
    return [one.id for one in fleet.replicas]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = [100.0]
    monkeypatch.setattr(directories, "monotonic", lambda: now[0])

    def forward(seconds: float) -> None:
        now[0] += seconds

    return forward


def test_a_replica_is_listed_once_it_has_made_all_changes() -> None:
    async def run() -> None:
        directory = Directory()
        first = await join(directory, replica("a"))
        await directory.changed(replace(LOAD, made_by=frozenset({"a"})))
        later = replica("b")
        told = await directory.announce(later, 0, False)
        assert [change.path for change in told.changes] == [LOAD.path]
        assert "b" not in told.changes[0].made_by
        assert await listed(directory) == ["a"]
        # It says that it knows of none, as if it had not made it.
        await directory.announce(later, 0, True)
        assert await listed(directory) == ["a"]
        await directory.announce(later, told.last, True)
        assert await listed(directory) == ["a", "b"]
        # The one that has made it is told of it once, for a directory that comes after this one.
        assert [change.made_by for change in (await directory.announce(first, 0, True)).changes] == [{"a", "b"}]

    asyncio.run(run())


def test_a_replica_that_cannot_make_a_change_is_listed_where_no_other_has_made_it() -> None:
    async def run() -> None:
        directory = Directory()
        first = await join(directory, replica("a"))
        await directory.changed(replace(LOAD, made_by=frozenset({"a"})))
        await directory.announce(first, 1, True)
        later, failed = replica("b"), frozenset({1})
        # It is told of the change until it has made it.
        assert [change.number for change in (await directory.announce(later, 1, True, failed)).changes] == [1]
        assert await listed(directory) == ["a"]
        await directory.announce(later, 1, True)
        assert await listed(directory) == ["a", "b"]
        # A listed one stays, and others know from it that the change can be made.
        leaves = replace(later, leaving=True)
        await directory.announce(replace(first, leaving=True), 1, True, failed)
        third = replica("c")
        await directory.announce(third, 1, True, failed)
        assert await listed(directory) == ["a", "b"]
        await directory.announce(leaves, 1, True)
        await directory.announce(third, 1, True, failed)
        assert await listed(directory) == ["a", "b", "c"]
        # Settings keep nobody out.
        await directory.changed(Change(0, "", "/v2/logging", "/v2/logging", b"{}", frozenset({"c"})))
        await directory.announce(replica("d"), 2, True, frozenset({2}))
        assert await listed(directory) == ["a", "b", "c", "d"]

    asyncio.run(run())


def test_changes_are_of_a_group_and_the_last_counts() -> None:
    async def run() -> None:
        directory = Directory()
        await directory.changed(LOAD)
        await directory.changed(replace(LOAD, path="/v2/repository/models/m/unload"))
        await directory.changed(Change(0, "", "/v2/logging", "/v2/logging", b"{}"))
        told = await directory.announce(replica("a"), 0, False)
        assert [change.path for change in told.changes] == ["/v2/repository/models/m/unload", "/v2/logging"]
        other = await directory.announce(replica("b", "other"), 0, False)
        assert [change.path for change in other.changes] == ["/v2/logging"]

    asyncio.run(run())


def test_a_new_directory_learns_from_announcements() -> None:
    async def run() -> None:
        old = Directory()
        first = await join(old, replica("a"))
        await old.changed(replace(LOAD, made_by=frozenset({"a"})))
        changes = (await old.announce(first, 0, True)).changes
        new = Directory()
        told = await new.announce(first, 1, True)
        assert (told.last, told.changes) == (0, [])
        await new.restore(1, changes)
        assert await listed(new) == ["a"]
        later = await new.announce(replica("b"), 0, False)
        assert (later.last, later.changes) == (1, changes)

    asyncio.run(run())


def test_a_silent_replica_and_a_silent_group(clock: Callable[[float], None]) -> None:
    async def run() -> None:
        directory = Directory()
        one = await join(directory, replica("a", "g", ("m",)))
        await join(directory, replica("b"))
        clock(4)
        await directory.announce(one, 0, True)
        clock(4)
        assert await listed(directory) == ["a"]
        clock(4)
        fleet = await directory.fleet(FRONT, -1)
        # Its requests are refused, and do not go to the group of all models.
        assert (fleet.replicas, fleet.groups, fleet.group_of("m")) == ([], {"all": (), "g": ("m",)}, "g")
        clock(110)
        assert (await directory.fleet(FRONT, -1)).groups == {"g": ("m",)}
        clock(10)
        assert (await directory.fleet(FRONT, -1)).groups == {}

    asyncio.run(run())


def test_a_front_waits_for_news() -> None:
    async def run() -> None:
        directory = Directory()
        version = (await directory.fleet(FRONT, -1)).version
        asked = asyncio.create_task(directory.fleet(FRONT, version, timeout_s=60))
        await asyncio.sleep(0)
        assert not asked.done()
        one = await join(directory, replica("a"))
        news = await asked
        assert news.replicas == [one]
        await directory.gone("a")
        await directory.gone("a")
        assert (await directory.fleet(FRONT, news.version)).replicas == []

    asyncio.run(run())


def test_which_replicas_serve_a_model() -> None:
    one, two, rest = replica("1", "g", ("m",)), replica("2", "g", ("m",)), replica("3", "rest")
    fleet = Fleet(1, [one, two, rest], [], {"g": ("m",), "rest": ()})
    assert fleet.replicas_for("m") == [one, two]
    assert fleet.replicas_for("other") == [rest]
    assert fleet.replicas_for("") == [one, two, rest]
    alone = Fleet(1, [one], [], {"g": ("m",)})
    assert (alone.group_of("other"), alone.replicas_for("other")) == ("", [])
