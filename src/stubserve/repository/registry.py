"""The versions of models and their states; finds the version that a request means."""

from __future__ import annotations

import enum
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from stubserve.errors import invalid, not_found, overloaded, unavailable
from stubserve.inference.served_model import ServedModel
from stubserve.repository.folder import DUPLICATE_REASON, key_of, name_of

log = logging.getLogger("stubserve.repository")

# The most texts about one model that are known to be in the log
_MOST_TOLD = 16
# Up to so many models, and such a length of a name, it is looked for the one that was meant
_MOST_COMPARED, _LONGEST_COMPARED = 100, 64
# The reason of a version that was unloaded, or is no longer selected
UNLOADED = "unloaded"


class VersionState(enum.Enum):
    """The state of one version, as the repository index names it."""

    LOADING = "LOADING"
    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"
    UNLOADING = "UNLOADING"


@dataclass(slots=True)
class VersionEntry:
    """One version: its state, the reason for it (text for people), and the model while it serves."""

    version: int
    state: VersionState
    reason: str = ""
    model: ServedModel | None = None


@dataclass(slots=True)
class ModelEntry:
    """One model name. `reason` is set if the model as a whole cannot be served (no versions then).

    `is_empty` is set if that is for want of a version, although its configuration is right. `on_disk` is why the files
    on disk could not replace the serving model; empty if there is no fault. `told` are the log's texts about failed
    loads of the present files.
    """

    name: str
    reason: str = ""
    is_empty: bool = False
    on_disk: str = ""
    told: set[str] = field(default_factory=set)
    versions: dict[int, VersionEntry] = field(default_factory=dict)


