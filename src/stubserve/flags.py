"""The flags of `stubserve serve`: which there are, what they take, and which belong to parts that are not here."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stubserve.protocols.re2 import compile_re2
from stubserve.settings import (
    EXPLICIT,
    NONE,
    POLL,
    Settings,
    UsageError,
    parse_backend_config,
    parse_bool,
    parse_int,
    parse_metrics_config,
    parse_restricted,
    parse_size,
)


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. `many` flags may be repeated and collect; a `switch` needs no value (bare means true)."""

    name: str
    parse: Callable[[str], Any]
    help: str
    many: bool = False
    switch: bool = False
    setting: str = ""

    @property
    def attribute(self) -> str:
        return self.setting or self.name.replace("-", "_")


FLAGS = (
    Flag("model-repository", Path, "A folder of models. May be given several times.", many=True),
    Flag("model-store", Path, "Same as --model-repository.", many=True, setting="model_repository"),
    Flag("id", str, "The server's name in its metadata (triton)."),
    Flag("exit-on-error", parse_bool, "Exit when a model fails to load (true).", switch=True),
    Flag("strict-readiness", parse_bool, "Ready only when every model is (true).", switch=True),
    Flag(
        "disable-auto-complete-config",
        parse_bool,
        "Take config.pbtxt as it is, never ask the model (false).",
        switch=True,
    ),
    Flag("model-control-mode", str.lower, "none, explicit (load by request) or poll (load what changes) (none)."),
    Flag("load-model", str, "A model to load at the start, * for all, with explicit model control.", many=True),
    Flag("repository-poll-secs", parse_int, "Seconds between two looks for changes, with model control by poll (15)."),
    Flag("model-load-thread-count", parse_int, "Model versions that load at the same time (4)."),
    Flag("model-config-name", str, "Use configs/<name>.pbtxt of a model where it exists."),
    Flag("backend-directory", Path, "Backends written in Python: <name>/model.py (/opt/tritonserver/backends)."),
    Flag("backend-config", parse_backend_config, "[<backend>,]<setting>=<value>, passed to the backend.", many=True),
    Flag("exit-timeout-secs", parse_int, "How long a stopping server waits for requests and models (30)."),
    Flag("allow-http", parse_bool, "Serve HTTP (true).", switch=True),
    Flag("http-address", str, "The address to serve HTTP on (0.0.0.0)."),
    Flag("http-port", parse_int, "The port to serve HTTP on (8000)."),
    Flag("reuse-http-port", parse_bool, "Let several servers share the port (false).", switch=True),
    Flag("http-max-input-size", parse_int, "Largest JSON, compressed or raw request, in bytes (67108864)."),
    Flag("http-header-forward-pattern", str, "HTTP headers whose names match become request parameters."),
    Flag("allow-grpc", parse_bool, "Serve gRPC (true).", switch=True),
    Flag("grpc-address", str, "The address to serve gRPC on (0.0.0.0)."),
    Flag("grpc-port", parse_int, "The port to serve gRPC on (8001)."),
    Flag("reuse-grpc-port", parse_bool, "Let several servers share the port (false).", switch=True),
    Flag("grpc-header-forward-pattern", str, "Metadata whose keys match become request parameters."),
    Flag("grpc-restricted-protocol", parse_restricted, "<protocol>,...:<key>=<value> that metadata must have.", True),
    Flag("grpc-infer-response-compression-level", str, "none, low, medium or high (none)."),
    Flag("grpc-use-ssl", parse_bool, "Serve gRPC over TLS (false).", switch=True),
    Flag("grpc-use-ssl-mutual", parse_bool, "TLS, and clients need a certificate (false).", switch=True),
    Flag("grpc-server-cert", str, "The server's certificate, a PEM file."),
    Flag("grpc-server-key", str, "The certificate's private key, a PEM file."),
    Flag("grpc-root-cert", str, "Root certificates of clients, a PEM file."),
    Flag("grpc-keepalive-time", parse_int, "Milliseconds without traffic until a client is pinged (7200000)."),
    Flag("grpc-keepalive-timeout", parse_int, "Milliseconds that a ping may go unanswered (20000)."),
    Flag("grpc-keepalive-permit-without-calls", parse_bool, "Ping without running calls (false).", switch=True),
    Flag("grpc-http2-max-pings-without-data", parse_int, "Pings without data in between (2)."),
    Flag("grpc-http2-min-recv-ping-interval-without-data", parse_int, "Milliseconds between clients' pings (300000)."),
    Flag("grpc-http2-max-ping-strikes", parse_int, "Too early pings that a client may send (2)."),
    Flag("grpc-max-connection-age", parse_int, "Milliseconds that a connection may live (no limit)."),
    Flag("grpc-max-connection-age-grace", parse_int, "Milliseconds more for its calls to end (no limit)."),
    Flag("allow-metrics", parse_bool, "Serve metrics (true).", switch=True),
    Flag("allow-cpu-metrics", parse_bool, "Metrics of the machine's CPU and memory (true).", switch=True),
    Flag("metrics-address", str, "The address to serve metrics on (that of HTTP)."),
    Flag("metrics-port", parse_int, "The port to serve metrics on (8002)."),
    Flag("metrics-interval-ms", parse_int, "How long CPU utilization is measured over, at least (2000)."),
    Flag("metrics-config", parse_metrics_config, "<setting>=<value>, as summary_latencies=true.", many=True),
    Flag("log-verbose", parse_int, "Verbose logging from level 1 on (0)."),
    Flag("log-info", parse_bool, "Log info messages (true).", switch=True),
    Flag("log-warning", parse_bool, "Log warnings (true).", switch=True),
    Flag("log-error", parse_bool, "Log errors (true).", switch=True),
    Flag("log-format", str, "default or ISO8601."),
    Flag("log-file", str, "Append the log to this file."),
    # stubserve's own
    Flag("shm-limit", parse_size, "Shared memory for tensors, as 8G or in bytes (half of the machine's memory)."),
    Flag("request-min-rate", parse_int, "Bytes per second that an unfinished request has to arrive at (500)."),
    Flag("request-timeout-secs", parse_int, "Seconds within which all of a request has to arrive; 0: no limit (3600)."),
    Flag("connection-share", parse_int, "Percent of --shm-limit for a connection's unfinished requests (50)."),
    Flag("send-timeout-secs", parse_int, "Seconds that a client may take nothing of its answer; 0: no limit (60)."),
    Flag("idle-timeout-secs", parse_int, "Seconds that a connection may be idle; 0: no limit (3600)."),
    Flag("grpc-transport", str, "native, or grpcio for gRPC through its C core: slower (native)."),
    Flag("stub-restart-limit", parse_int, "Restarts in a row of a stub that dies; 0 turns restarting off (10)."),
    Flag("environment-cache", Path, "Where archives of environments are extracted (~/.cache/stubserve/environments)."),
    Flag("debug-model", str, "Give this model's stub the terminal, so that breakpoint() works in it.", many=True),
)

