"""Model control: which models are loaded, asked for by clients, by models, or by what lies on disk.

How a load takes over from what serves is `changeover`; an unload retires what serves, and is answered at once. A load
that takes instances away from a version that goes on is answered when these are gone, as upstream does; but not where a
model asks for it, as it may be what is waited for. A load of a model of which nothing has changed does nothing.

Models are kept apart by keys (`places`): a name that stands for several of them, with namespaces, means all.

What a load or unload means for ensembles is in `dependencies`. They are settled when it is over, and before it is
answered: those that need what is gone go, those that can be served again come back, and those whose members are others
now are loaded anew.

Loads and unloads of one model take turns (`turns`); retiring (`retiring`), and the wait for instances that go, is no
part of a turn, so a model may reload or unload itself while it executes. Each runs as a task of its own: a client that
goes away does not leave one half done. Whatever fails one, whoever asked gets a ServeError.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stubserve.errors import Code, ServeError, internal, invalid, unavailable
from stubserve.inference.served_model import ServedModel
from stubserve.instances.model_control import no_model_control
from stubserve.instances.services import Services
from stubserve.repository.candidate import Candidate, check_parameters, copy_candidate, find_candidate, make_candidate
from stubserve.repository.changeover import Changeover, Starter, as_load_error
from stubserve.repository.daemon_threads import in_daemon_thread
from stubserve.repository.dependencies import DiskDependencies, circle, members_of, no_longer_needed, rounds
from stubserve.repository.ensemble_loading import check_members, unavailable_members
from stubserve.repository.folder import CONFIG_FILE, DUPLICATE_REASON, check_model_name, name_of
from stubserve.repository.located import located
from stubserve.repository.places import Places
from stubserve.repository.registry import UNLOADED, Registry, VersionState
from stubserve.repository.settling import Settling
from stubserve.repository.stub_control import StubControl
from stubserve.repository.turns import Turn, Turns
from stubserve.repository.watch import RepositoryWatch, occasions
from stubserve.settings import ALL_MODELS, EXPLICIT, POLL, RepositorySettings

if TYPE_CHECKING:
    from stubserve.repository.agents.chain import Agents

log = logging.getLogger("stubserve.repository")

_T = TypeVar("_T")


class ModelControl:
    """Loads models into a registry, and unloads them. Stubs that go have `stop_timeout_s` to finalize."""

    def __init__(
        self,
        settings: RepositorySettings,
        starter: Starter,
        registry: Registry,
        services: Services,
        stop_timeout_s: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._settings = settings
        self._sleep = sleep
        self._registry = registry
        self._services = services
        self._explicit = settings.control_mode == EXPLICIT
        self._slots = asyncio.Semaphore(max(settings.load_threads, 1))
        self._changeover = Changeover(starter, registry, self._slots, stop_timeout_s, settings.load_retries)
        self._places = Places(settings)
        self._agents: Agents | None = None
        self._turns = Turns()
        self._changes: set[asyncio.Task[Any]] = set()
        self._disk = DiskDependencies(self._places, settings.config_name)
        self._ensembles = Settling(registry.serving, registry.resolve, self._disk, self._load_again, self._retire)
        # What somebody wanted loaded by its name, in contrast to what an ensemble has brought
        self._asked_for: set[str] = set()
        self._watch = RepositoryWatch(self._places, self._load_several, lambda name: self._unload(name, False, None))
        self._watching: asyncio.Task[None] | None = None
        self._starting = False
        self._exiting = False

    # What may be asked

    async def load_all(self) -> bool:
        """Loads every model that is to be there from the start; whether all of them could be loaded.

        Failures are in the registry. Raises ServeError if a repository cannot be read, or the names make no sense.
        """
        self._starting = True
        try:
            return await self._load_all()
        finally:
            self._starting = False

    async def _load_all(self) -> bool:
        await self._aside(self._places.open)
        if self._settings.control_mode == POLL:
            complete = await self._look()
            if self._settings.poll_secs or self._settings.notices_changes:
                self._watching = asyncio.get_running_loop().create_task(self._keep_watching())
            return complete
        chosen = dict.fromkeys(self._settings.load_models)
        if ALL_MODELS in chosen and len(chosen) > 1:
            raise invalid("Wildcard model name '*' must be the ONLY startup model if specified at all.")
        for name in chosen.keys() - {ALL_MODELS}:
            check_model_name(name)
        if self._settings.namespacing and ALL_MODELS not in chosen:
            keys = [await self._aside(partial(self._places.keys, name)) for name in chosen]
            chosen = dict.fromkeys(itertools.chain.from_iterable(keys))
        complete = True
        if not self._explicit or ALL_MODELS in chosen:
            found = await self._aside(self._places.survey)
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
        """Loads a model, anew if it serves; with `config` (JSON) in place of its own configuration, or made of `files`.

        `asked_in` is the load of the stub that asks for it, if one does; anybody else waits until instances that the
        load takes away are gone. Raises ServeError with upstream's texts; then what served before still does.
        """
        keys = [name]
        if self._settings.namespacing and self._explicit:
            keys = await self._aside(partial(self._places.keys, name))
        await all_of(self._load_key(key, config, files or {}, asked_in) for key in keys)

    async def _load_key(self, key: str, config: str | None, files: Mapping[str, bytes], asked_in: Turn | None) -> None:
        self._asked_for.add(key)
        leaving = await self._change(lambda outer: self._load_and_settle(key, config, files, outer), asked_in)
        if leaving and asked_in is None:
            await asyncio.wait(leaving)

    async def unload(self, name: str, dependents: bool = False, asked_in: Turn | None = None) -> None:
        """Lets a model go, or does nothing for one that is not there. Does not wait for its requests.

        With `dependents`, the members of an ensemble go with it that nobody else needs and nobody has loaded by name.
        Raises ServeError.
        """
        keys = dict.fromkeys(self._registry.keys(name)) or [name]
        await all_of(self._change(partial(self._unload, key, dependents), asked_in) for key in keys)

    async def load_from(self, name: str, folder: Path) -> None:
        """Loads the model that lies in a repository of its own, under a name. Raises ServeError."""
        if not self._explicit:
            raise no_model_control()
        await self._aside(partial(self._places.give, name, folder))
        try:
            await self.load(name)
        except BaseException:
            self._places.take_back(name)
            if not self._registry.ready_versions(name):
                self._registry.forget(name)
            raise

    async def unload_from(self, name: str) -> None:
        """Lets such a model go. Raises ServeError."""
        await self.unload(name)
        self._places.take_back(name)

    async def index(self, only_ready: bool) -> list[dict[str, Any]]:
        """The repository index, with the models on disk that have never been loaded. Raises ServeError."""
        rows = self._registry.index(only_ready)
        if only_ready:
            return rows
        known = {row["name"] for row in rows}
        names = await self._aside(self._places.names)
        # What was unloaded, and has been deleted, is no more.
        rows = [row for row in rows if row["name"] in names or row.get("reason") != UNLOADED]
        for name in names.keys() - known:
            row = {"name": name}
            if not names[name]:
                row |= {"state": VersionState.UNAVAILABLE.value, "reason": DUPLICATE_REASON}
            rows.append(row)
        return sorted(rows, key=lambda row: row["name"])

    def leaving(self) -> list[ServedModel]:
        """What serves no longer, and is not gone yet."""
        return self._changeover.leaving()

    async def give_up_changes(self) -> None:
        """Ends the loads and unloads that are under way, with what they have started, and takes no further ones."""
        self._exiting = True
        changes = [*self._changes, *([self._watching] if self._watching is not None else [])]
        for change in changes:
            change.cancel()
        await asyncio.gather(*changes, return_exceptions=True)

    async def stop(self, timeout_s: float) -> None:
        """Ends loads, lets running requests finish, finalizes the models and ends the stubs, within `timeout_s`."""
        await self.give_up_changes()
        await self._changeover.retire_all(timeout_s)
        await asyncio.to_thread(self._places.close)
        if self._agents is not None:
            await asyncio.to_thread(self._agents.close)

    async def _aside(self, look: Callable[[], _T]) -> _T:
        """A look at the repositories, in a thread, as disks may be slow, and stores in the cloud may hang."""
        return await (in_daemon_thread(look) if self._places.may_hang else asyncio.to_thread(look))

    async def _change(self, change: Callable[[Turn | None], Coroutine[Any, Any, _T]], asked_in: Turn | None) -> _T:
        """Runs a load or unload to its end, whatever becomes of who asked for it. Raises ServeError."""
        if self._exiting:
            raise unavailable("Server exiting")
        if not self._explicit:
            raise no_model_control()
        outer = None if asked_in is None or asked_in.over else asked_in
        task = asyncio.get_running_loop().create_task(change(outer))
        self._changes.add(task)
        task.add_done_callback(self._changed)
        if outer is not None:
            # The load that waits for this one gives its place away meanwhile: they could be the last two places.
            self._slots.release()
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise unavailable("Server exiting") from None
            raise
        except Exception as raised:
            raise as_load_error(raised) from None
        finally:
            if outer is not None:
                await self._slots.acquire()

    def _changed(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            task.exception()  # whoever asked may not be there to hear of it

    # Loading

    async def _keep_watching(self) -> None:
        async for _ in occasions(self._settings, self._sleep):
            try:
                await self._look()
            except Exception as raised:
                log.error("cannot look for changes: %s", as_load_error(raised))

    async def _look(self) -> bool:
        complete = await self._watch.look()
        await self._ensembles.settle()
        return complete

    async def _load_several(self, names: Collection[str]) -> dict[str, bool]:
        """Loads models, ensembles after their members; which of them could be loaded."""
        if self._starting:
            self._registry.expect(names)
        needs = await self._aside(partial(self._disk.needs, names))
        loaded: dict[str, bool] = {}
        for group in rounds(needs):
            outcomes = await asyncio.gather(*(self._load_known(name) for name in group))
            loaded.update(zip(group, outcomes, strict=True))
        return loaded

    async def _load_known(self, name: str, find: Callable[[str], Candidate] | None = None) -> bool:
        try:
            await self._load(name, None, {}, None, find=find)
        except Exception as raised:
            as_load_error(raised)  # which tells the log of what nobody expects; the rest has been told
            if self._settings.control_mode == POLL and self._registry.ready_versions(name):
                log.warning("model '%s' could not be loaded anew: the old code goes on serving", name)
            return False
        finally:
            self._registry.pending.discard(name)
        return True

    async def _load_again(self, name: str) -> bool:
        """An ensemble, for the sake of its members: what came with its own load counts as before."""
        return await self._load_known(name, self._find_again)

    async def _load_and_settle(
        self, name: str, config: str | None, files: Mapping[str, bytes], outer: Turn | None
    ) -> Sequence[asyncio.Task[None]]:
        try:
            return await self._load(name, config, files, outer)
        finally:
            # Else the load that waits for this one does it: it may be of an ensemble that is concerned.
            if outer is None:
                await self._ensembles.settle()

    async def _load(
        self,
        name: str,
        config: str | None,
        files: Mapping[str, bytes],
        outer: Turn | None,
        only_if_missing: bool = False,
        find: Callable[[str], Candidate] | None = None,
    ) -> Sequence[asyncio.Task[None]]:
        check_parameters(name_of(name, self._settings.namespacing), files)
        async with self._turns.of(name, outer) as turn:
            if only_if_missing and self._registry.ready_versions(name):
                return ()
            look = partial(find, name) if find is not None else partial(self._find, name, config, files)
            finding = asyncio.ensure_future(self._aside(look))
            try:
                candidate = await asyncio.shield(finding)
                if candidate.config.model_repository_agents.agents:
                    if self._changeover.goes_on(candidate):
                        return ()
                    candidate = await self._ask_agents(candidate)
            except asyncio.CancelledError:
                # Its thread goes on, and may make a folder.
                finding.add_done_callback(_discard)
                raise
            except Exception as raised:
                error = as_load_error(raised)
                told = await self._told(error, name) if config is None else str(error)
                log.error("Poll failed for model directory '%s': %s", name, told)
                if error.code is not Code.NOT_FOUND and not files:
                    self._registry.entry(name).reason = error.message
                raise internal(f"failed to load '{name}', failed to poll from model repository: {error}") from None
            try:
                leaving = await self._take(candidate, turn)
            except Exception:
                if candidate.agents is not None:
                    await candidate.agents.failed()
                raise
            if candidate.agents is not None:
                await candidate.agents.succeeded()
            self._ensembles.away.pop(name, None)
            return leaving

    async def _take(self, candidate: Candidate, turn: Turn) -> Sequence[asyncio.Task[None]]:
        """Has a candidate serve. Raises ServeError."""
        members = members_of(candidate.config)
        if members:
            await self._prepare(candidate, members, turn)
        services = self._services
        if self._explicit:
            services = replace(services, control=StubControl(self, turn))
        if self._settings.namespacing:
            services = replace(services, models=self._registry.within(candidate.folder.namespace))
        return await self._changeover.replace(candidate, services)

    async def _ask_agents(self, candidate: Candidate) -> Candidate:
        """The candidate, as its repository agents want it. Raises ServeError."""
        if self._agents is None:
            # Imported only where a model has one.
            from stubserve.repository.agents.chain import Agents

            self._agents = Agents(self._settings)
        return await self._agents.load(candidate)

    async def _prepare(self, candidate: Candidate, members: Sequence[str], turn: Turn) -> None:
        """Sees to it that an ensemble can be loaded: with explicit control its members are. Raises ServeError."""
        name, namespace = candidate.folder.key, candidate.folder.namespace
        try:
            members = await self._aside(partial(self._disk.keys, members, namespace))
            missing = [member for member in members if not self._registry.ready_versions(member)]
            absent = await self._aside(partial(self._disk.absent, missing))
            if absent:
                raise unavailable_members(name, absent)
            closed = await self._aside(partial(circle, name, members, self._disk.members))
            if closed is not None:
                raise closed
            if self._explicit:
                loads = (self._load(member, None, {}, turn, only_if_missing=True) for member in missing)
                # Why one cannot be loaded is in the registry, and told from there.
                await asyncio.gather(*loads, return_exceptions=True)
            check_members(candidate.config, self._registry, namespace)
        except BaseException as raised:
            await asyncio.to_thread(candidate.remove)
            if not isinstance(raised, ServeError):
                raise
            log.error("failed to load '%s': %s", name, raised)
            if not candidate.made:
                self._registry.entry(name).reason = raised.message
            raise invalid(f"load failed for model '{name}': {raised}\n") from None

    async def _told(self, error: ServeError, name: str) -> str:
        """What the log says where there is no candidate: with the lines of config.pbtxt that are wrong."""
        return await located(error, lambda: self._places.locate(name).path / CONFIG_FILE)

    def _find(self, name: str, config: str | None, files: Mapping[str, bytes]) -> Candidate:
        if files:
            return make_candidate(name, self._settings, config, files)
        return find_candidate(
            self._places.locate(name, fresh=True), self._settings, config, self._changeover.served(name)
        )

    def _find_again(self, name: str) -> Candidate:
        served = self._changeover.served(name)
        if served is not None and served.made:
            return copy_candidate(served, self._settings)
        return find_candidate(self._places.locate(name), self._settings, None, served)

    # Letting go

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
            await self._retire(one, outer)
            self._ensembles.away.pop(one, None)
        if outer is None:
            await self._ensembles.settle()

    async def _retire(self, name: str, outer: Turn | None = None) -> None:
        async with self._turns.of(name, outer):
            entry = self._registry.models.get(name)
            if entry is None:
                return
            entry.reason = ""
            if not entry.versions:
                self._registry.forget(name)
            self._changeover.retire(name)


async def all_of(changes: Iterable[Awaitable[None]]) -> None:
    """Waits for all; raises the first error of them then."""
    for outcome in await asyncio.gather(*changes, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def _discard(found: asyncio.Future[Candidate]) -> None:
    if not found.cancelled() and found.exception() is None:
        found.result().remove()
