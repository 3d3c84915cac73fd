"""A command line becomes settings: by the table of flags, and by what its values must be to each other."""

from __future__ import annotations

import difflib
import itertools
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from stubserve.api.fair_queues import TOKEN
from stubserve.api.forwarded_headers import compile_re2
from stubserve.flags.table import FLAGS, GROUPS, group_of
from stubserve.flags.unneeded import UNNEEDED
from stubserve.flags.values import CloudAddress, UsageError, check_restricted, parse_bool, parse_int, parse_repository
from stubserve.observability.log_lines import DEFAULT, ISO8601, JSON
from stubserve.settings.cache import REDIS, CacheSettings, CacheSettingsError
from stubserve.settings.fronts import GrpcSettings, HttpSettings, SageMakerSettings, Tls, VertexSettings
from stubserve.settings.groups import (
    EXPLICIT,
    NONE,
    POLL,
    AuthSettings,
    ClientSettings,
    InstanceSettings,
    LoggingSettings,
    MetricsSettings,
    RateLimitSettings,
    RepositorySettings,
    Settings,
)
from stubserve.settings.tracing import OPENTELEMETRY, TracingSettings

_GROUPS: dict[str, Callable[..., Any]] = {
    "repository": RepositorySettings,
    "instances": InstanceSettings,
    "clients": ClientSettings,
    "auth": AuthSettings,
    "http": HttpSettings,
    "grpc": GrpcSettings,
    "metrics": MetricsSettings,
    "logging": LoggingSettings,
    "tracing": TracingSettings,
    "sagemaker": SageMakerSettings,
    "vertex": VertexSettings,
    "cache": CacheSettings,
    "rate_limit": RateLimitSettings,
}
# What a backend may be told that has its effect here; the rest is about what is not there
_BACKEND_SETTINGS = (
    "default-max-batch-size",
    "enable-global-threadpool",
    "intra_op_thread_count",
    "inter_op_thread_count",
)


def parse_arguments(arguments: Sequence[str]) -> Settings:
    """Settings from the words behind `stubserve serve`: flags as `--name=value` or `--name value`, else repositories.

    Raises UsageError.
    """
    by_name = {flag.name: flag for flag in FLAGS}
    values: dict[str, Any] = {}
    notices: list[str] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            if word.startswith("-"):
                raise UsageError(f"Unexpected argument: {word}")
            name, equals, text = "model-repository", "=", word
        else:
            name, equals, text = word[2:].partition("=")
        flag = by_name.get(name)
        if flag is None and name not in UNNEEDED:
            close = difflib.get_close_matches(name, by_name, 1)
            raise UsageError(f"Unexpected argument: {word}" + (f"; did you mean --{close[0]}?" if close else ""))
        if not equals:
            is_switch = (flag or UNNEEDED[name]).switch
            if words and not words[0].startswith("--") and (not is_switch or _is_bool(words[0])):
                text = words.pop(0)
            elif is_switch:
                text = "true"
            else:
                raise UsageError(f"option '--{name}' requires an argument")
        try:
            value = (flag.parse if flag is not None else UNNEEDED[name].check)(text)
        except (UsageError, CacheSettingsError) as wrong:
            raise UsageError(str(wrong) if str(wrong).startswith("--") else f"--{name}: {wrong}") from None
        if flag is None:
            notices.append(f"--{name} has no effect: {UNNEEDED[name].why}")
            continue
        values[flag.setting] = (*values.get(flag.setting, ()), value) if flag.many else value
    settings = _grouped(with_platform(values, os.environ))
    _check(settings)
    notices += [
        f"--backend-config={backend},{setting}={value} has no effect: shared memory is one arena here (--shm-limit), "
        "and stubs have no pools or timeouts to set"
        for backend, setting, value in settings.instances.backend_config
        if setting not in _BACKEND_SETTINGS
    ]
    if settings.dev:
        settings = settings.for_development(has_terminal=sys.stdin is not None and sys.stdin.isatty())
    return replace(settings, notices=tuple(notices))


def _grouped(values: Mapping[str, Any]) -> Settings:
    """Settings of values by group and field."""
    own: dict[str, Any] = {}
    given = values.get("repository.paths", ())
    if any(isinstance(one, CloudAddress) for one in given):
        paths = tuple(one for one in given if not isinstance(one, CloudAddress))
        remotes = tuple(str(one) for one in given if isinstance(one, CloudAddress))
        values = {**values, "repository.paths": paths, "repository.remotes": remotes}
    groups: dict[str, dict[str, Any]] = {name: {} for name in _GROUPS}
    for setting, value in values.items():
        group, dot, field = setting.partition(".")
        if dot:
            groups[group][field] = value
        else:
            own[setting] = value
    return Settings(**own, **{name: _GROUPS[name](**fields) for name, fields in groups.items()})