# Flags of parts that do not exist yet: value -> what is missing. With the value that turns the part off they are fine.
_OFF = ("false", "off", "0")
MISSING = {
    "model-load-retry-count": ("retrying a load", ("0",)),
    "model-namespacing": ("model namespacing", _OFF),
    "http-restricted-api": ("restricted APIs", ()),
    "allow-client-shm": ("client shared memory", _OFF),
    "trace-config": ("tracing", ()),
    "trace-file": ("tracing", ()),
    "trace-level": ("tracing", ("OFF",)),
    "trace-rate": ("tracing", ()),
    "trace-count": ("tracing", ()),
    "log-frequency": ("tracing", ()),
    "cache-config": ("the response cache", ()),
    "cache-directory": ("the response cache", ()),
    "response-cache-byte-size": ("the response cache", ("0",)),
    "rate-limit": ("the rate limiter", ("off",)),
    "rate-limit-resource": ("the rate limiter", ()),
    "host-policy": ("host policies", ()),
    "model-load-gpu-limit": ("GPU tensors", ()),
    "repoagent-directory": ("repository agents", ()),
    "allow-sagemaker": ("SageMaker", _OFF),
    "allow-vertex-ai": ("Vertex AI", _OFF),
    "strict-model-config": ("this deprecated flag; use --disable-auto-complete-config", _OFF),
}

