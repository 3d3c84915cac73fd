"""Ensembles need their members: before they are loaded, as they are started, and when a member has changed.

An ensemble has no processes and no memory, so loading it costs only the checks against its members. It is loaded after
its members (`rounds`), and checked against members that serve already. With explicit control a load brings missing
members. A model that depends on itself is refused (`circle`).

After each load and unload ensembles are settled. An ensemble that lacks a member is unloaded, and remembered; it comes
back when it has all members again. An ensemble with replaced members is checked and loaded again, and unloaded if that
fails. Each change may affect further ensembles, so settling repeats until nothing is left to do. It takes only the
turns of ensembles, one at a time, and no turn of its own, so no circle of waiting can arise.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial

from stubserve.errors import ServeError, invalid
from stubserve.loading.changes import Turn
from stubserve.model_config.complete import members_of
from stubserve.repository.candidate import Candidate
from stubserve.repository.folder import available_versions
from stubserve.repository.registry import UNLOADED, Registry, VersionState
from stubserve.repository.repositories import Repositories

log = logging.getLogger("stubserve.repository")

# The most rounds in which ensembles are settled because of each other
_ROUNDS = 100


def rounds(needs: Mapping[str, Collection[str]]) -> list[list[str]]:
    """The models in rounds. Each needs only models of earlier rounds, or models that are not among them.

    Models that need each other in a circle, and the models that need these, come last.
    """
    left = dict(needs)
    found = []
    while left:
        free = [name for name, members in left.items() if not any(member in left for member in members)]
        if not free:
            free = list(left)
        found.append(free)
        for name in free:
            del left[name]
    return found


def circle(name: str, members: Collection[str], needs: Callable[[str], Collection[str]]) -> ServeError | None:
    """The refusal of a model that needs itself, through any number of ensembles; `needs` is for the others."""
    seen: set[str] = set()
    todo = [(name, member) for member in members]
    while todo:
        by, member = todo.pop()
        if member == name:
            return invalid(f"circular dependency between ensembles: {name} -> ... -> {by} -> {name}")
        if member not in seen:
            seen.add(member)
            todo += [(member, further) for further in needs(member)]
    return None


def no_longer_needed(name: str, needs: Mapping[str, Collection[str]], asked_for: Collection[str]) -> list[str]:
    """The models to unload with `name` and its dependents: members not loaded by name and not needed by others.

    `needs` are the serving models, with their members.
    """
    gone = [name]
    for going in gone:
        for member in needs.get(going, ()):
            users = [user for user, members in needs.items() if member in members and user not in gone]
            if member in needs and member not in gone and member not in asked_for and not users:
                gone.append(member)
    return gone[1:]


class Ensembles:
    """All ensembles. `load_member` loads a member in the turn of its ensemble; None if loads may not bring members.

    `load` loads an ensemble again and returns whether it could; `retire` does not wait for requests. `away` are the
    ensembles that were unloaded only because of a member, with their members.
    """

    def __init__(
        self,
        registry: Registry,
        repositories: Repositories,
        load_member: Callable[..., Awaitable[object]] | None,
        load: Callable[[str], Awaitable[bool]],
        retire: Callable[[str], Awaitable[None]],
    ) -> None:
        self._registry = registry
        self._repositories = repositories
        self._load_member = load_member
        self._load = load
        self._retire = retire
        self.away: dict[str, Collection[str]] = {}

    async def prepare(self, candidate: Candidate, turn: Turn) -> bool:
        """Whether an ensemble can be loaded, see `is_overtaken`; any other model can.

        Raises ServeError with upstream's texts; then the candidate is removed, and the registry has the reason.
        """
        members = members_of(candidate.config)
        if not members:
            return True
        try:
            return await self._prepare(candidate, members, turn)
        except BaseException as raised:
            await asyncio.to_thread(candidate.remove)
            if not isinstance(raised, ServeError):
                raise
            name = candidate.folder.key
            self._registry.log_failure(name, f"failed to load '{name}': {raised}")
            if not candidate.made:
                self._registry.entry(name).reason = raised.message
            raise invalid(f"load failed for model '{name}': {raised}\n") from None

    async def is_overtaken(self, candidate: Candidate) -> bool:
        """Whether a member of an ensemble that is being loaded was there, and has been unloaded meanwhile.

        As upstream, where the unload would have waited, the load has then succeeded, and the unload has taken the
        ensemble along.
        """
        key, namespace = candidate.folder.key, candidate.folder.namespace
        members = [self._registry.resolve(name, namespace) for name in members_of(candidate.config)]
        gone = next((member for member in members if not self._registry.ready_versions(member)), None)
        if gone is None:
            return False
        log.info("ensemble '%s' is unloaded as soon as it is loaded, because its member '%s' is", key, gone)
        for version in await asyncio.to_thread(available_versions, candidate.folder, candidate.config):
            if not self._registry.serves(key, version):
                self._registry.set_version(key, version, VersionState.UNAVAILABLE, UNLOADED)
        self._registry.entry(key).reason = ""
        self.away[key] = members
        await asyncio.to_thread(candidate.remove)
        return True

    async def _prepare(self, candidate: Candidate, names: tuple[str, ...], turn: Turn) -> bool:
        name, namespace = candidate.folder.key, candidate.folder.namespace
        look = self._repositories
        members = await look.run_in_thread(lambda: [look.member(one, namespace) for one in names])
        missing = [member for member in members if not self._registry.ready_versions(member)]
        absent = await look.run_in_thread(partial(look.absent, missing))
        if absent:
            raise invalid(f"ensemble {name} contains models that are not available or ambiguous: {', '.join(absent)}")
        closed = await look.run_in_thread(partial(circle, name, members, look.members))
        if closed is not None:
            raise closed
        if self._load_member is not None:
            # The registry has the reasons of failed loads, and they are reported from there.
            loads = (self._load_member(member, outer=turn) for member in missing)
            outcomes = await asyncio.gather(*loads, return_exceptions=True)
            missing = [
                one for one, outcome in zip(missing, outcomes, strict=True) if isinstance(outcome, BaseException)
            ]
        if not missing and await self.is_overtaken(candidate):
            return False
        from stubserve.ensembles.start import check_members

        check_members(candidate.config, self._registry, namespace)
        return True

    async def update_members(self) -> None:
        """Lets each ensemble serve with its present members, or unloads it."""
        for _ in range(_ROUNDS):
            ending, loading = self._what_to_do()
            if not ending and not loading:
                return
            for name, members in ending.items():
                log.info("ensemble '%s' is unloaded, because one of its members is", name)
                await self._retire(name)
                self.away[name] = members
            needs = await asyncio.to_thread(self._repositories.needs, loading)
            for name in (one for group in rounds(needs) for one in group):
                if not await self._load(name):
                    log.error("ensemble '%s' is unloaded: it cannot be served with its members as they are", name)
                    await self._retire(name)
                    # The ensemble comes back only when it is loaded by name.
                    self.away.pop(name, None)
        log.error("ensembles still do not fit their members after %d rounds of loading", _ROUNDS)

    def _what_to_do(self) -> tuple[dict[str, Collection[str]], list[str]]:
        """The ensembles without one of their members, and those that are to be loaded."""
        serving = self._registry.serving()
        names = {model.key for model in serving}
        unsettled: dict[str, Collection[str]] = {
            model.key: [self._registry.resolve(name, model.namespace) for name in model.needs]
            for model in serving
            if model.needs and not model.has_same_members()
        }
        ending = {name: members for name, members in unsettled.items() if not names.issuperset(members)}
        back = [name for name, members in self.away.items() if names.issuperset(members)]
        return ending, [*(unsettled.keys() - ending.keys()), *back]
