"""Makes settings from a command line: by the table of flags, and by checks of values against each other."""

from __future__ import annotations

import difflib
import itertools
import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from stubserve.api.fair_queues import TOKEN
from stubserve.errors import STANDARD, TRITON, UsageError
from stubserve.flags.table import FLAGS, GROUPS
from stubserve.flags.unneeded import UNNEEDED
from stubserve.flags.values import CloudAddress, check_restricted, parse_bool, parse_int, parse_repository
from stubserve.observability.logs import DEFAULT, ISO8601, JSON
from stubserve.parts import is_installed
from stubserve.settings.cache import REDIS
from stubserve.settings.fronts import FrontSettings, Tls
from stubserve.settings.groups import EXPLICIT, NONE, OPENTELEMETRY, POLL, Settings

# Flags that take one of several values, with upstream's text for other values, if it has one
_MUST_BE = "--{} must be {}. Got {}"
_INVALID = "invalid argument for --{0}, got: {2}. Use {1}"
_CHOICES = {
    "model-control-mode": (_MUST_BE, (NONE, EXPLICIT, POLL)),
    "http-status": (_MUST_BE, (TRITON, STANDARD)),
    "check-outputs": (_MUST_BE, ("never", "first", "always", "refuse")),
    "grpc-infer-response-compression-level": (_INVALID, ("none", "low", "medium", "high")),
    "log-format": (_INVALID.replace("{0}", "log_format"), (DEFAULT, ISO8601, JSON)),
}
# Flags of Triton's front end for OpenAI's protocol: those that have other names here, and one that takes three words
_ALIASES = {
    "kserve-http-port": "http-port",
    "kserve-grpc-port": "grpc-port",
    "tritonserver-log-verbose-level": "log-verbose",
}
_THREE_WORDS = "openai-restricted-api"
_NOT_NEGATIVE = (
    "repository-poll-secs", "request-min-rate", "request-timeout-secs", "send-timeout-secs", "idle-timeout-secs",
    "max-connections", "metrics-interval-ms",
)  # fmt: skip
# Settings of backends that have an effect here; the others concern parts that do not exist here
_BACKEND_SETTINGS = (
    "default-max-batch-size",
    "enable-global-threadpool",
    "intra_op_thread_count",
    "inter_op_thread_count",
)
# What asks for a part of the server: a setting, the part's name, and the flag
_PARTS = (
    ("shed_on_memory_pressure", "memory_pressure", "--shed-on-memory-pressure"),
    ("http.openai", "openai", "--openai"),
    ("http.openai_port", "openai", "--openai-port"),
    ("sagemaker.allow", "platforms", "--allow-sagemaker"),
    ("vertex.allow", "platforms", "--allow-vertex-ai"),
    ("http.try_page", "pages", "--try-page"),
    ("http.openapi", "pages", "--openapi"),
    ("tracing.config", "traces", "--trace-config"),
    ("cache.name", "response_cache", "--cache-config"),
    ("cache.in_redis", "redis_store", "--cache-config=redis,..."),
    ("rate_limit.on", "rate_limiter", "--rate-limit=execution_count"),
    ("repository.remotes", "cloud", "--model-repository with an address in the cloud"),
)


