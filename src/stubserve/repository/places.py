"""Where the models of a server lie: the operator's repositories, and what a name means in them.

Each model has a *key*: its name, or with `--model-namespacing` its repository and its name (`<repository>::<name>`), so
that two repositories may have a model of the same name. Everything that keeps models apart (the registry, turns,
changeovers) goes by keys; clients and configurations know names. A name in an ensemble means the model of the same
repository, or the only one elsewhere.

Everything here looks anew each time, and is for threads, as disks may be slow.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from stubserve.errors import ServeError
from stubserve.repository import folder as disk
from stubserve.repository.folder import BETWEEN, ModelFolder, Survey, check_model_name
from stubserve.repository.registry import key_of
from stubserve.settings import RepositorySettings


class Places:
    """The repositories of a server."""

    def __init__(self, settings: RepositorySettings) -> None:
        self.repositories = settings.paths
        self._namespacing = settings.namespacing

    def survey(self) -> Survey:
        """All that can be served, by key. Raises as `folder.survey`."""
        if not self._namespacing:
            return disk.survey(self.repositories)
        found = {}
        for repository in self.repositories:
            for name, model in disk.survey([repository]).models.items():
                found[key_of(str(repository), name)] = replace(model, namespace=str(repository))
        return Survey(dict(sorted(found.items())), frozenset())

    def locate(self, key: str) -> ModelFolder:
        """One model. Raises as `folder.locate`."""
        namespace, between, name = key.rpartition(BETWEEN)
        if not self._namespacing or not between:
            return disk.locate(self.repositories, key)
        return replace(disk.locate([Path(namespace)], name), namespace=namespace)

    def keys(self, name: str) -> list[str]:
        """The models that a name stands for; the name itself where there is none, which `locate` refuses then.

        Raises ServeError INVALID_ARG, the name can be no model's.
        """
        if not self._namespacing:
            return [name]
        check_model_name(name)
        found = [key_of(str(one), name) for one in self.repositories if self._has(key_of(str(one), name))]
        return found or [name]

    def member(self, name: str, namespace: str) -> str:
        """The model that an ensemble of a namespace means by a name."""
        if not self._namespacing:
            return name
        own = key_of(namespace, name)
        keys = self.keys(name)
        return own if own in keys else keys[0] if len(keys) == 1 else name

    def names(self) -> dict[str, bool]:
        """The names in all repositories, and whether each means a model that can be served. Raises as `survey`."""
        names = disk.list_names(self.repositories)
        return dict.fromkeys(names, True) if self._namespacing else names

    def absent(self, keys: Collection[str]) -> list[str]:
        """Those that are not in exactly one repository."""
        return [key for key in keys if not self._has(key)]

    def _has(self, key: str) -> bool:
        try:
            self.locate(key)
        except ServeError:
            return False
        return True
