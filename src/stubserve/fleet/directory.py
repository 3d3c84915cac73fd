"""Which replicas there are, and what they have to load: the one actor that replicas and fronts ask.

Each replica announces itself once a second. One that has been silent for 5 s is not listed any more; a group without
replicas is known for two minutes, in which its requests are refused, and then no more.

A change is a load or an unload by request. A replica is listed only once it has made all changes, so a replica that
starts later has the same models as the others. One that has tried a change in vain tries it again and again. It is
listed where no other listed replica has made the change, so that a change which nobody can make any more does not
empty a group. The directory keeps nothing on a disk. When it dies, Ray starts it anew, and it learns replicas and
changes from the next announcements.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field, replace
from time import monotonic

_SILENT_S = 5.0
_GROUP_S = 120.0


@dataclass(frozen=True)
class ReplicaInfo:
    """A replica of a group of `models`, () for all. `id` is 32 random hexadecimal digits.

    A replica that is `leaving`, or that has an instance that cannot recover, gets only requests of the sequences that
    it has.
    """

    id: str
    group: str
    models: tuple[str, ...]
    host: str
    http_port: int
    grpc_port: int
    metrics_port: int
    leaving: bool = False
    sequences: int = 0  # for how many seconds a sequence of its models may be idle; 0 without sequences

    @property
    def number(self) -> int:
        """The beginning of `id`, for names and for HAProxy, whose numbers have 31 bits and are not 0."""
        return int(self.id[:8], 16) >> 1 or 1


@dataclass(frozen=True)
class Front:
    """A front, and the port at which it tells the others which sequence is where."""

    id: str
    host: str
    peer_port: int


@dataclass(frozen=True)
class Fleet:
    """All replicas that answer and all fronts, by id, and the models that each group names, () for all."""

    version: int
    replicas: list[ReplicaInfo]
    fronts: list[Front]
    groups: dict[str, tuple[str, ...]]

    def group_of(self, model: str) -> str:
        """The group that serves a model: that which names it, else that of all models; "" if there is none."""
        named = [group for group, models in self.groups.items() if model in models]
        return next(iter(named), next((group for group, models in self.groups.items() if not models), ""))

    def replicas_for(self, model: str) -> list[ReplicaInfo]:
        """The replicas that serve a model; all of them for ""."""
        return [replica for replica in self.replicas if not model or replica.group == self.group_of(model)]


@dataclass(frozen=True)
class Change:
    """A load, an unload or a setting by request: the `path` and `body` of it, and the replicas that have made it.

    A later change of the same thing (`what`: a model, or settings) makes an earlier one of no interest. `path` is that
    of HTTP, or of a gRPC method. `group` is the one that it concerns; all groups if it is empty.
    """

    number: int
    group: str
    what: str
    path: str
    body: bytes
    made_by: frozenset[str] = field(default_factory=frozenset)

    @property
    def is_load_or_unload(self) -> bool:
        """Whether the change is a load or an unload."""
        return self.what.startswith("model ")


@dataclass(frozen=True)
class AnnounceReply:
    """The directory's answer to an announcement: the number of the `last` change, and `changes`."""

    last: int
    changes: list[Change]


class Directory:
    """Lives on the event loop of its actor; no method awaits between reading and writing its state."""

    def __init__(self) -> None:
        self._replicas: dict[str, ReplicaInfo] = {}
        self._fronts: dict[str, Front] = {}
        self._groups: dict[str, tuple[str, ...]] = {}
        self._heard: dict[str, float] = {}
        self._group_heard: dict[str, float] = {}
        self._changes: dict[str, Change] = {}  # the last one of each `what`
        self._last = 0
        self._version = 0
        self._news = asyncio.Condition()

    async def announce(
        self, replica: ReplicaInfo, known: int, listed: bool, failed: frozenset[int] = frozenset()
    ) -> AnnounceReply:
        """A replica is there. `known` is the last change that it knows of; `listed`: it has tried all of these.

        Those that it has `failed` to make have these numbers. The answer has the later changes, and those that failed;
        where `last` is less than `known`, the directory is new and wants `restore`.
        """
        mine = [change for change in self._changes.values() if change.group in ("", replica.group)]
        for change in mine:
            if change.number <= known and change.number not in failed and replica.id not in change.made_by:
                self._changes[change.what] = replace(change, made_by=change.made_by | {replica.id})
        later = [change for change in mine if change.number > known]
        again = [change for change in mine if change.number in failed]
        self._heard[replica.id] = self._group_heard[replica.group] = monotonic()
        others = {one.id for one in self._replicas.values() if not one.leaving} - {replica.id}
        lacks = any(change.made_by & others for change in again if change.is_load_or_unload)
        if replica.id in self._replicas or (listed and not later and not lacks):
            await self._list(replica)
        return AnnounceReply(self._last, sorted(later + again, key=lambda change: change.number))

    async def restore(self, last: int, changes: list[Change]) -> None:
        """What a replica knows of changes, for a directory that is new."""
        self._last = max(self._last, last)
        for change in changes:
            kept = self._changes.get(change.what)
            if kept is None or kept.number < change.number:
                self._changes[change.what] = change

    async def gone(self, id: str) -> None:
        """A replica, or a front, answers no more."""
        self._heard.pop(id, None)
        if self._replicas.pop(id, None) or self._fronts.pop(id, None):
            await self._tell()

    async def changed(self, change: Change) -> None:
        """A change was made by request; its number is given here."""
        self._last += 1
        self._changes[change.what] = replace(change, number=self._last)

    async def fleet(self, front: Front, version: int, timeout_s: float = 1.0) -> Fleet:
        """What there is, once it is other than at `version` or after `timeout_s`. The front that asks is there, too."""
        await self._drop_silent()
        self._heard[front.id] = monotonic()
        if self._fronts.get(front.id) != front:
            self._fronts[front.id] = front
            await self._tell()
        async with self._news:
            if version == self._version:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._news.wait(), timeout_s)
        replicas = sorted(self._replicas.values(), key=lambda replica: replica.id)
        fronts = sorted(self._fronts.values(), key=lambda other: other.id)
        return Fleet(self._version, replicas, fronts, dict(sorted(self._groups.items())))

    async def _list(self, replica: ReplicaInfo) -> None:
        if self._replicas.get(replica.id) != replica or self._groups.get(replica.group) != replica.models:
            self._replicas[replica.id] = replica
            self._groups[replica.group] = replica.models
            await self._tell()

    async def _drop_silent(self) -> None:
        now = monotonic()
        for id in [id for id, heard in self._heard.items() if now - heard > _SILENT_S]:
            await self.gone(id)
        for group in [group for group, heard in self._group_heard.items() if now - heard > _GROUP_S]:
            del self._group_heard[group]
            if self._groups.pop(group, None) is not None:
                await self._tell()

    async def _tell(self) -> None:
        self._version += 1
        async with self._news:
            self._news.notify_all()
