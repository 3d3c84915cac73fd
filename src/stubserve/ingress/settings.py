"""What a worker is told of the settings, over its control socket, and what it makes of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from stubserve.settings import AuthSettings, ClientSettings, HttpSettings, LoggingSettings, Settings
from stubserve.tracing_settings import OPENTELEMETRY


class WorkerSettings(NamedTuple):
    """The settings of one worker of `workers`; `share` is how much one connection may hold of unfinished requests."""

    http: HttpSettings
    clients: ClientSettings
    auth: AuthSettings
    logging: LoggingSettings
    share: int
    grpc_port: int
    workers: int
    # Whether traces may be parts of others' (`traceparent`)
    wants_contexts: bool


def boot_of(settings: Settings, logged: Mapping[str, Any], grpc_port: int) -> dict[str, Any]:
    """The settings as they are sent; `logged` are those of the log, which may have changed since the start."""
    workers = settings.http.workers
    # Connections are shared out evenly.
    most = -(-settings.clients.max_connections // workers)
    clients = replace(settings.clients, max_connections=most)
    logging = replace(
        settings.logging,
        verbose=logged["log_verbose_level"],
        info=logged["log_info"],
        warning=logged["log_warning"],
        error=logged["log_error"],
        format=logged["log_format"],
    )
    token_file = settings.auth.token_file
    return {
        "http": msgspec.to_builtins(settings.http),
        "clients": msgspec.to_builtins(clients),
        "logging": msgspec.to_builtins(logging),
        "token_file": None if token_file is None else str(token_file),
        "open_kinds": sorted(settings.auth.open_kinds),
        "share": settings.connection_share_bytes,
        "grpc_port": grpc_port,
        "workers": workers,
        "wants_contexts": settings.tracing.mode == OPENTELEMETRY,
    }


def settings_of(boot: dict[str, Any]) -> WorkerSettings:
    """The settings that were sent."""
    token_file = boot["token_file"]
    auth = AuthSettings(None if token_file is None else Path(token_file), frozenset(boot["open_kinds"]))
    return WorkerSettings(
        msgspec.convert(boot["http"], HttpSettings),
        msgspec.convert(boot["clients"], ClientSettings),
        auth,
        msgspec.convert(boot["logging"], LoggingSettings),
        boot["share"],
        boot["grpc_port"],
        boot["workers"],
        boot["wants_contexts"],
    )
