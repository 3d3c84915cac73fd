"""What the operator can set, and how a command line becomes it: one table of flags, Triton's spelling and defaults.

Flags of parts that stubserve does not have (yet) are known by name and refused with a plain word, never ignored. Those
that cannot matter here (a thread count of a thread pool that does not exist) are accepted and have no effect; the table
says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

# What can be restricted, as Triton calls it.
RESTRICTED_KINDS = (
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
)
# Modes of model control, and what stands for every model in --load-model
NONE, EXPLICIT, POLL = "none", "explicit", "poll"
ALL_MODELS = "*"
DEFAULT_BACKEND_DIRECTORY = Path("/opt/tritonserver/backends")


class UsageError(Exception):
    """The command line is wrong; the text says how."""


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """What `--metrics-config` can set; `quantiles` are those of the summaries."""

    counter_latencies: bool = True
    histogram_latencies: bool = False
    summary_latencies: bool = False
    quantiles: tuple[float, ...] = (0.5, 0.9, 0.95, 0.99, 0.999)


@dataclass(slots=True)
class Settings:
    """Everything a server is started with. Sizes in bytes, times in seconds."""

    model_repository: list[Path] = field(default_factory=list)
    id: str = "triton"
    # Models
    exit_on_error: bool = True
    strict_readiness: bool = True
    disable_auto_complete_config: bool = False
    model_control_mode: str = NONE
    load_model: list[str] = field(default_factory=list)
    repository_poll_secs: int = 15
    model_load_thread_count: int = 4
    model_config_name: str = ""
    backend_directory: Path = DEFAULT_BACKEND_DIRECTORY
    environment_cache: Path | None = None
    backend_config: list[tuple[str, str, str]] = field(default_factory=list)
    debug_model: list[str] = field(default_factory=list)
    stub_restart_limit: int = 10
    shm_limit: int = 0
    exit_timeout_secs: int = 30
    # What a client may take of the server's time and memory; rates in bytes per second, the share in percent
    request_min_rate: int = 500
    request_timeout_secs: int = 3600
    connection_share: int = 50
    send_timeout_secs: int = 60
    idle_timeout_secs: int = 3600
    # HTTP
    allow_http: bool = True
    http_address: str = "0.0.0.0"
    http_port: int = 8000
    reuse_http_port: bool = False
    http_max_input_size: int = 64 << 20
    http_header_forward_pattern: str = ""
    # gRPC; times in milliseconds
    allow_grpc: bool = True
    grpc_address: str = "0.0.0.0"
    grpc_port: int = 8001
    reuse_grpc_port: bool = False
    grpc_header_forward_pattern: str = ""
    grpc_restricted_protocol: list[dict[str, tuple[str, str]]] = field(default_factory=list)
    grpc_transport: str = "native"
    grpc_infer_response_compression_level: str = "none"
    grpc_use_ssl: bool = False
    grpc_use_ssl_mutual: bool = False
    grpc_server_cert: str = ""
    grpc_server_key: str = ""
    grpc_root_cert: str = ""
    grpc_keepalive_time: int = 7_200_000
    grpc_keepalive_timeout: int = 20_000
    grpc_keepalive_permit_without_calls: bool = False
    grpc_http2_max_pings_without_data: int = 2
    grpc_http2_min_recv_ping_interval_without_data: int = 300_000
    grpc_http2_max_ping_strikes: int = 2
    grpc_max_connection_age: int | None = None
    grpc_max_connection_age_grace: int | None = None
    # Metrics; no address means that of HTTP
    allow_metrics: bool = True
    allow_cpu_metrics: bool = True
    metrics_address: str = ""
    metrics_port: int = 8002
    metrics_interval_ms: int = 2000
    metrics_config: list[dict[str, Any]] = field(default_factory=list)
    # Logging
    log_verbose: int = 0
    log_info: bool = True
    log_warning: bool = True
    log_error: bool = True
    log_format: str = "default"
    log_file: str = ""
    # What the log should say about the command line
    notices: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.shm_limit == 0:
            self.shm_limit = default_shm_limit()
        if not self.metrics_address:
            self.metrics_address = self.http_address

    @property
    def connection_share_bytes(self) -> int:
        """--connection-share as bytes of shared memory."""
        return self.shm_limit * self.connection_share // 100

    @property
    def metrics_options(self) -> MetricsOptions:
        """All of --metrics-config together."""
        chosen: dict[str, Any] = {}
        for setting in self.metrics_config:
            chosen |= setting
        return MetricsOptions(**chosen)


def default_shm_limit() -> int:
    """Half of the memory that this process may use: of the machine, or of the container where that is less."""
    total = psutil.virtual_memory().total
    try:
        allowed = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if allowed != "max":
            total = min(total, int(allowed))
    except (OSError, ValueError):
        pass  # no such limit here
    return int(total // 2)


def parse_bool(text: str) -> bool:
    """Triton's booleans: true, on, 1, false, off, 0 in any case. Raises UsageError."""
    value = text.lower()
    if value in ("true", "on", "1"):
        return True
    if value in ("false", "off", "0"):
        return False
    raise UsageError(f"invalid value for bool option: {text}")