class Registry:
    """All models by key: by name, or with `namespacing` by namespace and name (`repositories`); clients know names.

    `pending` are the `expected` models of the server's start that are not loaded yet: a request for one of them gets
    that as its answer, not that the model is unknown. So does a request for any model until they are `listed`.
    `names_others`: who asks for a model that is unknown may be told the name of another, because all may list them.
    """

    def __init__(self, namespacing: bool = False, names_others: bool = False) -> None:
        self._namespacing = namespacing
        self._names_others = names_others
        self.models: dict[str, ModelEntry] = {}
        self.pending: set[str] = set()
        self.expected = 0
        self.listed = True
        # Whether failed loads are tried again and again, without a request
        self.polled = False
        # (name, version text) -> the result of `find`; dropped whenever a state changes
        self._found: dict[tuple[str, str], ServedModel] = {}

    def entry(self, name: str) -> ModelEntry:
        return self.models.setdefault(name, ModelEntry(name_of(name, self._namespacing)))

    def log_failure(self, name: str, text: str, level: int = logging.ERROR) -> None:
        """Logs why a load failed. With `polled`, the same text only once until `tell_anew`."""
        if self.polled:
            told = self.entry(name).told
            if text in told:
                return
            if len(told) == _MOST_TOLD:
                told.clear()
            told.add(text)
        log.log(level, "%s", text, stacklevel=2)

    def tell_anew(self, name: str) -> None:
        """The files of a model have changed: its next failure is logged, even with a known text."""
        if name in self.models:
            self.models[name].told.clear()

    def resolve(self, name: str, namespace: str = "") -> str:
        """The key of the model that a name means within a namespace; the name itself if there is no such model."""
        return meant(name, namespace, self.keys(name)) if self._namespacing else name

    def keys(self, name: str) -> list[str]:
        """The keys of all known models of a name."""
        if not self._namespacing:
            return [name]
        return [key for key in (*self.models, *self.pending) if key != name and name_of(key, True) == name]

    def in_namespace(self, namespace: str) -> Namespace:
        """The models as models of this namespace see them."""
        return Namespace(self, namespace)

    def expect(self, names: Collection[str]) -> None:
        """The server's start is going to load these models, and has looked at all repositories."""
        self.listed = True
        self.pending |= set(names)
        self.expected += len(names)

    def set_version(
        self, name: str, version: int, state: VersionState, reason: str = "", model: ServedModel | None = None
    ) -> VersionEntry:
        self._found.clear()
        entry = self.entry(name).versions[version] = VersionEntry(version, state, reason, model)
        return entry

    def drop_version(self, name: str, version: int) -> None:
        """Forgets a version, and with the last one the model."""
        entry = self.models[name]
        del entry.versions[version]
        if not entry.versions and not entry.reason:
            self.forget(name)

    def forget(self, name: str) -> None:
        self._found.clear()
        self.models.pop(name, None)

    def has(self, name: str, entry: VersionEntry) -> bool:
        model = self.models.get(name)
        return model is not None and model.versions.get(entry.version) is entry

    def serves(self, name: str, version: int) -> bool:
        """Whether requests for this version are accepted."""
        entry = self.models.get(name)
        return entry is not None and version in entry.versions and entry.versions[version].model is not None

    def find(self, name: str, version: str) -> ServedModel:
        """The model version that a client means; for an empty version the highest that is ready.

        Raises ServeError with upstream's texts: NOT_FOUND for unknown names and versions, UNAVAILABLE for a version
        that is not ready, INVALID_ARG for a version that is no number.
        """
        model = self._found.get((name, version))
        if model is None:
            model = self._look_up(name, version)
            # There are endless other ways to write the same number.
            if not version or version == str(model.version):
                self._found[name, version] = model
        return model

    def _look_up(self, name: str, version: str) -> ServedModel:
        number = parse_version(version)
        if not self.listed:
            raise overloaded(f"model '{name}' may be among those that the server is about to load")
        if self._namespacing and name not in self.models and name not in self.pending:
            keys = dict.fromkeys(self.keys(name))
            if not keys:
                raise invalid(f"Request for unknown model: '{name}' is not found")
            if len(keys) > 1:
                raise invalid(
                    f"There are {len(keys)} identifiers of model '{name}' in global map, model namespace must be "
                    "provided to resolve ambiguity."
                )
            return self._of_key(next(iter(keys)), name, number)
        return self._of_key(name, name, number)

    def _of_key(self, key: str, name: str, number: int | None) -> ServedModel:
        entry = self.models.get(key)
        if key in self.pending and not self.ready_versions(key):
            raise overloaded(f"model '{name}' is loading")
        if entry is None or not entry.versions:
            raise not_found(f"Request for unknown model: '{name}' is not found{self._alike(name)}")
        if number is None:
            ready = [one.model for one in entry.versions.values() if one.model is not None]
            if not ready:
                raise not_found(f"Request for unknown model: '{name}' has no available versions")
            return max(ready, key=lambda model: model.version)
        found = entry.versions.get(number)
        if found is None:
            raise not_found(f"Request for unknown model: '{name}' version {number} is not found")
        if found.model is None:
            raise unavailable(f"Request for unknown model: '{name}' version {number} is not at ready state")
        return found.model

    def _alike(self, name: str) -> str:
        """A question behind upstream's text. To compare the names of many models would take too long."""
        if not self._names_others or len(self.models) > _MOST_COMPARED or len(name) > _LONGEST_COMPARED:
            return ""
        meant = get_close_matches(name, [one for one in self.models if self.ready_versions(one)], 1)
        return f". Did you mean '{meant[0]}'?" if meant else ""

    def serving(self) -> list[ServedModel]:
        """Every model version that is ready, by name and version."""
        return [
            version.model
            for _, entry in sorted(self.models.items())
            for _, version in sorted(entry.versions.items())
            if version.model is not None
        ]

    def ready_versions(self, name: str) -> list[int]:
        entry = self.models.get(name)
        return sorted(one.version for one in entry.versions.values() if one.model) if entry else []

    def index(self, only_ready: bool) -> list[dict[str, Any]]:
        """The repository index: one row per version, sorted by name. A version without live stubs has the reason."""
        rows: list[dict[str, Any]] = []
        for entry in sorted(self.models.values(), key=lambda entry: entry.name):
            name = entry.name
            if not entry.versions and not only_ready:
                row = {"name": name}
                if entry.reason:
                    row |= {"state": VersionState.UNAVAILABLE.value, "reason": entry.reason}
                rows.append(row)
            for number, version in sorted(entry.versions.items()):
                state, reason = version.state, version.reason
                if version.model is not None and version.model.down():
                    state, reason = VersionState.UNAVAILABLE, version.model.why_not_ready()
                if only_ready and state is not VersionState.READY:
                    continue
                row = {"name": name, "version": str(number), "state": state.value}
                if reason:
                    row["reason"] = reason
                rows.append(row)
        return rows

    def index_with(self, names: Mapping[str, bool]) -> list[dict[str, Any]]:
        """The whole index, with the models on disk; False for a model that is in several repositories."""
        rows = self.index(only_ready=False)
        known = {row["name"] for row in rows}
        # A model that was unloaded and then deleted is not listed.
        rows = [row for row in rows if row["name"] in names or row.get("reason") != UNLOADED]
        for name in names.keys() - known:
            row = {"name": name}
            if not names[name]:
                row |= {"state": VersionState.UNAVAILABLE.value, "reason": DUPLICATE_REASON}
            rows.append(row)
        return sorted(rows, key=lambda row: row["name"])


class Namespace:
    """The meaning of names for models of a namespace: models beside them, or the only one elsewhere."""

    def __init__(self, registry: Registry, namespace: str) -> None:
        self._registry = registry
        self._namespace = namespace

    def find(self, name: str, version: str) -> ServedModel:
        return self._registry.find(self._registry.resolve(name, self._namespace), version)


def meant(name: str, namespace: str, keys: Sequence[str]) -> str:
    """The key that a name means within a namespace, among `keys`: the own one, or the only one elsewhere."""
    own = key_of(namespace, name)
    return own if own in keys else keys[0] if len(keys) == 1 else name


def parse_version(text: str) -> int | None:
    """A client's version; None for the empty text. Raises ServeError (INVALID_ARG)."""
    if not text:
        return None
    try:
        number = int(text)
    except ValueError:
        number = 2**63
    if number >= 2**63:
        raise invalid(
            f"failed to get model version from specified version string '{text}' (details: stol), "
            "version should be an integral value > 0"
        )
    if number < 0:
        raise invalid(f"invalid model version specified '{text}' , version should be an integral value > 0")
    return number
