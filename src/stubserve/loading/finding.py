"""Finds the files and configuration for a load: in the repositories, in the request, or in the serving model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from stubserve.errors import ServeError
from stubserve.loading.changes import Turn
from stubserve.parts import require
from stubserve.repository.candidate import Candidate, copy_candidate, find_candidate, make_candidate, read_candidate
from stubserve.repository.contents import contents_of
from stubserve.repository.folder import CONFIG_FILE
from stubserve.repository.repositories import Repositories
from stubserve.settings.groups import RepositorySettings

if TYPE_CHECKING:
    from stubserve.repository.agents.chain import Agents

# Looks for a model by its key, in a thread. Raises ServeError.
Look = Callable[[str], Candidate]


class Finder:
    """Makes candidates. `served` returns the candidate that a model serves from, None if it does not serve."""

    def __init__(
        self, settings: RepositorySettings, repositories: Repositories, served: Callable[[str], Candidate | None]
    ) -> None:
        self._settings = settings
        self._repositories = repositories
        self._served = served
        self._agents: Agents | None = None

    async def find(self, name: str, look: Look, goes_on: Callable[[Candidate], bool]) -> Candidate | None:
        """The candidate of a load, as the model's repository agents want it. Raises ServeError.

        None if the serving candidate `goes_on` as it is, so that agents need not be called.
        """
        finding = asyncio.ensure_future(self._repositories.run_in_thread(partial(look, name)))
        try:
            candidate = await asyncio.shield(finding)
            if candidate.config.model_repository_agents.agents:
                return None if goes_on(candidate) else await self._ask_agents(candidate)
        except asyncio.CancelledError:
            # The thread goes on, and may make a folder.
            finding.add_done_callback(_discard)
            raise
        return candidate

    def look_for(self, config: str | None, files: Mapping[str, bytes]) -> Look:
        """A look for a request to load: with the request's configuration (JSON), or with its files."""
        if files:
            return lambda name: make_candidate(name, self._settings, config, files)
        return lambda name: find_candidate(
            self._repositories.locate(name, fresh=True), self._settings, config, self._served(name)
        )

    async def outdates(self, name: str, wanted: tuple[str | None, Mapping[str, bytes]], turn: Turn) -> bool:
        """Whether a load that is `wanted` now, with a configuration and files, finds others than one under way has."""
        if turn.candidate is None or turn.wanted != wanted:
            return turn.candidate is not None
        found = turn.candidate.asked or turn.candidate

        def look() -> bool:
            folder = self._repositories.locate(name, fresh=True)
            return (folder.path, contents_of(folder.path)) != (found.folder.path, found.contents)

        try:
            return not found.made and await self._repositories.run_in_thread(look)
        except ServeError:
            return False  # the load that asks is going to fail

    def find_again(self, name: str) -> Candidate:
        """A look because of another model: the configuration and files of the model's own load still count."""
        served = self._served(name)
        if served is not None and served.made:
            return copy_candidate(served, self._settings)
        return find_candidate(self._repositories.locate(name), self._settings, None, served)

    async def explain(self, error: ServeError, name: str) -> str:
        """The log's text if there is no candidate: with the faulty lines of config.pbtxt."""
        from stubserve.model_config.reading import located  # not at the top: errors alone need it

        return await located(error, lambda: self._repositories.locate(name).path / CONFIG_FILE)

    async def close(self) -> None:
        if self._agents is not None:
            await asyncio.to_thread(self._agents.close)

    async def _ask_agents(self, candidate: Candidate) -> Candidate:
        if self._agents is None:
            require("agents")
            from stubserve.repository.agents.chain import Agents

            self._agents = Agents(self._settings)
        read = partial(
            read_candidate, settings=self._settings, override=candidate.override, contents=candidate.contents
        )
        agents = candidate.config.model_repository_agents.agents
        wanted, chain = await self._agents.load(candidate.folder, agents, read)
        return replace(wanted, agents=chain, asked=candidate)


def _discard(found: asyncio.Future[Candidate]) -> None:
    if not found.cancelled() and found.exception() is None:
        found.result().remove()
