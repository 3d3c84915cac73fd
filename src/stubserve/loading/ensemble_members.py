"""The needs of an ensemble before it can be loaded: members that are loaded, and that do not need it themselves.

With explicit control a load brings the members that are missing. What the members must be like is `ensemble_loading`'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from stubserve.errors import ServeError, invalid
from stubserve.loading.dependencies import DiskDependencies, circle, members_of
from stubserve.loading.ensemble_loading import check_members
from stubserve.loading.turns import Turn
from stubserve.repository.candidate import Candidate
from stubserve.repository.registry import Registry
from stubserve.repository.repositories import Repositories

log = logging.getLogger("stubserve.repository")


class EnsembleMembers:
    """The members of all ensembles. `load` loads one, in the turn of its ensemble; None where no load may bring any."""

    def __init__(
        self,
        registry: Registry,
        repositories: Repositories,
        disk: DiskDependencies,
        load: Callable[[str, Turn], Awaitable[None]] | None,
    ) -> None:
        self._registry = registry
        self._repositories = repositories
        self._disk = disk
        self._load = load

    async def prepare(self, candidate: Candidate, turn: Turn) -> None:
        """Sees to it that an ensemble can be loaded; does nothing for any other model.

        Raises ServeError with upstream's texts; then the candidate is removed, and the registry knows why.
        """
        members = members_of(candidate.config)
        if not members:
            return
        try:
            await self._prepare(candidate, members, turn)
        except BaseException as raised:
            await asyncio.to_thread(candidate.remove)
            if not isinstance(raised, ServeError):
                raise
            name = candidate.folder.key
            log.error("failed to load '%s': %s", name, raised)
            if not candidate.made:
                self._registry.entry(name).reason = raised.message
            raise invalid(f"load failed for model '{name}': {raised}\n") from None

    async def _prepare(self, candidate: Candidate, names: tuple[str, ...], turn: Turn) -> None:
        name, namespace = candidate.folder.key, candidate.folder.namespace
        members = await self._repositories.aside(partial(self._disk.keys, names, namespace))
        missing = [member for member in members if not self._registry.ready_versions(member)]
        absent = await self._repositories.aside(partial(self._repositories.absent, missing))
        if absent:
            raise invalid(f"ensemble {name} contains models that are not available or ambiguous: {', '.join(absent)}")
        closed = await self._repositories.aside(partial(circle, name, members, self._disk.members))
        if closed is not None:
            raise closed
        if self._load is not None:
            # Why one cannot be loaded is in the registry, and told from there.
            await asyncio.gather(*(self._load(member, turn) for member in missing), return_exceptions=True)
        check_members(candidate.config, self._registry, namespace)
