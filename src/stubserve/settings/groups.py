"""The operator's settings, in groups: each part of the server gets its own group and sees no other.

Sizes are in bytes and times in seconds unless a name says otherwise. `flags` makes the settings from a command line.
The help of its flag (`flags/table.py`) says what a field means; comments here only add to that.
A group is a Struct: making its class takes a fiftieth of the time that a dataclass takes, and every start waits for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from stubserve.gpus import LEAST_CAPABILITY
from stubserve.settings.cache import CacheSettings
from stubserve.settings.fronts import GrpcSettings, HttpSettings, SageMakerSettings, VertexSettings

# Forms of traces; and their levels: the times of a request, its tensors, and that which removes those before it
TRITON, OPENTELEMETRY = "triton", "opentelemetry"
TIMESTAMPS, TENSORS, TRACE_OFF = "TIMESTAMPS", "TENSORS", "OFF"
TRACE_LEVELS = (TIMESTAMPS, TENSORS)


class TracingSettings(Struct, frozen=True):
    """What is traced, and where to. `config` has (mode or "" for all, setting, value): all of --trace-config together.

    The other flags about tracing are older names for some of these settings.
    """

    config: tuple[tuple[str, str, str], ...] = ()

    def value(self, mode: str, setting: str, default: str) -> str:
        """The last value of a setting."""
        values = [value for one, name, value in self.config if (one, name) == (mode, setting)]
        return values[-1] if values else default

    @property
    def mode(self) -> str:
        return self.value("", "mode", TRITON)

    @property
    def levels(self) -> frozenset[str]:
        """What is kept of a request: TIMESTAMPS, TENSORS. A level of OFF removes those before it."""
        found: set[str] = set()
        for mode, name, value in self.config:
            if (mode, name) == ("", "level"):
                found = set() if value == TRACE_OFF else found | {TIMESTAMPS if value in ("MIN", "MAX") else value}
        return frozenset(found)

    @property
    def rate(self) -> int:
        return int(self.value("", "rate", "1000"))

    @property
    def count(self) -> int:
        return int(self.value("", "count", "-1"))

    @property
    def file(self) -> str:
        return self.value(TRITON, "file", "")

    @property
    def log_frequency(self) -> int:
        return int(self.value(TRITON, "log-frequency", "0"))

    @property
    def url(self) -> str:
        return self.value(OPENTELEMETRY, "url", "http://localhost:4318/v1/traces")

    @property
    def resource(self) -> dict[str, str]:
        """The attributes of the server in spans."""
        texts = [text for mode, name, text in self.config if (mode, name) == (OPENTELEMETRY, "resource")]
        return {name: value for name, _, value in (text.partition("=") for text in texts)}

    @property
    def max_queue_size(self) -> int:
        return self._bsp("max_queue_size", "2048")

    @property
    def schedule_delay_ms(self) -> int:
        return self._bsp("schedule_delay", "5000")

    @property
    def max_export_batch_size(self) -> int:
        return self._bsp("max_export_batch_size", "512")

    def options(self) -> dict[str, str]:
        """The settings of OpenTelemetry, under the names that the protocols show."""
        resource = {"service.name": "triton-inference-server", **self.resource}
        return {
            "url": self.url,
            "resource": ",".join(f"{name}={value}" for name, value in resource.items()),
            "bsp_max_export_batch_size": str(self.max_export_batch_size),
            "bsp_schedule_delay": str(self.schedule_delay_ms),
            "bsp_max_queue_size": str(self.max_queue_size),
        }

    def _bsp(self, name: str, default: str) -> int:
        default = os.environ.get(f"OTEL_BSP_{name.upper()}", default)
        return int(self.value(OPENTELEMETRY, f"bsp_{name}", default))


# Modes of model control, and the name for all models in --load-model
NONE, EXPLICIT, POLL = "none", "explicit", "poll"
ALL_MODELS = "*"
DEFAULT_BACKEND_DIRECTORY = Path("/opt/tritonserver/backends")
DEFAULT_AGENT_DIRECTORY = Path("/opt/tritonserver/repoagents")


def default_shm_limit() -> int:
    """Half of the memory that this process may use: that of the machine, or of the container if it is less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        allowed = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if allowed != "max":
            total = min(total, int(allowed))
    except (OSError, ValueError):
        pass  # no such limit here
    return int(total // 2)


class RepositorySettings(Struct, frozen=True):
    """The models to serve, and the control over them (the start, requests, or the disk)."""

    paths: tuple[Path, ...] = ()
    remotes: tuple[str, ...] = ()
    remote_cache: Path | None = None
    control_mode: str = NONE
    load_models: tuple[str, ...] = ()
    poll_secs: int = 15
    load_threads: int = 4
    load_retries: int = 0
    namespacing: bool = False
    agent_directory: Path = DEFAULT_AGENT_DIRECTORY
    config_name: str = ""
    disable_auto_complete: bool = False
    gpu_to_cpu: bool = False
    least_capability: float = LEAST_CAPABILITY
    # With poll: look whenever a file changes, instead of every `poll_secs`
    notices_changes: bool = False


class VariableRule(Struct, frozen=True):
    """Whether stubs see a variable of the server's environment: those of one `model`, or, without it, of all models.

    `pattern` is a name, in which `*` stands for any characters.
    """

    pattern: str
    shown: bool = False
    model: str = ""


# Variables that only the server needs. Half of AWS's keys would be worse than none, so all three are withheld.
_SECRETS = (
    "AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AZURE_STORAGE_KEY TRITONCACHE_REDIS_* "
    "OTEL_EXPORTER_OTLP_*HEADERS STUBSERVE_ARGS"
)
WITHHELD = tuple(map(VariableRule, _SECRETS.split()))


class InstanceSettings(Struct, frozen=True):
    """What models run in, and how their stubs are kept alive. `backend_config` has (backend or "", setting, value).

    `gpu_pools` has (GPU, most bytes of a stub's pool there). `pinned_memory` is for each stub. `gpu_load_limits`
    has (GPU, the part of its memory that may be in use after a load).
    """

    backend_directory: Path = DEFAULT_BACKEND_DIRECTORY
    backend_config: tuple[tuple[str, str, str], ...] = ()
    environment_cache: Path | None = None
    debug_models: tuple[str, ...] = ()
    # A folder with the chat template of models that have none of their own
    tokenizer: Path | None = None
    restart_limit: int = 10
    restart_wait_secs: float = 10.0
    quarantine_secs: float = 0.0
    execute_timeout_secs: float = 0.0
    check_outputs: str = "first"
    debug_all: bool = False
    sleep_after_secs: float = 0.0
    start_asleep: bool = False
    max_queue_size: int = 0
    stub_user: str = ""
    stub_memory_limit: int = 0
    stub_sandbox: frozenset[str] = frozenset()
    stub_writable: tuple[Path, ...] = ()
    stub_new_privileges: bool = False
    stub_env: tuple[VariableRule, ...] = ()
    gpu_pools: tuple[tuple[int, int], ...] = ()
    peer_access: bool = True
    pinned_memory: int = 256 << 20
    gpu_load_limits: tuple[tuple[int, float], ...] = ()

    def gives_terminal(self, model: str) -> bool:
        """Whether the stubs of a model have the server's terminal, for a debugger."""
        return self.debug_all or model in self.debug_models

    def backend_setting(self, backend: str, setting: str) -> str | None:
        """A setting for a backend's models: the last value for this backend, else the last for all backends."""
        values = {(one, name): value for one, name, value in self.backend_config}
        return values.get((backend, setting), values.get(("", setting)))

    def backend_settings(self, backend: str) -> dict[str, str]:
        """All settings for a backend's models, by name."""
        names = dict.fromkeys(name for one, name, _ in self.backend_config if one in (backend, ""))
        values = {name: self.backend_setting(backend, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}


class ClientSettings(Struct, frozen=True):
    """What a client may take of the server's time and memory: bytes per second, seconds (0: no limit), percent."""

    min_rate: int = 500
    request_timeout_secs: int = 3600
    share: int = 50
    send_timeout_secs: int = 60
    idle_timeout_secs: int = 3600
    max_connections: int = 0
    shm: bool = False
    fair_queues: str = "off"


class AuthSettings(Struct, frozen=True):
    """Access by the tokens of a file. Without a file, and for the open kinds of APIs, everybody may ask."""

    token_file: Path | None = None
    open_kinds: frozenset[str] = frozenset()


class LatencySettings(Struct, frozen=True):
    """The settings of `--metrics-config`; `quantiles` are those of the summaries."""

    counter_latencies: bool = True
    histogram_latencies: bool = False
    summary_latencies: bool = False
    quantiles: tuple[float, ...] = (0.5, 0.9, 0.95, 0.99, 0.999)


class MetricsSettings(Struct, frozen=True):
    """What is measured, and where it can be read."""

    allow: bool = True
    allow_cpu: bool = True
    allow_gpu: bool = True
    address: str = ""
    port: int = 8002
    interval_ms: int = 2000
    status_page: bool = True
    config: tuple[Mapping[str, Any], ...] = ()

    @property
    def latencies(self) -> LatencySettings:
        return LatencySettings(**{name: value for setting in self.config for name, value in setting.items()})


class RateLimitSettings(Struct, frozen=True):
    """Whether instances share resources: off or execution_count. `resources` are (name, count, device or None)."""

    mode: str = "off"
    resources: tuple[tuple[str, int, int | None], ...] = ()

    @property
    def on(self) -> bool:
        return self.mode != "off"


class LoggingSettings(Struct, frozen=True):
    """What is logged, and how."""

    verbose: int = 0
    info: bool = True
    warning: bool = True
    error: bool = True
    format: str = "default"
    file: str = ""
    access: bool = False


class Settings(Struct, frozen=True):
    """All settings of a server: the groups, and settings of the whole. `notices` are remarks for the log."""

    id: str = "triton"
    exit_on_error: bool = True
    strict_readiness: bool = True
    exit_timeout_secs: int = 30
    exit_delay_secs: int = 0
    shed_on_memory_pressure: bool = False
    # For authors of models: see `for_development`
    dev: bool = False
    host: str = ""
    shm_limit: int = field(default_factory=default_shm_limit)
    notices: tuple[str, ...] = ()
    repository: RepositorySettings = RepositorySettings()
    instances: InstanceSettings = InstanceSettings()
    clients: ClientSettings = ClientSettings()
    auth: AuthSettings = AuthSettings()
    http: HttpSettings = field(default_factory=HttpSettings)
    grpc: GrpcSettings = field(default_factory=GrpcSettings)
    metrics: MetricsSettings = MetricsSettings()
    logging: LoggingSettings = LoggingSettings()
    tracing: TracingSettings = field(default_factory=TracingSettings)
    sagemaker: SageMakerSettings = field(default_factory=SageMakerSettings)
    vertex: VertexSettings = field(default_factory=VertexSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
    rate_limit: RateLimitSettings = RateLimitSettings()

    def for_development(self, has_terminal: bool) -> Settings:
        """For developing models: saved files are loaded, wrong answers are refused, any model may be debugged.

        A model that does not load does not end the server: the next save may mend it.
        """
        repository = replace(self.repository, control_mode=POLL, notices_changes=True)
        instances = replace(self.instances, check_outputs="refuse", debug_all=has_terminal)
        return replace(self, exit_on_error=False, repository=repository, instances=instances)

    def with_addresses(self) -> Settings:
        """With an address for each port whose own flag names none."""
        host = self.host or ("127.0.0.1" if self.dev else "0.0.0.0")
        http = replace(self.http, address=self.http.address or host)
        grpc = replace(self.grpc, address=self.grpc.address or host)
        metrics = replace(self.metrics, address=self.metrics.address or self.host or http.address)
        return replace(self, http=http, grpc=grpc, metrics=metrics)

    @property
    def connection_share_bytes(self) -> int:
        """--connection-share in bytes of shared memory."""
        return self.shm_limit * self.clients.share // 100