def _is_bool(text: str) -> bool:
    try:
        parse_bool(text)
    except UsageError:
        return False
    return True


def _check(settings: Settings) -> None:
    _check_repository(settings.repository)
    if settings.dev and settings.repository.control_mode != NONE:
        raise UsageError(
            f"--dev loads what changes on disk, and --model-control-mode={settings.repository.control_mode} says "
            "otherwise. Leave one of them out."
        )
    if settings.instances.check_outputs not in ("never", "first", "always", "refuse"):
        raise UsageError(
            f"--check-outputs must be never, first, always or refuse. Got {settings.instances.check_outputs}"
        )
    if settings.instances.stub_writable and "files" not in settings.instances.stub_sandbox:
        raise UsageError("--stub-writable says what stubs may write to with --stub-sandbox=files, which is not there")
    _check_clients(settings.clients)
    if settings.auth.open_kinds and settings.auth.token_file is None:
        raise UsageError("--auth-open-api says what needs no token, and without --auth-token-file nothing needs one")
    _check_http(settings.http)
    _check_grpc(settings.grpc)
    for name, group in ("http", settings.http), ("grpc", settings.grpc):
        try:
            compile_re2(group.header_forward_pattern)
        except re.error as error:
            raise UsageError(f"--{name}-header-forward-pattern is no regular expression: {error}") from None
    if settings.metrics.interval_ms < 0:
        raise UsageError(f"--metrics-interval-ms must not be negative. Got {settings.metrics.interval_ms}")
    tracing = settings.tracing
    if tracing.mode == OPENTELEMETRY and (
        find_spec("opentelemetry") is None or find_spec("opentelemetry.exporter") is None
    ):
        raise UsageError(
            "--trace-config mode=opentelemetry needs packages: run `pip install 'stubserve[opentelemetry]'`"
        )
    if tracing.mode != OPENTELEMETRY and tracing.levels and not tracing.file:
        raise UsageError("--trace-config level needs a file for traces: --trace-config triton,file=<path>")
    if settings.clients.fair_queues == TOKEN and settings.auth.token_file is None:
        raise UsageError("--fair-queues=token needs --auth-token-file: else anybody may make up tokens")
    if settings.clients.fair_queues == TOKEN and "inference" in settings.auth.open_kinds:
        raise UsageError(
            "--fair-queues=token needs tokens for inference, and --auth-open-api=inference lets anybody make them up"
        )
    _check_ports(settings)
    try:
        settings.cache.check()
    except CacheSettingsError as wrong:
        raise UsageError(str(wrong)) from None
    if settings.cache.name == REDIS and find_spec("redis") is None:
        raise UsageError("--cache-config=redis,... needs a package: run `pip install 'stubserve[redis]'`")
    if settings.logging.format not in (DEFAULT, ISO8601, JSON):
        raise UsageError(
            f"invalid argument for --log_format, got: {settings.logging.format}. Use {DEFAULT}, {ISO8601} or {JSON}"
        )


def _check_repository(repository: RepositorySettings) -> None:
    if not repository.paths and not repository.remotes:
        raise UsageError("--model-repository must be specified, or simply its folder: stubserve serve FOLDER")
    if repository.control_mode not in (NONE, EXPLICIT, POLL):
        raise UsageError(f"--model-control-mode must be none, explicit or poll. Got {repository.control_mode}")
    if repository.poll_secs < 0:
        raise UsageError(f"--repository-poll-secs must not be negative. Got {repository.poll_secs}")
    if repository.load_models and repository.control_mode != EXPLICIT:
        raise UsageError("Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.")


def _check_clients(clients: ClientSettings) -> None:
    for flag, value in (
        ("request-min-rate", clients.min_rate),
        ("request-timeout-secs", clients.request_timeout_secs),
        ("send-timeout-secs", clients.send_timeout_secs),
        ("idle-timeout-secs", clients.idle_timeout_secs),
        ("max-connections", clients.max_connections),
    ):
        if value < 0:
            raise UsageError(f"--{flag} must not be negative. Got {value}")
    if not 0 < clients.share <= 100:
        raise UsageError(f"--connection-share is a percentage from 1 to 100. Got {clients.share}")


def _check_http(http: HttpSettings) -> None:
    if http.max_input_size <= 0:
        raise UsageError("Error: --http-max-input-size must be greater than 0.")
    _check_tls("http", http.tls)
    check_restricted([kind for group in http.restricted_apis for kind in group], "api")


