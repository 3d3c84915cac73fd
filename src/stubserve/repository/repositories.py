"""The places of a server's models: the operator's repositories, and the meaning of a name in them.

Each model has a *key*: its name, or with `--model-namespacing` its repository and its name (`<repository>::<name>`), so
that two repositories may have a model of the same name. The registry, turns and changeovers use keys; clients and
configurations use names. A name in an ensemble means the model of the same repository, or the only one elsewhere.

All methods but `aside` look again each time, and are for threads, as disks may be slow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from stubserve.errors import Code, ServeError, internal, invalid
from stubserve.model_config.complete import members_of
from stubserve.parts import require
from stubserve.repository import folder as disk
from stubserve.repository.daemon_threads import in_daemon_thread
from stubserve.repository.folder import BETWEEN, ModelFolder, Survey, check_model_name, key_of, read_config
from stubserve.repository.registry import meant
from stubserve.settings.groups import RepositorySettings

if TYPE_CHECKING:
    from stubserve.repository.cloud.mirror import Mirror

_T = TypeVar("_T")

# The longest wait for a look at a repository in the cloud; after that the last known state is used
_PATIENCE_S = 5.0


class Repositories:
    """The repositories of a server: folders, and after `open` copies of those in the cloud."""

    def __init__(self, settings: RepositorySettings) -> None:
        self._settings = settings
        self._namespacing = settings.namespacing
        # Namespace -> folder
        self._folders = {str(path): path for path in settings.paths}
        self._mirrors: dict[Path, Mirror] = {}
        # Models from elsewhere, by key
        self._given: dict[str, ModelFolder] = {}

    def add_model(self, name: str, repository: Path) -> None:
        """Adds the model of a repository that holds one, under a name. Raises ServeError INVALID_ARG."""
        check_model_name(name)
        if not repository.is_absolute() or not repository.is_dir():
            raise invalid(f"failed to register '{repository}', repository not found")
        if name in self._given:
            raise invalid(f"model repository '{repository}' has already been registered")
        models = list(disk.survey([repository]).models.values())
        if not models:
            raise invalid(f"failed to register '{repository}', there is no model in it")
        self._given[name] = replace(models[0], name=name, renamed=True)

    def remove_model(self, name: str) -> None:
        self._given.pop(name, None)

    @property
    def repositories(self) -> list[Path]:
        return list(self._folders.values())

    async def run_in_thread(self, look: Callable[[], _T]) -> _T:
        """A look in a thread, as disks may be slow; stores in the cloud may hang."""
        return await (in_daemon_thread(look) if self._settings.remotes else asyncio.to_thread(look))

    def open(self) -> None:
        """Raises ServeError if a repository is missing, or cannot be reached."""
        for repository in self._settings.paths:
            if not repository.is_dir():
                raise internal(f"failed to stat file {repository}: repository path is not a valid directory")
        if self._settings.remotes:
            require("cloud")
            from stubserve.repository.cloud.mirror import open_mirror

            for address in self._settings.remotes:
                mirror = open_mirror(address, self._settings.remote_cache)
                self._mirrors[mirror.models] = mirror
                self._folders[address] = mirror.models
                mirror.names()

    def close(self) -> None:
        for mirror in self._mirrors.values():
            mirror.close()

    def survey(self) -> Survey:
        """All models that can be served, by key. Raises as `folder.survey`."""
        for mirror in self._mirrors.values():
            mirror.look(_PATIENCE_S)
        if not self._namespacing:
            survey = disk.survey(self.repositories)
            return replace(survey, models={key: self._held(model) for key, model in survey.models.items()})
        found = {}
        for namespace, repository in self._folders.items():
            for name, model in disk.survey([repository]).models.items():
                found[key_of(namespace, name)] = self._held(replace(model, namespace=namespace))
        return Survey(dict(sorted(found.items())), frozenset())

    def locate(self, key: str, fresh: bool = False) -> ModelFolder:
        """One model; with `fresh` a copy is refreshed first. Raises as `folder.locate`."""
        given = self._given.get(key)
        if given is not None:
            return given
        namespace, between, name = key.rpartition(BETWEEN)
        if not self._namespacing or not between:
            namespace, name, repositories = "", key, self.repositories
        else:
            repositories = [self._folders[namespace]] if namespace in self._folders else []
        check_model_name(name)
        for repository in repositories:
            mirror = self._mirrors.get(repository)
            if mirror is not None and (fresh or mirror.copy_of(name) is None):
                try:
                    mirror.refresh(name)
                except ServeError as error:
                    if error.code is not Code.NOT_FOUND:
                        raise
        return self._held(replace(disk.locate(repositories, name), namespace=namespace))

    def _held(self, model: ModelFolder) -> ModelFolder:
        """A model that is a copy, with the folder of that copy."""
        mirror = self._mirrors.get(model.repository)
        copy = None if mirror is None else mirror.copy_of(model.name)
        return model if copy is None else replace(model, path=copy.folder, held=copy)

    def keys(self, name: str) -> list[str]:
        """The models that a name stands for; the name itself if there is none, and then `locate` refuses it.

        Raises ServeError INVALID_ARG for an impossible name.
        """
        if not self._namespacing:
            return [name]
        check_model_name(name)
        found = [key for key in (key_of(namespace, name) for namespace in self._folders) if self._has(key)]
        return found or [name]

    def member(self, name: str, namespace: str) -> str:
        """The model that a name means in an ensemble of a namespace."""
        return meant(name, namespace, self.keys(name)) if self._namespacing else name

    def members(self, key: str) -> Collection[str]:
        """The members of an ensemble; none for any other model. Its load reports faults."""
        try:
            folder = self.locate(key)
            config = read_config(folder, self._settings.config_name)
        except ServeError:
            return ()
        return [] if config is None else [self.member(name, folder.namespace) for name in members_of(config)]

    def needs(self, keys: Collection[str]) -> dict[str, Collection[str]]:
        return {key: self.members(key) for key in keys}

    def names(self) -> dict[str, bool]:
        """The names in all repositories, and whether each means a model that can be served. Raises as `survey`."""
        names = disk.list_names(self._settings.paths)
        for mirror in self._mirrors.values():
            for name in mirror.names():
                names[name] = name not in names
        return dict.fromkeys(names, True) if self._namespacing else names

    def absent(self, keys: Collection[str]) -> list[str]:
        """The models that are not in exactly one repository."""
        return [key for key in keys if not self._has(key)]

    def _has(self, key: str) -> bool:
        try:
            self.locate(key)
        except ServeError:
            return False
        return True