def parse_arguments(arguments: Sequence[str]) -> Settings:
    """Settings from words: flags as `--name=value` or `--name value`, else repositories. Raises UsageError."""
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
        name = _ALIASES.get(name, name)
        flag = by_name.get(name)
        if flag is None and name not in UNNEEDED:
            close = difflib.get_close_matches(name, by_name, 1)
            raise UsageError(f"Unexpected argument: {word}" + (f"; did you mean --{close[0]}?" if close else ""))
        if not equals and name == _THREE_WORDS:
            text, words = " ".join(words[:3]), words[3:]
        elif not equals:
            is_switch = (flag or UNNEEDED[name]).switch
            if words and not words[0].startswith("--") and (not is_switch or _is_bool(words[0])):
                text = words.pop(0)
            elif is_switch:
                text = "true"
            else:
                raise UsageError(f"option '--{name}' requires an argument")
        try:
            value = (flag.parse if flag is not None else UNNEEDED[name].check)(text)
        except UsageError as wrong:
            raise UsageError(str(wrong) if str(wrong).startswith("--") else f"--{name}: {wrong}") from None
        if flag is None:
            notices.append(f"--{name} has no effect: {UNNEEDED[name].why}")
            continue
        values[flag.setting] = (*values.get(flag.setting, ()), value) if flag.many else value
    settings = _grouped(with_platform(values, os.environ))
    _check(settings)
    notices += [
        f"--backend-config={backend},{setting}={value} "
        + (
            "has no effect: shared memory is one arena here (--shm-limit), and stubs have no pools or timeouts to set"
            if backend == "python"
            else "has no effect on the backends that come with stubserve"
        )
        for backend, setting, value in settings.instances.backend_config
        if setting not in _BACKEND_SETTINGS
    ]
    if settings.dev:
        settings = settings.for_development(has_terminal=sys.stdin is not None and sys.stdin.isatty())
    return replace(settings, notices=tuple(notices))


def _grouped(values: Mapping[str, Any]) -> Settings:
    own: dict[str, Any] = {}
    given = values.get("repository.paths", ())
    if any(isinstance(one, CloudAddress) for one in given):
        paths = tuple(one for one in given if not isinstance(one, CloudAddress))
        remotes = tuple(str(one) for one in given if isinstance(one, CloudAddress))
        values = {**values, "repository.paths": paths, "repository.remotes": remotes}
    groups: dict[str, dict[str, Any]] = {}
    for setting, value in values.items():
        group, dot, field = setting.partition(".")
        if dot:
            groups.setdefault(group, {})[field] = value
        else:
            own[setting] = value
    settings = Settings(**own)
    return replace(settings, **{name: replace(getattr(settings, name), **fields) for name, fields in groups.items()})


def _is_bool(text: str) -> bool:
    try:
        parse_bool(text)
    except UsageError:
        return False
    return True


def _check(settings: Settings) -> None:
    """Checks flags against each other, and the bounds of single values. Raises UsageError."""
    _check_values(settings)
    repository = settings.repository
    if not repository.paths and not repository.remotes:
        raise UsageError("--model-repository must be specified, or simply its folder: stubserve serve FOLDER")
    if repository.load_models and repository.control_mode != EXPLICIT:
        raise UsageError("Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.")
    if settings.dev and repository.control_mode != NONE:
        raise UsageError(
            f"--dev loads what changes on disk, and --model-control-mode={repository.control_mode} says "
            "otherwise. Leave one of them out."
        )
    if settings.instances.stub_writable and "files" not in settings.instances.stub_sandbox:
        raise UsageError("--stub-writable needs --stub-sandbox=files: only sandboxed stubs need leave to write")
    tokenizer = settings.instances.tokenizer
    if tokenizer is not None and not tokenizer.is_dir():
        raise UsageError(
            f"--tokenizer is a folder with a tokenizer_config.json. Got {tokenizer}, which is none; "
            "nothing is fetched from Hugging Face here"
        )
    if not 0 < settings.clients.share <= 100:
        raise UsageError(f"--connection-share is a percentage from 1 to 100. Got {settings.clients.share}")
    if settings.auth.open_kinds and settings.auth.token_file is None:
        raise UsageError("--auth-open-api needs --auth-token-file: without it no API needs a token")
    if settings.http.max_input_size <= 0:
        raise UsageError("Error: --http-max-input-size must be greater than 0.")
    fronts: tuple[tuple[str, FrontSettings, str], ...] = (
        ("http", settings.http, "api"),
        ("grpc", settings.grpc, "protocol"),
    )
    for name, front, noun in fronts:
        _check_tls(name, front.tls)
        check_restricted([kind for group in front.restrictions for kind in group], noun)
        if not front.header_forward_pattern:
            continue
        from stubserve.api.forwarded_headers import compile_re2

        try:
            compile_re2(front.header_forward_pattern)
        except re.error as error:
            raise UsageError(f"--{name}-header-forward-pattern is no regular expression: {error}") from None
    check_restricted([kind for group in settings.http.openai_restrictions for kind in group], "api")
    if settings.http.openai_restrictions and settings.http.openai_port is None:
        raise UsageError("--openai-restricted-api needs --openai-port; for the port of HTTP say --http-restricted-api")
    tracing = settings.tracing
    if tracing.mode != OPENTELEMETRY and tracing.levels and not tracing.file:
        raise UsageError("--trace-config level needs a file for traces: --trace-config triton,file=<path>")
    if settings.clients.fair_queues == TOKEN and settings.auth.token_file is None:
        raise UsageError("--fair-queues=token needs --auth-token-file: without it clients could invent tokens")
    if settings.clients.fair_queues == TOKEN and "inference" in settings.auth.open_kinds:
        raise UsageError(
            "--fair-queues=token needs tokens for inference, and --auth-open-api=inference lets clients invent them"
        )
    _check_ports(settings.with_addresses())
    settings.cache.check()
    _check_packages(settings)


