"""A worker knows the regions that there are, however late and in whatever order it hears of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable

import pytest

from stubserve.errors import ServeError
from stubserve.ingress.region_news import RegionNews
from stubserve.ingress.regions import RemoteRegions
from stubserve.ingress.words import REGIONS
from stubserve.protocols.client_regions import ClientRegions
from tests.client_memory import SharedFile

MANY = 2000


class Pair:
    """Owner and worker, which hears nothing before `hears`."""

    def __init__(self, regions: ClientRegions) -> None:
        self.words = [0] * 32
        ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.news = RegionNews(ours, self.words, regions)

    async def hears(self) -> RemoteRegions:
        """The worker's regions when it has heard of all changes."""
        remote = RemoteRegions(self._theirs, self.words)
        while remote._heard != self.words[REGIONS]:  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.001)
        asyncio.get_running_loop().remove_reader(self._theirs)
        return remote

    def close(self) -> None:
        self.news.close()
        self._theirs.close()


def open_files() -> list[str]:
    found = []
    for one in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the list itself is closed
            found.append(os.readlink(f"/proc/self/fd/{one}"))
    return found


def run(act: Callable[[ClientRegions, SharedFile], Awaitable[None]]) -> None:
    async def whole() -> None:
        with SharedFile(b"what is in it...") as file:
            await act(ClientRegions(), file)

    asyncio.run(whole())


def test_one_that_starts_hears_of_all_that_are_there() -> None:
    async def act(regions: ClientRegions, file: SharedFile) -> None:
        regions.register("one", file.key, 0, 16)
        regions.register("other", file.key, 5, 7)
        pair = Pair(regions)
        remote = await pair.hears()
        assert bytes(remote.find("one", 0, 16).read()) == b"what is in it..."
        assert bytes(remote.find("other", 0, 7).read()) == b"is in i"
        place = remote.find("other", 1, 2)
        assert regions.piece(place.region.number, place.offset, place.nbytes).region is regions.named("other")
        pair.close()

    run(act)


def test_one_without_news_waits_for_nothing() -> None:
    async def act(regions: ClientRegions, file: SharedFile) -> None:
        pair = Pair(regions)
        with pytest.raises(ServeError, match="Unable to find shared memory region: 'one'"):
            (await pair.hears()).find("one", 0, 1)
        pair.close()

    run(act)


@pytest.mark.parametrize("names", [1, MANY])
def test_changes_that_it_does_not_hear_of_leave_nothing(names: int) -> None:
    """Neither descriptors nor memory, however many there are."""

    async def act(regions: ClientRegions, file: SharedFile) -> None:
        regions.register("there before", file.key, 0, 16)
        pair = Pair(regions)
        for number in range(MANY):
            name = f"region {number % names}"
            regions.register(name, file.key, 0, 16)
            regions.unregister(name)
        regions.unregister("there before")
        assert regions.rows() == []
        assert len(pair.news._due) <= 2
        regions.register("region 0", file.key, 0, 1)
        regions.register("last", file.key, 0, 2)
        remote = await pair.hears()
        assert sorted(remote._regions) == ["last", "region 0"]
        assert [remote.find(name, 0, 1).region.nbytes for name in ("last", "region 0")] == [2, 1]
        regions.unregister("")
        del remote
        pair.close()
        assert open_files().count(file.path) == 1

    run(act)


def test_the_same_name_stands_for_another_region() -> None:
    async def act(regions: ClientRegions, file: SharedFile) -> None:
        regions.register("one", file.key, 0, 16)
        pair = Pair(regions)
        regions.unregister("one")
        regions.register("one", file.key, 0, 3)
        remote = await pair.hears()
        assert remote.find("one", 0, 1).region.nbytes == 3
        pair.close()

    run(act)
