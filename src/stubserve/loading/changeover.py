"""How newly loaded versions take over from those that serve.

All versions of a model are started beside those that serve. When every one is ready they take over in one step, and the
replaced ones are retired: they get no new requests, finish their present ones, however long they take, finalize, and
end with their processes and memory. When one fails, the started ones are retired, and the old versions go on unchanged.
So a reload needs the memory of two for a while, and costs no request.

A version that has changed only in the number and kind of its instances is not started again: it gets other instances in
the same step, and keeps those that fit, its queue and its statistics (`loader`). A version without any change, beside
one that has changed, goes on as it is.

However a load ends, even by an unexpected error, no version stays "loading" and nothing that it has started is left
running.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence

from stubserve.environments.resolve import mention_stub_program
from stubserve.errors import ServeError, invalid
from stubserve.inference.served_model import ServedModel
from stubserve.instances.services import Services
from stubserve.loading.changes import as_load_error
from stubserve.loading.loader import InstanceUpdate, Loader
from stubserve.loading.retiring import Loaded, Retiring
from stubserve.repository.candidate import Candidate
from stubserve.repository.folder import CONFIG_FILE, available_versions
from stubserve.repository.registry import UNLOADED, Registry, VersionState
from stubserve.serving.instance_model import InstanceModel

log = logging.getLogger("stubserve.repository")


class Changeover:
    """The loaded models, by name, and their changes. `slots` limits how many versions start at a time.

    A version that fails to start is tried again `retries` times. Unwanted stubs have `stop_timeout_s` to finalize, once
    their requests are answered.
    """

    def __init__(
        self,
        loader: Loader,
        registry: Registry,
        slots: asyncio.Semaphore,
        stop_timeout_s: float,
        retries: int = 0,
    ) -> None:
        self._registry = registry
        self._loader = loader
        self._slots = slots
        self._retries = retries
        self._loaded: dict[str, Loaded] = {}
        self._retiring = Retiring(registry, stop_timeout_s)
        self._stop_timeout_s = stop_timeout_s

    def served(self, name: str) -> Candidate | None:
        loaded = self._loaded.get(name)
        return None if loaded is None else loaded.candidate

    async def replace(self, candidate: Candidate, services: Services) -> Sequence[asyncio.Task[None]]:
        """Loads `candidate`, or does nothing if it serves already as it is. Raises ServeError.

        If versions go on with fewer or other instances, the tasks are done when their old instances are gone.
        """
        name = candidate.folder.key
        versions, on_disk = await self._look(candidate)
        staying = self._staying(candidate, versions)
        if self._is_as_served(candidate, versions):
            if self._loaded[name].fine:
                log.debug("'%s' serves already, and nothing of it has changed", name)
                self._confirm(name, on_disk)
                return ()
            staying = {}
        for version in versions:
            if not self._registry.serves(name, version):
                self._registry.set_version(name, version, VersionState.LOADING)
        starts = {
            version: asyncio.ensure_future(self._start(candidate, version, staying.get(version), services))
            for version in versions
        }
        try:
            await asyncio.gather(*starts.values(), return_exceptions=True)
        finally:
            models, updates, failures = _outcome(starts)
            if len(models) + len(updates) < len(versions):
                for update in updates:
                    for instance in update.started:
                        update.model.retire(instance, self._stop_timeout_s)
                self._give_up(Loaded(candidate, models), versions, failures, staying)
        if failures:
            states = {version: "READY" if version in staying else "UNAVAILABLE" for version in failures}
            reasons = (f"version {one} is at {states[one]} state: {failures[one].status_text};" for one in failures)
            raise invalid(f"load failed for model '{name}': {''.join(reasons)}\n")
        leaving = [task for update in updates for task in self._commit(update)]
        self._take_over(Loaded(candidate, [*models, *staying.values()]), on_disk)
        log.info("successfully loaded '%s'", name)
        return leaving

    async def _look(self, candidate: Candidate) -> tuple[list[int], frozenset[int]]:
        """The versions to load, and the known versions that have a folder.

        Raises ServeError, and then the candidate is removed.
        """
        name = candidate.folder.key
        known = self._registry.entry(name).versions if name in self._registry.models else {}
        folder = candidate.folder

        def look(known: Sequence[int]) -> tuple[list[int], frozenset[int]]:
            mention_stub_program(folder.path)
            on_disk = frozenset(version for version in known if folder.version_path(version).is_dir())
            return available_versions(folder, candidate.config), on_disk

        try:
            return await asyncio.to_thread(look, tuple(known))
        except asyncio.CancelledError:
            candidate.remove()
            raise
        except Exception as raised:
            error = as_load_error(raised)
            self._registry.log_failure(name, f"Poll failed for model directory '{name}': {error.log_message}")
            if not candidate.made:
                entry = self._registry.entry(name)
                entry.reason, entry.is_empty = error.message, True
            await asyncio.to_thread(candidate.remove)
            raise invalid(f"load failed for model '{name}': {error}\n") from None

    def goes_on(self, candidate: Candidate) -> bool:
        """Whether its load has nothing to do; then the serving versions go on."""
        loaded = self._loaded.get(candidate.folder.key)
        if loaded is None or not candidate.is_same(loaded.candidate) or not loaded.fine:
            return False
        self._registry.entry(candidate.folder.key).reason = ""
        return True

    def retire(self, name: str) -> None:
        """Unloads a model. Does not wait for its requests."""
        loaded = self._loaded.pop(name, None)
        if loaded is not None:
            self._retiring.begin(
                loaded,
                [self._registry.set_version(name, model.version, VersionState.UNLOADING) for model in loaded.models],
                patient=False,
            )

    def leaving(self) -> list[ServedModel]:
        return self._retiring.leaving()

    async def retire_all(self, timeout_s: float) -> None:
        """Lets running requests finish, finalizes the models and ends the stubs, within `timeout_s`."""
        for loaded in self._loaded.values():
            self._retiring.begin(loaded)
        await self._retiring.drain(timeout_s)

    def _staying(self, candidate: Candidate, versions: list[int]) -> dict[int, InstanceModel]:
        """The serving versions that need not be started again."""
        loaded = self._loaded.get(candidate.folder.key)
        if loaded is None:
            return {}
        return {
            model.version: model
            for model in loaded.models
            if isinstance(model, InstanceModel)
            and model.version in versions
            and candidate.continues(loaded.candidate, model.version)
        }

    def _is_as_served(self, candidate: Candidate, versions: list[int]) -> bool:
        """Whether a load would change nothing: as upstream it does nothing then, unless the model is down."""
        loaded = self._loaded.get(candidate.folder.key)
        return (
            loaded is not None
            and candidate.is_same(loaded.candidate)
            and {model.version for model in loaded.models} == set(versions)
        )

    def _confirm(self, name: str, on_disk: frozenset[int]) -> None:
        """The serving versions go on, and errors of earlier loads are cleared."""
        entry = self._registry.entry(name)
        entry.reason = ""
        for version in entry.versions.values():
            if version.model is not None:
                version.reason = ""
        self._tidy(name, on_disk)

    def _tidy(self, name: str, on_disk: frozenset[int]) -> None:
        """Marks versions that are on disk but not served as unloaded, and forgets those that are gone."""
        for version, entry in list(self._registry.entry(name).versions.items()):
            if entry.state is not VersionState.UNAVAILABLE:
                continue
            if version in on_disk:
                entry.reason = UNLOADED  # it may have failed an earlier load
            else:
                self._registry.drop_version(name, version)

    async def _start(
        self, candidate: Candidate, version: int, staying: InstanceModel | None, services: Services
    ) -> ServedModel | InstanceUpdate:
        name = candidate.folder.key
        async with self._slots:
            for left in range(self._retries, -1, -1):
                log.info("loading: %s:%d", name, version)
                began = time.monotonic()
                try:
                    if staying is not None:
                        return await self._loader.update(staying, candidate, services)
                    model = await self._loader.start(candidate, version, services)
                    break
                except Exception as raised:
                    error = as_load_error(raised)
                    if candidate.has_config and candidate.override is None:
                        from stubserve.model_config.reading import located  # not at the top: errors alone need it

                        error.log_message = await located(error, lambda: candidate.folder.path / CONFIG_FILE)
                    self._registry.log_failure(name, f"failed to load '{name}' version {version}: {error.log_text}")
                    if not left:
                        raise error from None
                    log.info("'%s' version %d is tried again, %d more times at most", name, version, left)
        model.load_seconds = time.monotonic() - began
        model.namespace = candidate.folder.namespace
        return model

    def _commit(self, update: InstanceUpdate) -> list[asyncio.Task[None]]:
        try:
            return update.model.change_instances(update.instances, update.config, self._stop_timeout_s)
        except Exception:
            # The version goes on with its present instances: undoing the load now could only make more of it fail.
            log.exception("unexpected error while version %d got other instances", update.model.version)
            return []

    def _take_over(self, loaded: Loaded, on_disk: frozenset[int]) -> None:
        """Lets the loaded versions serve; `on_disk` are the versions that were known before and still have a folder."""
        name = loaded.candidate.folder.key
        entry = self._registry.entry(name)
        entry.reason = ""
        for model in loaded.models:
            self._registry.set_version(name, model.version, VersionState.READY, model=model)
        leaving = []
        for version, other in list(entry.versions.items()):
            if other.model is not None and other.model not in loaded.models:
                leaving.append(self._registry.set_version(name, version, VersionState.UNLOADING))
        self._tidy(name, on_disk)
        old = self._loaded.get(name)
        self._loaded[name] = loaded
        if old is not None:
            replaced = [model for model in old.models if model not in loaded.models]
            # Sequences go on where they are, by way of the new model of the same version, or of the latest.
            heirs = {model.version: model for model in loaded.models}
            for former in replaced if heirs else ():
                heirs.get(former.version, heirs[max(heirs)]).takes_over_from(former)
            self._retiring.begin(Loaded(old.candidate, replaced), leaving)

    def _give_up(
        self,
        loaded: Loaded,
        versions: Sequence[int],
        failures: Mapping[int, ServeError],
        staying: Mapping[int, ServedModel],
    ) -> None:
        """A load has failed, or is given up: its started versions are ended."""
        name = loaded.candidate.folder.key
        if loaded.candidate.made and name not in self._loaded:
            self._registry.forget(name)
            self._retiring.begin(loaded)
            return
        for version in versions:
            error = failures.get(version)
            if error is not None and version in staying:
                self._registry.models[name].versions[version].reason = error.status_text
            elif not self._registry.serves(name, version):
                reason = _GIVEN_UP if error is None else error.status_text
                self._registry.set_version(name, version, VersionState.UNAVAILABLE, reason)
        leaving = [
            self._registry.set_version(name, model.version, VersionState.UNLOADING)
            for model in loaded.models
            if not self._registry.serves(name, model.version)
        ]
        self._retiring.begin(loaded, leaving)


_GIVEN_UP = "the load was given up"


def _outcome(
    starts: Mapping[int, asyncio.Future[ServedModel | InstanceUpdate]],
) -> tuple[list[ServedModel], list[InstanceUpdate], dict[int, ServeError]]:
    """The results of starts, by version: new models, those with other instances, and the errors of the failed.

    Starts that were cancelled, or failed by a fault of the server, are left out.
    """
    models: list[ServedModel] = []
    updates: list[InstanceUpdate] = []
    failures: dict[int, ServeError] = {}
    for version, start in starts.items():
        if start.cancelled():
            continue
        failure = start.exception()
        if isinstance(failure, ServeError):
            failures[version] = failure
        elif failure is None:
            started = start.result()
            if isinstance(started, InstanceUpdate):
                updates.append(started)
            else:
                models.append(started)
    return models, updates, failures