_ONE_LOOP = "HTTP is served by one event loop, not by a pool of threads"
_NO_GPU_POOL = "there is no such memory pool here"

# Accepted, because they are in everybody's command line, and said in the log to be without effect.
WITHOUT_EFFECT = {
    "allow-gpu-metrics": "there are no metrics of GPUs here",
    "http-thread-count": _ONE_LOOP,
    "grpc-infer-thread-count": "gRPC is served by one event loop, not by a pool of threads",
    "grpc-infer-allocation-pool-size": "requests and responses are not pooled here",
    "grpc-max-response-pool-size": "how much waits for a slow reader is bounded by its bytes here",
    "pinned-memory-pool-byte-size": _NO_GPU_POOL,
    "cuda-memory-pool-byte-size": _NO_GPU_POOL,
    "cuda-virtual-address-size": _NO_GPU_POOL,
    "min-supported-compute-capability": _NO_GPU_POOL,
    "buffer-manager-thread-count": "tensors are not copied by threads of their own here",
    "enable-peer-access": _NO_GPU_POOL,
}


def parse_arguments(arguments: Sequence[str]) -> Settings:
    """Settings from the words behind `stubserve serve`: flags as `--name=value` or `--name value`, else repositories.

    Raises UsageError.
    """
    by_name = {flag.name: flag for flag in FLAGS}
    values: dict[str, Any] = {}
    words = list(arguments)
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            if word.startswith("-"):
                raise UsageError(f"Unexpected argument: {word}")
            values.setdefault("model_repository", []).append(Path(word))
            continue
        name, equals, text = word[2:].partition("=")
        flag = by_name.get(name)
        if flag is None and name not in MISSING and name not in WITHOUT_EFFECT:
            close = difflib.get_close_matches(name, by_name, 1)
            raise UsageError(f"Unexpected argument: {word}" + (f"; did you mean --{close[0]}?" if close else ""))
        if not equals:
            is_switch = flag.switch if flag is not None else name.startswith(("allow-", "enable-")) or name in MISSING
            if words and not words[0].startswith("--") and (not is_switch or _is_bool(words[0])):
                text = words.pop(0)
            elif is_switch:
                text = "true"
            else:
                raise UsageError(f"option '--{name}' requires an argument")
        if name in WITHOUT_EFFECT:
            values.setdefault("notices", []).append(f"--{name} has no effect: {WITHOUT_EFFECT[name]}")
            continue
        if flag is None:
            _check_missing(name, text)
            continue
        try:
            value = flag.parse(text)
        except UsageError as wrong:
            raise UsageError(str(wrong) if str(wrong).startswith("--") else f"--{name}: {wrong}") from None
        if flag.many:
            values.setdefault(flag.attribute, []).append(value)
        else:
            values[flag.attribute] = value
    settings = Settings(**values)
    _check(settings)
    settings.notices += [
        f"--backend-config={backend},{setting}={value} has no effect: shared memory is one arena here (--shm-limit), "
        "and stubs have no pools or timeouts to set"
        for backend, setting, value in settings.backend_config
    ]
    return settings


def _is_bool(text: str) -> bool:
    try:
        parse_bool(text)
    except UsageError:
        return False
    return True


def _check_missing(name: str, text: str) -> None:
    part, fine = MISSING[name]
    if text.lower() not in fine and text not in fine:
        raise UsageError(f"--{name}={text}: stubserve does not offer {part} yet. Leave the flag out.")