def _check_values(settings: Settings) -> None:
    for flag in FLAGS:
        value = attrgetter(flag.setting)(settings)
        if flag.name in _NOT_NEGATIVE and value < 0:
            raise UsageError(f"--{flag.name} must not be negative. Got {value}")
        form, choices = _CHOICES.get(flag.name, ("", (value,)))
        if value not in choices:
            raise UsageError(form.format(flag.name, f"{', '.join(choices[:-1])} or {choices[-1]}", value))


def _check_tls(protocol: str, tls: Tls | None) -> None:
    if tls is None:
        return
    if not (tls.certificate and tls.key):
        raise UsageError(f"--{protocol}-use-ssl needs --{protocol}-server-cert and --{protocol}-server-key")
    if tls.mutual and not tls.root_certificates:
        raise UsageError(
            f"--{protocol}-use-ssl-mutual needs --{protocol}-root-cert, the root certificates of the clients"
        )


def _check_packages(settings: Settings) -> None:
    for setting, part, flag in _PARTS:
        if attrgetter(setting)(settings) and not is_installed(part):
            raise UsageError(f"{flag} needs the part '{part}' of stubserve, which is not installed here")
    exports = settings.tracing.mode == OPENTELEMETRY
    for wanted, flag, package, extra, noun in (
        (exports, "--trace-config mode=opentelemetry", "opentelemetry", "opentelemetry", "packages"),
        (exports, "--trace-config mode=opentelemetry", "opentelemetry.exporter", "opentelemetry", "packages"),
        (settings.cache.name == REDIS, "--cache-config=redis,...", "redis", "redis", "a package"),
    ):
        if wanted and find_spec(package) is None:
            raise UsageError(f"{flag} needs {noun}: run `pip install 'stubserve[{extra}]'`")


def with_platform(values: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """The values, with Vertex AI's environment in place of defaults. Raises UsageError."""
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
    openai = http.openai_port or 0
    ports = [("http", http.port), ("openai", openai), ("grpc", grpc.port), ("metrics", metrics.port)]
    for name, port in (*ports, ("sagemaker", settings.sagemaker.port), ("vertex-ai", settings.vertex.port)):
        if not 0 <= port < 1 << 16:
            raise UsageError(f"--{name}-port must be a number from 0 (any that is free) to 65535. Got {port}")
    places = {
        "HTTP": (http.address, http.port if http.allow else 0),
        "OpenAI": (http.address, openai),
        "GRPC": (grpc.address, grpc.port if grpc.allow else 0),
        "metrics": (settings.metrics.address, metrics.port if metrics.allow else 0),
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
        rows = (f"  --{flag.name:<30} {flag.help}" for flag in FLAGS if flag.group == group)
        head += [f"{title}:", *rows, ""]
    return "\n".join(head)
