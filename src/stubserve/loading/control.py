"""Model control: which models are loaded, at the request of clients or models, or by the files on disk.

`changeover` describes how a load takes over from the serving versions; an unload retires these, and is answered at
once. A load that removes instances from a version that goes on is answered when these are gone, as upstream does; but
not for a model's request, as the instances may wait for that model. A load of an unchanged model does nothing.

Models are kept apart by keys (`repositories`): with namespaces, a name means all models that have it.

The consequences for ensembles (`ensembles`) are settled when a load or unload is over, and before it is answered.

Loads and unloads of one model take turns, and each runs as a task of its own (`changes`). Retiring (`retiring`), and
the wait for leaving instances, is not part of a turn, so a model may reload or unload itself while it executes.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stubserve.errors import Code, ServeError, internal, invalid
from stubserve.inference.served_model import ServedModel
from stubserve.instances.services import ControlForModels, Services, no_model_control
from stubserve.loading.changeover import Changeover
from stubserve.loading.changes import Changes, Ends, Obsolete, Turn, Turns, all_of, as_load_error, asked_by_itself
from stubserve.loading.ensembles import Ensembles, no_longer_needed, rounds
from stubserve.loading.finding import Finder, Look
from stubserve.loading.loader import Loader
from stubserve.repository.candidate import Candidate, check_parameters
from stubserve.repository.folder import DUPLICATE_REASON, check_model_name, name_of
from stubserve.repository.registry import Registry
from stubserve.repository.repositories import Repositories
from stubserve.settings.groups import ALL_MODELS, EXPLICIT, POLL, RepositorySettings

if TYPE_CHECKING:
    from stubserve.loading.watch import RepositoryWatch

log = logging.getLogger("stubserve.repository")


class ModelControl:
    """Loads models into a registry, and unloads them. Leaving stubs have `stop_timeout_s` to finalize.

    `checks` is a command that checks saved files, with --dev.
    """

    def __init__(
        self,
        settings: RepositorySettings,
        loader: Loader,
        registry: Registry,
        services: Services,
        stop_timeout_s: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        checks: Sequence[str] = (),
    ) -> None:
        self._settings = settings
        self._sleep = sleep
        self._registry = registry
        registry.polled = settings.control_mode == POLL
        registry.listed = False
        self._services = services
        # Whether clients may load and unload models
        self.is_explicit = settings.control_mode == EXPLICIT
        self._slots = asyncio.Semaphore(max(settings.load_threads, 1))
        self._changeover = Changeover(loader, registry, self._slots, stop_timeout_s, settings.load_retries)
        self._repositories = Repositories(settings)
        self._turns = Turns(patient=not registry.polled)
        self._changes = Changes(self._slots)
        self._finder = Finder(settings, self._repositories, self._changeover.served)
        load_member = partial(self._load, config=None, files={}, only_if_missing=True) if self.is_explicit else None
        # For its members: the configuration and files of its own load still count.
        again = partial(self._load_known, look=self._finder.find_again)
        self._ensembles = Ensembles(registry, self._repositories, load_member, again, self._retire)
        # Models that were loaded by name, not only as members of an ensemble
        self._asked_for: set[str] = set()
        self._checks = checks
        # With --model-control-mode=poll
        self._watch: RepositoryWatch | None = None
        self._starting = False

    async def load_all(self) -> bool:
        """Loads every model that belongs to the start; returns whether all of them could be loaded.

        Failures are in the registry. Raises ServeError if a repository cannot be read, or for senseless names.
        """
        self._starting = True
        try:
            return await self._load_all()
        finally:
            self._starting = False
            self._registry.listed = True

    async def _load_all(self) -> bool:
        await self._repositories.run_in_thread(self._repositories.open)
        if self._settings.control_mode == POLL:
            from stubserve.loading.watch import RepositoryWatch  # not at the top: most servers look once

            self._watch = RepositoryWatch(
                self._repositories,
                self._load_saved,
                lambda name: self._unload(name, False, None),
                self._registry.tell_anew,
                self._checks,
            )
            loading = await self._watch.look()
            if self._settings.poll_secs or self._settings.notices_changes:
                self._watch.keep_looking(self._settings, self._sleep)
            return await loading
        chosen = dict.fromkeys(self._settings.load_models)
        if ALL_MODELS in chosen and len(chosen) > 1:
            raise invalid("Wildcard model name '*' must be the ONLY startup model if specified at all.")
        for name in chosen.keys() - {ALL_MODELS}:
            check_model_name(name)
        if self._settings.namespacing and ALL_MODELS not in chosen:
            keys = [await self._repositories.run_in_thread(partial(self._repositories.keys, name)) for name in chosen]
            chosen = dict.fromkeys(itertools.chain.from_iterable(keys))
        complete = True
        if not self.is_explicit or ALL_MODELS in chosen:
            found = await self._repositories.run_in_thread(self._repositories.survey)
            for name in found.duplicates:
                self._registry.entry(name).reason = DUPLICATE_REASON
            chosen = dict.fromkeys(found.models)
            complete = not found.duplicates
        self._asked_for.update(chosen)
        return all((await self._load_several(chosen)).values()) and complete

    async def load(
        self,
        name: str,
        config: str | None = None,
        files: Mapping[str, bytes] | None = None,
        asked_in: Turn | None = None,
    ) -> None:
        """Loads a model, again if it serves; `config` (JSON) or `files` replace those of the repository.

        `asked_in` is the load of the stub that has requested it, if any; all other callers wait until instances that
        the load removes are gone. Raises ServeError with upstream's texts; then the old versions still serve.
        """
        self._check_control()
        keys = [name]
        if self._settings.namespacing:
            keys = await self._repositories.run_in_thread(partial(self._repositories.keys, name))

        async def load(key: str) -> None:
            self._asked_for.add(key)
            leaving = await self._changes.run(partial(self._load_and_update, key, config, files or {}), asked_in)
            if leaving and asked_in is None:
                await asyncio.wait(leaving)

        await all_of(map(load, keys))

    async def unload(self, name: str, dependents: bool = False, asked_in: Turn | None = None) -> None:
        """Unloads a model if it is there. Does not wait for its requests. Raises ServeError.

        With `dependents`, an ensemble's members are unloaded, too, unless other models need them or they were loaded by
        name.
        """
        self._check_control()
        keys = dict.fromkeys(self._registry.keys(name)) or [name]
        await all_of(self._changes.run(partial(self._unload, key, dependents), asked_in) for key in keys)

    async def load_from(self, name: str, folder: Path) -> None:
        """Loads the model of a repository that holds only this one, under a name. Raises ServeError."""
        self._check_control()
        await self._repositories.run_in_thread(partial(self._repositories.add_model, name, folder))
        try:
            await self.load(name)
        except BaseException:
            self._repositories.remove_model(name)
            if not self._registry.ready_versions(name):
                self._registry.forget(name)
            raise

    async def unload_from(self, name: str) -> None:
        """Unloads such a model. Raises ServeError."""
        await self.unload(name)
        self._repositories.remove_model(name)

    async def index(self, only_ready: bool) -> list[dict[str, Any]]:
        """The repository index, with the models on disk that have never been loaded. Raises ServeError."""
        if only_ready:
            return self._registry.index(only_ready)
        return self._registry.index_with(await self._repositories.run_in_thread(self._repositories.names))

    def leaving(self) -> list[ServedModel]:
        """The models that no longer serve, and are not gone yet."""
        return self._changeover.leaving()

    async def give_up_changes(self) -> None:
        """Ends the loads and unloads under way, with everything they have started, and takes no further ones."""
        if self._watch is not None:
            await self._watch.close()
        await self._changes.give_up()

    async def stop(self, timeout_s: float) -> None:
        """Ends loads, lets running requests finish, finalizes the models and ends the stubs, within `timeout_s`."""
        await self.give_up_changes()
        await self._changeover.retire_all(timeout_s)
        await asyncio.to_thread(self._repositories.close)
        await self._finder.close()

    def _check_control(self) -> None:
        if not self.is_explicit:
            raise no_model_control(polls=self._settings.control_mode == POLL)

    async def _load_saved(self, names: Collection[str]) -> dict[str, bool]:
        loaded = await self._load_several(names)
        await self._ensembles.update_members()
        return loaded

    async def _load_several(self, names: Collection[str]) -> dict[str, bool]:
        """Loads models, ensembles after their members; returns which of them could be loaded."""
        if self._starting:
            self._registry.expect(names)
        needs = await self._repositories.run_in_thread(partial(self._repositories.needs, names))
        loaded: dict[str, bool] = {}
        for group in rounds(needs):
            await self._turns.ended(itertools.chain.from_iterable(needs[name] for name in group))
            outcomes = await asyncio.gather(*(self._load_known(name) for name in group))
            loaded.update(zip(group, outcomes, strict=True))
        return loaded

    async def _load_known(self, name: str, look: Look | None = None) -> bool:
        try:
            await self._load(name, None, {}, None, look=look)
        except Exception as raised:
            error = as_load_error(raised)  # this logs an unexpected error; all others are in the log already
            if isinstance(error, Obsolete):
                return False
            if self._settings.control_mode == POLL and self._registry.ready_versions(name):
                self._registry.entry(name).on_disk = error.message
                kept = f"model '{name}' could not be loaded again: the old code goes on serving"
                self._registry.log_failure(name, kept, logging.WARNING)
            return False
        finally:
            self._registry.pending.discard(name)
        if name in self._registry.models:
            self._registry.models[name].on_disk = ""
        return True

    async def _load_and_update(
        self, name: str, config: str | None, files: Mapping[str, bytes], outer: Turn | None
    ) -> Sequence[asyncio.Task[None]]:
        try:
            return await self._load(name, config, files, outer)
        finally:
            # Otherwise the load that waits for this one settles them: it may be the load of such an ensemble.
            if outer is None:
                await self._ensembles.update_members()

    async def _load(
        self,
        name: str,
        config: str | None,
        files: Mapping[str, bytes],
        outer: Turn | None,
        only_if_missing: bool = False,
        look: Look | None = None,
    ) -> Sequence[asyncio.Task[None]]:
        check_parameters(name_of(name, self._settings.namespacing), files)
        look = look or self._finder.look_for(config, files)
        wanted = config, files
        async with self._turns.take(name, outer, wanted, partial(self._finder.outdates, name, wanted)) as turn:
            if only_if_missing and self._registry.ready_versions(name):
                return ()
            try:
                candidate = await self._finder.find(name, look, self._changeover.goes_on)
            except Exception as raised:
                error = as_load_error(raised)
                told = await self._finder.explain(error, name) if config is None else str(error)
                self._registry.log_failure(name, f"Poll failed for model directory '{name}': {told}")
                if error.code is not Code.NOT_FOUND and not files:
                    self._registry.entry(name).reason = error.message
                raise internal(f"failed to load '{name}', failed to poll from model repository: {error}") from None
            if candidate is None:
                return ()
            turn.candidate = candidate
            agents = candidate.agents
            try:
                leaving = await self._take(candidate, turn)
            except (Exception, asyncio.CancelledError):
                if agents is not None:
                    await agents.failed()
                raise
            if agents is not None:
                await (agents.failed() if leaving is None else agents.succeeded())
            if leaving is not None:
                self._ensembles.away.pop(name, None)
            return leaving or ()

    async def _take(self, candidate: Candidate, turn: Turn) -> Sequence[asyncio.Task[None]] | None:
        """Lets a candidate serve; None if it is an ensemble that an unload has overtaken. Raises ServeError."""
        if not await self._ensembles.prepare(candidate, turn):
            return None
        services = self._services
        if self.is_explicit:
            services = replace(services, control=_ControlInTurn(self, turn))
        if self._settings.namespacing:
            services = replace(services, models=self._registry.in_namespace(candidate.folder.namespace))
        try:
            return await self._changeover.replace(candidate, services)
        except ServeError:
            if await self._ensembles.is_overtaken(candidate):
                return None
            raise

    async def _unload(self, name: str, dependents: bool, outer: Turn | None) -> None:
        going = [name]
        if dependents:
            needs = {
                model.key: [self._registry.resolve(one, model.namespace) for one in model.needs]
                for model in self._registry.serving()
            }
            going += no_longer_needed(name, needs, self._asked_for - {name})
        for one in going:
            self._asked_for.discard(one)
            await self._retire(one, outer, asked_by_itself if one == name else None)
            self._ensembles.away.pop(one, None)
        if outer is None:
            await self._ensembles.update_members()

    async def _retire(self, name: str, outer: Turn | None = None, ends: Ends | None = None) -> None:
        async with self._turns.take(name, outer, None, ends):
            entry = self._registry.models.get(name)
            if entry is None:
                return
            entry.reason = ""
            if not entry.versions:
                self._registry.forget(name)
            self._changeover.retire(name)


@dataclass(frozen=True)
class _ControlInTurn(ControlForModels):
    """Model control for the stubs of one load: their requests belong to the turn of that load."""

    control: ModelControl
    turn: Turn

    async def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        await self.control.load(name, config, files, self.turn)

    async def unload(self, name: str, dependents: bool = False) -> None:
        await self.control.unload(name, dependents, self.turn)