def _check(settings: Settings) -> None:
    if not settings.model_repository:
        raise UsageError("--model-repository must be specified, or simply its folder: stubserve serve FOLDER")
    if settings.model_control_mode not in (NONE, EXPLICIT, POLL):
        raise UsageError(f"--model-control-mode must be none, explicit or poll. Got {settings.model_control_mode}")
    if settings.repository_poll_secs < 1:
        raise UsageError(f"--repository-poll-secs must be at least 1. Got {settings.repository_poll_secs}")
    if settings.load_model and settings.model_control_mode != EXPLICIT:
        raise UsageError("Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.")
    if settings.http_max_input_size <= 0:
        raise UsageError("Error: --http-max-input-size must be greater than 0.")
    if settings.grpc_transport not in ("native", "grpcio"):
        raise UsageError(f"--grpc-transport must be native or grpcio. Got {settings.grpc_transport}")
    if settings.grpc_infer_response_compression_level not in ("none", "low", "medium", "high"):
        raise UsageError(
            "invalid argument for --grpc-infer-response-compression-level, "
            f"got: {settings.grpc_infer_response_compression_level}"
        )
    settings.grpc_use_ssl = settings.grpc_use_ssl or settings.grpc_use_ssl_mutual
    if settings.grpc_use_ssl and not (settings.grpc_server_cert and settings.grpc_server_key):
        raise UsageError("--grpc-use-ssl needs --grpc-server-cert and --grpc-server-key")
    kinds = [kind for group in settings.grpc_restricted_protocol for kind in group]
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise UsageError(f"restricted api '{kind}' can not be specified in multiple config groups")
    for name in ("http_header_forward_pattern", "grpc_header_forward_pattern"):
        try:
            compile_re2(getattr(settings, name))
        except re.error as error:
            raise UsageError(f"--{name.replace('_', '-')} is no regular expression: {error}") from None
    for name in ("request_min_rate", "request_timeout_secs", "send_timeout_secs", "idle_timeout_secs"):
        if getattr(settings, name) < 0:
            raise UsageError(f"--{name.replace('_', '-')} must not be negative. Got {getattr(settings, name)}")
    if not 0 < settings.connection_share <= 100:
        raise UsageError(f"--connection-share is a percentage from 1 to 100. Got {settings.connection_share}")
    if settings.metrics_interval_ms < 0:
        raise UsageError(f"--metrics-interval-ms must not be negative. Got {settings.metrics_interval_ms}")
    ports = {
        "HTTP": (settings.http_address, settings.http_port if settings.allow_http else 0),
        "GRPC": (settings.grpc_address, settings.grpc_port if settings.allow_grpc else 0),
        "metrics": (settings.metrics_address, settings.metrics_port if settings.allow_metrics else 0),
    }
    for name, port in ("http", settings.http_port), ("grpc", settings.grpc_port), ("metrics", settings.metrics_port):
        if not 0 <= port < 1 << 16:
            raise UsageError(f"--{name}-port must be a number from 0 (any that is free) to 65535. Got {port}")
    for one, other in itertools.combinations(ports, 2):
        address, port = ports[one]
        if port and ports[one] == ports[other]:
            raise UsageError(
                f"The server cannot listen to {one} requests and {other} requests at the same address and port "
                f"{address}:{port}"
            )
    if settings.log_format not in ("default", "ISO8601"):
        raise UsageError(f"invalid argument for --log_format, got: {settings.log_format}")


def usage() -> str:
    """The help text."""
    head = [
        "usage: stubserve serve REPOSITORY [REPOSITORY ...] [--flag=value ...]",
        "",
        "Serves the models of a Triton model repository. A tritonserver command line works too.",
        "",
        "Tools: stubserve check REPOSITORY     all problems of a repository, without serving it",
        "       stubserve env build MODEL_DIR  a packed environment from the model's requirements.txt",
        "       stubserve env check MODEL_DIR  imports the model in its environment and shows what it finds",
        "",
    ]
    return "\n".join([*head, *(f"  --{flag.name:<30} {flag.help}" for flag in FLAGS)]) + "\n"