def _check_tls(protocol: str, tls: Tls | None) -> None:
    if tls is None:
        return
    if not (tls.certificate and tls.key):
        raise UsageError(f"--{protocol}-use-ssl needs --{protocol}-server-cert and --{protocol}-server-key")
    if tls.mutual and not tls.root_certificates:
        raise UsageError(
            f"--{protocol}-use-ssl-mutual needs --{protocol}-root-cert, the root certificates of the clients"
        )


def _check_grpc(grpc: GrpcSettings) -> None:
    if grpc.transport not in ("native", "grpcio"):
        raise UsageError(f"--grpc-transport must be native or grpcio. Got {grpc.transport}")
    if grpc.transport == "grpcio" and find_spec("grpc") is None:
        raise UsageError("--grpc-transport=grpcio needs a package: run `pip install 'stubserve[grpcio]'`")
    if grpc.compression_level not in ("none", "low", "medium", "high"):
        raise UsageError(
            f"invalid argument for --grpc-infer-response-compression-level, got: {grpc.compression_level}. "
            "Use none, low, medium or high"
        )
    _check_tls("grpc", grpc.tls)
    check_restricted([kind for group in grpc.restricted_protocols for kind in group], "protocol")


def with_platform(values: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """The values, with what Vertex AI's environment has in place of defaults. Raises UsageError."""
    defaults: dict[str, Any] = {}
    if environment.get("AIP_MODE") == "PREDICTION":
        defaults = {"vertex.allow": True, "http.allow": False, "grpc.allow": False}
    if environment.get("AIP_HTTP_PORT"):
        defaults["vertex.port"] = parse_int(environment["AIP_HTTP_PORT"])
    found = {**defaults, **values}
    if found.get("vertex.allow") and not found.get("repository.paths") and environment.get("AIP_STORAGE_URI"):
        found["repository.paths"] = (parse_repository(environment["AIP_STORAGE_URI"]),)
    return found


def _check_ports(settings: Settings) -> None:
    http, grpc, metrics = settings.http, settings.grpc, settings.metrics
    ports = [("http", http.port), ("grpc", grpc.port), ("metrics", metrics.port)]
    for name, port in (*ports, ("sagemaker", settings.sagemaker.port), ("vertex-ai", settings.vertex.port)):
        if not 0 <= port < 1 << 16:
            raise UsageError(f"--{name}-port must be a number from 0 (any that is free) to 65535. Got {port}")
    places = {
        "HTTP": (http.address, http.port if http.allow else 0),
        "GRPC": (grpc.address, grpc.port if grpc.allow else 0),
        "metrics": (settings.metrics_address, metrics.port if metrics.allow else 0),
        "Sagemaker": (http.address, settings.sagemaker.port if settings.sagemaker.allow else 0),
        "Vertex AI": (http.address, settings.vertex.port if settings.vertex.allow else 0),
    }
    safe = settings.sagemaker.safe_ports
    if settings.sagemaker.allow and safe is not None:
        for one in ("HTTP", "GRPC", "metrics"):
            port = places[one][1]
            if port and not safe[0] <= port <= safe[1]:
                raise UsageError(
                    f"The server cannot listen to {one} requests at port {port}, allowed port range is "
                    f"[{safe[0]}, {safe[1]}]"
                )
    for one, other in itertools.combinations(places, 2):
        address, port = places[one]
        if port and places[one] == places[other]:
            raise UsageError(
                f"The server cannot listen to {one} requests and {other} requests at the same address and port "
                f"{address}:{port}"
            )


def usage() -> str:
    """The help text."""
    head = [
        "usage: stubserve serve REPOSITORY [REPOSITORY ...] [--flag=value ...]",
        "",
        "Serves the models of a Triton model repository, or the one in a folder or a file.",
        "A tritonserver command line works too.",
        "",
        "Tools: stubserve init NAME            a new model's folder, with a client and a test",
        "       stubserve check REPOSITORY     all problems of a repository, without serving it",
        "       stubserve ask MODEL X=VALUE    asks a model that is served, or shows what it takes",
        "       stubserve fetch REPOSITORY     model files out of packages, where models list some",
        "       stubserve env build MODEL_DIR  a packed environment from the model's requirements.txt",
        "       stubserve env check MODEL_DIR  imports the model in its environment and shows what it finds",
        "       stubserve deploy NAME          files for systemd, containers, Kubernetes, Prometheus and others",
        "       stubserve trace FILE           draws the traces that an OpenTelemetry collector has written",
        "",
    ]
    for group, title in GROUPS.items():
        rows = (f"  --{flag.name:<30} {flag.help}" for flag in FLAGS if group_of(flag) == group)
        head += [f"{title}:", *rows, ""]
    return "\n".join(head)
