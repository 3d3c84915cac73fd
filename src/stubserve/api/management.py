"""The answers of the management endpoints, for every protocol."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from stubserve.api.access import Access
from stubserve.api.inference_server import InferenceServer
from stubserve.errors import Code, ServeError, invalid, unavailable, unsupported
from stubserve.gpus import there_is_a_driver
from stubserve.inference.served_model import ServedModel
from stubserve.loading.control import ModelControl
from stubserve.memory import regions as refused
from stubserve.memory.server_memory import Memory
from stubserve.observability.logs import LogSettings
from stubserve.observability.metrics import ServerMetrics
from stubserve.parts import Part
from stubserve.repository.registry import Registry, parse_version
from stubserve.settings.groups import TRACE_LEVELS, TRACE_OFF

if TYPE_CHECKING:
    from stubserve.api.forwarded_headers import HeaderForwarding
    from stubserve.memory.client_regions import ClientRegions

SYSTEM_SHARED_MEMORY, CUDA_SHARED_MEMORY = "system_shared_memory", "cuda_shared_memory"
# In upstream's order. Clients look features up here.
EXTENSIONS = [
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    SYSTEM_SHARED_MEMORY,
    CUDA_SHARED_MEMORY,
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
]

# The kind of API of what changes which requests come
REPOSITORY = "model-repository"

_UINT32_MAX = (1 << 32) - 1
_INT32_MAX = (1 << 31) - 1
# A number as C reads it: text behind the digits does not count
_NUMBER = re.compile(r"\s*([+-]?[0-9]+)")

# Name -> field of TraceRules, least and most
_TRACE_NUMBERS = {
    "trace_rate": ("rate", 0, _UINT32_MAX),
    "trace_count": ("count", -1, _INT32_MAX),
    "log_frequency": ("log_frequency", 0, _UINT32_MAX),
}
TRACE_NUMBERS = tuple(_TRACE_NUMBERS)


class ServerFacts(InferenceServer, Protocol):
    """What management needs of the server."""

    name: str
    version: str
    # Whether the start failed, so that the server only reports it
    failed: bool
    exiting: bool
    # Readiness says no from now on, and connections are told to close; None in another program's process
    drain: Callable[[], None] | None

    @property
    def http_access(self) -> Access | None:
        """The rules for routes; None where everybody may use all."""

    @property
    def registry(self) -> Registry: ...

    @property
    def control(self) -> ModelControl: ...

    @property
    def log_settings(self) -> LogSettings: ...

    memory: Memory
    metrics: ServerMetrics
    # What optional features add; `part` finds the one in the folder of a name, and raises ServeError without it
    parts: Sequence[Part]

    def part(self, name: str) -> Any: ...

    def known_model(self, name: str, version: str) -> ServedModel: ...

    async def ready(self) -> bool: ...


def header_forwarding(pattern: str) -> HeaderForwarding | None:
    """Forwards headers by a pattern of their names; None without a pattern."""
    if not pattern:
        return None
    from stubserve.api.forwarded_headers import HeaderForwarding

    return HeaderForwarding(pattern)


def live(server: ServerFacts) -> bool:
    """Whether the server is alive in the sense of /v2/health/live. Raises ServeError while it exits."""
    refuse_while_exiting(server)
    return not server.failed


def refuse_while_exiting(server: ServerFacts) -> None:
    if server.exiting:
        raise unavailable("Server exiting")


def drain(server: ServerFacts) -> None:
    """Begins to drain the server, where somebody without rights could not do so. Raises ServeError."""
    access = server.http_access
    if server.drain is None:
        raise invalid("this server is a part of another program, and ends with it")
    if access is None or not access.guards(REPOSITORY):
        raise ServeError(
            Code.FORBIDDEN,
            f"the server is drained by a request only where '{REPOSITORY}' needs rights (--auth-token-file, or "
            f"--http-restricted-api={REPOSITORY}:<key>=<value>); else send it SIGUSR1",
        )
    server.drain()


def metadata_versions(server: ServerFacts, model: ServedModel, version: str) -> list[str]:
    """The versions in a model's metadata: the requested version, or all that are ready."""
    if version:
        return [str(model.version)]
    return [str(number) for number in server.registry.ready_versions(model.key)]