def parse_int(text: str) -> int:
    """A decimal number of 32 bits. Raises UsageError."""
    try:
        value = int(text)
    except ValueError:
        raise UsageError(f"Invalid option value. Got {text}") from None
    if not -(2**31) <= value < 2**31:
        raise UsageError(f"Provided option value is out of bound. Got {text}")
    return value


def parse_size(text: str) -> int:
    """Bytes, as a number with an optional suffix: 512M, 8G. Raises UsageError."""
    units = {"K": 10, "M": 20, "G": 30, "T": 40}
    digits, shift = (text[:-1], units[text[-1].upper()]) if text[-1:].upper() in units else (text, 0)
    if not digits.isdecimal() or int(digits) == 0:
        raise UsageError(f"a size is a positive number of bytes, with K, M, G or T behind it if you like. Got {text}")
    return int(digits) << shift


def parse_restricted(text: str) -> dict[str, tuple[str, str]]:
    """`<kind>,<kind>:<key>=<value>` as kind -> (key, value). Raises UsageError."""
    kinds, colon, assignment = text.partition(":")
    key, equals, value = assignment.partition("=")
    if not colon or not equals or not key or not value:
        raise UsageError(
            "--grpc-restricted-protocol option format is '<protocol>,<protocol>,...:<key>=<value>'. Got " + text
        )
    names = kinds.split(",")
    for kind in names:
        if kind not in RESTRICTED_KINDS:
            raise UsageError(f"unknown restricted api '{kind}'")
        if names.count(kind) > 1:
            raise UsageError(f"restricted api '{kind}' can not be specified in multiple config groups")
    return dict.fromkeys(names, (key, value))


def parse_backend_config(text: str) -> tuple[str, str, str]:
    """`[<backend>,]<setting>=<value>` as (backend, setting, value); the backend is empty for all. Raises UsageError."""
    backend, comma, assignment = text.partition(",")
    if not comma:
        backend, assignment = "", text
    setting, equals, value = assignment.partition("=")
    if not equals or not setting or not value or (comma and not backend):
        raise UsageError("--backend-config option format is '<backend name>,<setting>=<value>'. Got " + text)
    return backend, setting, value


def parse_metrics_config(text: str) -> dict[str, Any]:
    """`<setting>=<value>` as a field of MetricsOptions. Raises UsageError."""
    setting, equals, value = text.partition("=")
    if not equals or not setting or not value:
        raise UsageError("--metrics-config option format is '<setting>=<value>'. Got " + text)
    if setting in ("counter_latencies", "histogram_latencies", "summary_latencies"):
        return {setting: parse_bool(value)}
    if setting != "summary_quantiles":
        raise UsageError(
            "--metrics-config has the settings counter_latencies, histogram_latencies, summary_latencies and "
            f"summary_quantiles. Got {text}"
        )
    try:
        # "0.5:0.05,0.9:0.01": quantile and allowed error. The error is always smaller here.
        quantiles = tuple(float(pair.partition(":")[0]) for pair in value.split(","))
    except ValueError:
        quantiles = ()
    if not quantiles or not all(0 <= quantile <= 1 for quantile in quantiles):
        raise UsageError(f"summary_quantiles are '<quantile>:<error>,...' with quantiles from 0 to 1. Got {value}")
    return {"quantiles": quantiles}
