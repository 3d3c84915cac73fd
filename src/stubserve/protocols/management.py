"""What the management endpoints answer, for every protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from stubserve.errors import ServeError, invalid, unavailable, unsupported
from stubserve.inference.served_model import ServedModel
from stubserve.inference.version import parse_version
from stubserve.protocols.http.access import HttpAccess
from stubserve.protocols.serving import Ingress

# In upstream's order; clients look features up here.
EXTENSIONS = [
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
]


class ModelRegistry(Protocol):
    """What management needs of the registry."""

    def serving(self) -> Sequence[ServedModel]: ...

    def ready_versions(self, name: str) -> list[int]: ...


class ControlForClients(Protocol):
    """Loading and unloading. All raise ServeError."""

    async def load(self, name: str, config: str | None = None, files: Mapping[str, bytes] | None = None) -> None: ...

    async def unload(self, name: str, dependents: bool) -> None: ...

    async def index(self, only_ready: bool) -> list[dict[str, Any]]: ...


class ChangeableLog(Protocol):
    """The server's log settings."""

    def to_dict(self) -> dict[str, Any]: ...

    def update(self, changes: Mapping[str, Any]) -> None: ...


class ServerFacts(Ingress, Protocol):
    """What management needs of the server."""

    name: str
    version: str
    loaded: bool
    # Whether it could not be started, and only tells so
    failed: bool
    exiting: bool

    # Who may use which routes; None where everybody may use all
    http_access: HttpAccess | None

    @property
    def registry(self) -> ModelRegistry: ...

    @property
    def control(self) -> ControlForClients: ...

    @property
    def log_settings(self) -> ChangeableLog: ...

    async def ready(self) -> bool: ...


def live(server: ServerFacts) -> bool:
    """Whether the server is alive in the sense of /v2/health/live. Raises ServeError while it exits."""
    refuse_while_exiting(server)
    return not server.failed


def refuse_while_exiting(server: ServerFacts) -> None:
    if server.exiting:
        raise unavailable("Server exiting")


def metadata_versions(server: ServerFacts, model: ServedModel, version: str) -> list[str]:
    """The versions that a model's metadata names: the one asked for, or all that are ready."""
    if version:
        return [str(model.version)]
    return [str(number) for number in server.registry.ready_versions(model.key)]


def statistics(registry: ModelRegistry, name: str, version: str) -> list[dict[str, Any]]:
    """The rows of `model_stats`; of all models without a name. Raises ServeError."""
    models = registry.serving()
    if name:
        models = [model for model in models if model.name == name]
        if not models:
            raise invalid(f"requested model '{name}' is not available")
        number = parse_version(version)
        if number is not None:
            models = [model for model in models if model.version == number]
            if not models:
                raise invalid(f"requested model version is not available for model '{name}'")
    return [model.statistics.to_dict(model.name, model.version) for model in models]


def no_repository_name() -> ServeError:
    return unsupported("'repository_name' specification is not supported")


def fixed_log_file() -> ServeError:
    return unsupported("log file location can not be updated through network protocol")


def not_offered(what: str) -> ServeError:
    """`what` is the path of an endpoint."""
    return unsupported(f"{what} is not offered by this release of stubserve")