def statistics(registry: Registry, name: str, version: str) -> list[dict[str, Any]]:
    """The rows of `model_stats`; without a name those of all models. Raises ServeError."""
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


def extensions(server: ServerFacts) -> list[str]:
    missing = {CUDA_SHARED_MEMORY, SYSTEM_SHARED_MEMORY}
    if server.regions is not None:
        missing = set() if there_is_a_driver() else {CUDA_SHARED_MEMORY}
    return [extension for extension in EXTENSIONS if extension not in missing]


def region_rows(server: ServerFacts, name: str, on_device: bool = False) -> list[dict[str, str | int]]:
    """The status of a region of shared memory on the host, or on a GPU; without a name of all. Raises ServeError."""
    regions = server.regions
    if not name:
        return [] if regions is None else regions.rows(on_device)
    if regions is None:
        raise refused.unknown_cuda(name) if on_device else refused.unknown_system(name)
    return [regions.row(name, on_device)]


def register_region(server: ServerFacts, name: str, key: str, offset: int, nbytes: int) -> None:
    """Registers a region of shared memory. Raises ServeError."""
    if server.regions is None:
        raise refused.disabled()
    server.regions.register(name, key, offset, nbytes)


def cuda_regions(server: ServerFacts, name: str) -> ClientRegions:
    """Where a region of GPU memory can be registered. Raises ServeError where none can."""
    if server.regions is None:
        raise refused.disabled()
    if not there_is_a_driver():
        raise refused.no_gpu(name)
    return server.regions


def unregister_region(server: ServerFacts, name: str, on_device: bool = False) -> None:
    """Unregisters a region of shared memory; without a name all of its kind. Raises ServeError."""
    if server.regions is None:
        raise refused.disabled()
    server.regions.unregister(name, on_device)


def no_repository_name() -> ServeError:
    return unsupported("'repository_name' specification is not supported")


def fixed_log_file() -> ServeError:
    return unsupported("log file location can not be updated through network protocol")


def traced_model(server: ServerFacts, name: str) -> str:
    """The model of the requested trace settings; empty for the server's. Raises ServeError for an unknown model."""
    if name:
        try:
            server.find_model(name, "")
        except ServeError:
            raise invalid(f"Request for unknown model : {name}") from None
    return name


class TraceSettings(Protocol):
    """The settings of a model's traces; without a name the server's."""

    def to_dict(self, model: str) -> dict[str, list[str]]: ...

    def update(self, changes: Mapping[str, Any], model: str) -> None: ...


def tracing(server: ServerFacts) -> TraceSettings:
    """Raises ServeError where traces are not installed."""
    found: TraceSettings = server.part("traces")
    return found


def fixed_trace_file() -> ServeError:
    return unsupported("trace file location can not be updated through network protocol")


def trace_levels(names: Sequence[str]) -> dict[str, Any]:
    """The change to these levels; unknown names are ignored. Raises ServeError."""
    if TRACE_OFF in names:
        if len(names) > 1:
            raise invalid("Expect only one trace level 'OFF' is specified")
        return {"levels": ()}
    wanted = tuple(level for level in TRACE_LEVELS if level in names)
    return {"levels": wanted} if wanted else {}


def trace_number(name: str, text: str, space: str = "") -> dict[str, Any]:
    """The change to this number, a text as in the protocols. Raises ServeError."""
    field, least, most = _TRACE_NUMBERS[name]
    match = _NUMBER.match(text)
    if match is None or len(match[1]) > 20:
        if match is None:
            raise invalid(f"Unable to parse '{name}', got: {text}")
        raise invalid(f"Unable to parse '{name}', value is out of range [ {least}, {most} ], got: {text}")
    value = int(match[1])
    if name == "trace_count" and value < least:
        raise invalid(f"Unable to parse '{name}'. Expecting value >= -1, got:{space}{text}")
    if not least <= value <= most:
        raise invalid(f"Unable to parse '{name}', value is out of range [ {least}, {most} ], got: {text}")
    return {field: value}


def cleared_trace(name: str) -> dict[str, Any]:
    """The change that resets a setting."""
    return {"levels" if name == "trace_level" else _TRACE_NUMBERS[name][0]: None}
