"""Ensembles follow their members: after each load and unload they are settled.

Those that lack a member go, and are remembered; those that have all of them again come back; those whose members are
others now are checked and loaded anew, and go where that fails. Each may concern further ensembles, so it goes on until
nothing is left to do. It takes the turns of ensembles only, one at a time, and none of its own, so nobody can wait for
it in a circle.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from stubserve.inference.served_model import ServedModel
from stubserve.loading.dependencies import DiskDependencies, rounds

log = logging.getLogger("stubserve.repository")

# How often ensembles are settled because of each other, at most
_ROUNDS = 100


class Settling:
    """`serving` are the model versions that serve; `resolve` makes keys of names and a namespace. `load` says whether
    it could, `retire` does not wait for requests.

    `away` are the ensembles that went only because a member did, with their members.
    """

    def __init__(
        self,
        serving: Callable[[], Collection[ServedModel]],
        resolve: Callable[[str, str], str],
        disk: DiskDependencies,
        load: Callable[[str], Awaitable[bool]],
        retire: Callable[[str], Awaitable[None]],
    ) -> None:
        self._serving = serving
        self._resolve = resolve
        self._disk = disk
        self._load = load
        self._retire = retire
        self.away: dict[str, Collection[str]] = {}

    async def settle(self) -> None:
        for _ in range(_ROUNDS):
            ending, loading = self._what_to_do()
            if not ending and not loading:
                return
            for name, members in ending.items():
                log.info("ensemble '%s' is unloaded, because one of its members is", name)
                await self._retire(name)
                self.away[name] = members
            needs = await asyncio.to_thread(self._disk.needs, loading)
            for name in (one for group in rounds(needs) for one in group):
                if not await self._load(name):
                    log.error("ensemble '%s' is unloaded: it cannot be served with its members as they are", name)
                    await self._retire(name)
                    # It comes back when somebody loads it.
                    self.away.pop(name, None)
        log.error("ensembles still do not fit their members after %d rounds of loading", _ROUNDS)

    def _what_to_do(self) -> tuple[dict[str, Collection[str]], list[str]]:
        """The ensembles of which a member is gone, and those that are to be loaded."""
        serving = self._serving()
        names = {model.key for model in serving}
        unsettled: dict[str, Collection[str]] = {
            model.key: [self._resolve(name, model.namespace) for name in model.needs]
            for model in serving
            if model.needs and not model.stands()
        }
        ending = {name: members for name, members in unsettled.items() if not names.issuperset(members)}
        back = [name for name, members in self.away.items() if names.issuperset(members)]
        return ending, [*(unsettled.keys() - ending.keys()), *back]
