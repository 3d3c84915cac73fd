"""One version of the truth replaces another: what a load starts takes over from what serves.

All versions of a model are started beside those that serve. When every one is ready they take over in one step, and
what they replace is retired: it gets no new requests, finishes those that it has, however long they take, finalizes,
and goes, with its processes and memory. When one fails, those that did start are retired, and what served before goes
on as if nothing had been asked. So a reload needs the memory of two for a while, and costs no request.

A version of which nothing has changed but the number and kind of its instances is not started anew: it gets other
instances in the same step, and keeps those that fit, its queue and its statistics (`instance_update`). One of which
nothing at all has changed, where another version has, goes on as it is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping

from stubserve.environments.resolve import mention_stub_program
from stubserve.errors import ServeError, internal, invalid
from stubserve.inference.served_model import ServedModel
from stubserve.instances.memory import Memory
from stubserve.instances.services import Services
from stubserve.repository.candidate import Candidate
from stubserve.repository.folder import available_versions
from stubserve.repository.instance_update import InstanceUpdate
from stubserve.repository.loading import Loader
from stubserve.repository.registry import UNLOADED, Registry, State
from stubserve.repository.retiring import Loaded, Retiring
from stubserve.serving.instance_model import InstanceModel
from stubserve.settings import Settings

log = logging.getLogger("stubserve.repository")


class Changeover:
    """What is loaded, by name, and how that changes. `slots` limits how many versions start at a time."""

    def __init__(self, settings: Settings, memory: Memory, registry: Registry, slots: asyncio.Semaphore) -> None:
        self._registry = registry
        self._loader = Loader(settings, memory)
        self._slots = slots
        self._loaded: dict[str, Loaded] = {}
        self._retiring = Retiring(registry, settings.exit_timeout_secs)
        self._stop_timeout_s = settings.exit_timeout_secs

    def served(self, name: str) -> Candidate | None:
        """What a model serves from, None if it does not."""
        loaded = self._loaded.get(name)
        return None if loaded is None else loaded.candidate

    async def replace(self, candidate: Candidate, services: Services, anew: bool) -> None:
        """Loads `candidate`; all of it where nothing has changed and `anew` is wanted. Raises ServeError."""
        name = candidate.folder.name
        try:
            versions = await asyncio.to_thread(available_versions, candidate.folder, candidate.config)
        except ServeError as error:
            log.error("Poll failed for model directory '%s': %s", name, error)
            if not candidate.made:
                self._registry.entry(name).reason = error.message
            candidate.discard()
            raise invalid(f"load failed for model '{name}': {error}\n") from None
        mention_stub_program(candidate.folder.path)
        staying = self._staying(candidate, versions)
        if anew and self._is_as_served(candidate, versions, staying):
            staying = {}
        for version in versions:
            if not self._registry.serves(name, version):
                self._registry.set_version(name, version, State.LOADING)
        starts = {
            version: asyncio.ensure_future(self._start(candidate, version, staying.get(version), services))
            for version in versions
        }
        updates: list[InstanceUpdate] = []
        models: list[ServedModel] = []
        failures: dict[int, ServeError] = {}
        try:
            await asyncio.gather(*starts.values(), return_exceptions=True)
        finally:
            for version, start in starts.items():
                if start.cancelled():
                    continue
                raised = start.exception()
                if isinstance(raised, ServeError):
                    failures[version] = raised
                elif raised is None:
                    started = start.result()
                    if isinstance(started, InstanceUpdate):
                        updates.append(started)
                    else:
                        models.append(started)
            if len(models) + len(updates) < len(versions):
                for update in updates:
                    update.abandon(self._stop_timeout_s)
                self._give_up(Loaded(candidate, models), failures, staying)
        if failures:
            raise invalid(
                f"load failed for model '{name}': "
                + "".join(
                    f"version {version} is at {'READY' if version in staying else 'UNAVAILABLE'} state: "
                    f"{error.status_text};\n"
                    for version, error in failures.items()
                )
            )
        for update in updates:
            update.commit(self._stop_timeout_s)
        self._take_over(Loaded(candidate, [*models, *staying.values()]))
        log.info("successfully loaded '%s'", name)

    def end(self, name: str) -> None:
        """Lets a model go. Does not wait for its requests."""
        loaded = self._loaded.pop(name, None)
        if loaded is not None:
            self._retiring.begin(
                loaded,
                [self._registry.set_version(name, model.version, State.UNLOADING) for model in loaded.models],
            )

    async def end_all(self, timeout_s: float) -> None:
        """Lets running requests finish, finalizes the models and ends the stubs, within `timeout_s`."""
        for loaded in self._loaded.values():
            self._retiring.begin(loaded)
        await self._retiring.finish(timeout_s)

    def _staying(self, candidate: Candidate, versions: list[int]) -> dict[int, InstanceModel]:
        """What serves and need not be started anew, by version."""
        loaded = self._loaded.get(candidate.folder.name)
        if loaded is None:
            return {}
        return {
            model.version: model
            for model in loaded.models
            if isinstance(model, InstanceModel)
            and model.version in versions
            and candidate.continues(loaded.candidate, model.version)
        }

    def _is_as_served(self, candidate: Candidate, versions: list[int], staying: Mapping[int, ServedModel]) -> bool:
        loaded = self._loaded.get(candidate.folder.name)
        return (
            loaded is not None
            and {model.version for model in loaded.models} == set(versions) == staying.keys()
            and loaded.candidate.config == candidate.config
        )

    async def _start(
        self, candidate: Candidate, version: int, staying: InstanceModel | None, services: Services
    ) -> ServedModel | InstanceUpdate:
        name = candidate.folder.name
        async with self._slots:
            log.info("loading: %s:%d", name, version)
            began = time.monotonic()
            try:
                if staying is not None:
                    return await self._loader.update(staying, candidate, services)
                model = await self._loader.start(candidate, version, services)
            except Exception as raised:
                error = as_load_error(raised)
                log.error("failed to load '%s' version %d: %s", name, version, error.status_text)
                raise error from None
        model.load_seconds = time.monotonic() - began
        return model

    def _take_over(self, loaded: Loaded) -> None:
        folder = loaded.candidate.folder
        entry = self._registry.entry(folder.name)
        entry.reason = ""
        for model in loaded.models:
            self._registry.set_version(folder.name, model.version, State.READY, model=model)
        leaving = []
        for version, other in list(entry.versions.items()):
            if other.model is not None and other.model not in loaded.models:
                leaving.append(self._registry.set_version(folder.name, version, State.UNLOADING))
            elif other.state is State.UNAVAILABLE and folder.version_path(version).is_dir():
                other.reason = UNLOADED  # it may have failed an earlier load
            elif other.state is State.UNAVAILABLE:
                self._registry.drop_version(folder.name, version)
        old = self._loaded.get(folder.name)
        self._loaded[folder.name] = loaded
        if old is not None:
            replaced = [model for model in old.models if model not in loaded.models]
            self._retiring.begin(Loaded(old.candidate, replaced), leaving)

    def _give_up(self, loaded: Loaded, failures: Mapping[int, ServeError], staying: Mapping[int, ServedModel]) -> None:
        """A load has failed: what was started goes again."""
        name = loaded.candidate.folder.name
        if loaded.candidate.made and name not in self._loaded:
            self._registry.forget(name)
            self._retiring.begin(loaded)
            return
        for version, error in failures.items():
            if version in staying:
                self._registry.models[name].versions[version].reason = error.status_text
            elif not self._registry.serves(name, version):
                self._registry.set_version(name, version, State.UNAVAILABLE, error.status_text)
        leaving = [
            self._registry.set_version(name, model.version, State.UNLOADING)
            for model in loaded.models
            if not self._registry.serves(name, model.version)
        ]
        self._retiring.begin(loaded, leaving)


def as_load_error(raised: Exception) -> ServeError:
    """What failed a load, for the index; a fault of the server's own is kept from ending it, and goes to the log."""
    if isinstance(raised, ServeError):
        return raised
    log.error("unexpected error while a model was loaded", exc_info=raised)
    return internal(f"unexpected error: {raised!r}")
