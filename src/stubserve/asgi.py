"""stubserve as a plain ASGI app, for hosts that bring their own server: `uvicorn --factory stubserve.asgi:create_app`.

The environment variable STUBSERVE_ARGS has the command line that `stubserve serve` would get; without it the folder
`model_repository` is served. The host reads and writes the sockets, so bodies are copied once more than by our server.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
from collections.abc import AsyncIterator
from operator import attrgetter
from typing import Any

from msgspec.structs import replace
from starlette.applications import Starlette

from stubserve.errors import ServeError
from stubserve.flags import parse_arguments
from stubserve.flags.table import FLAGS
from stubserve.http.app import create_app as create_http_app
from stubserve.parts import parts_of
from stubserve.server.server import Server
from stubserve.settings.groups import Settings

log = logging.getLogger("stubserve.server")

# Settings, alone or as groups, that a host replaces or does not have, and why they have no effect
_HOSTS = {
    # Turning these off is right in a host.
    "grpc.allow": "",
    "metrics.allow": "",
    "grpc": "there is no gRPC in an ASGI host",
    "metrics": "there is no port of metrics in an ASGI host",
    "clients.fair_queues": "",
    "clients": "an ASGI host reads and writes the sockets itself",
    "host": "an ASGI host listens itself",
    "http.allow": "an ASGI host serves HTTP itself",
    "http.address": "an ASGI host listens itself",
    "http.port": "an ASGI host listens itself",
    "http.openai_port": "an ASGI host listens itself",
    "http.reuse_port": "an ASGI host listens itself",
    **dict.fromkeys(
        ("http.use_ssl", "http.use_ssl_mutual", "http.server_cert", "http.server_key", "http.root_cert"),
        "an ASGI host has the certificates itself",
    ),
}


def without_effect(settings: Settings) -> list[str]:
    """Lines for the log about flags without effect in a host; none for values that a host has anyway."""
    default = Settings(shm_limit=settings.shm_limit)
    notices = []
    for flag in FLAGS:
        why = _HOSTS.get(flag.setting, _HOSTS.get(flag.setting.partition(".")[0], ""))
        value = attrgetter(flag.setting)(settings)
        if why and value != attrgetter(flag.setting)(default):
            notices.append(f"--{flag.name} has no effect: {why}")
    return notices


class _Deferred:
    """Stands for the server until the host has started its event loop, which the server's parts need."""

    def __init__(self) -> None:
        self._server: Server | None = None

    def start(self, settings: Settings) -> Server:
        self._server = Server(settings)
        return self._server

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)


def create_app(settings: Settings | None = None) -> Starlette:
    """The app. Its lifespan loads the models and finalizes them; it raises RuntimeError if one fails to load."""
    if settings is None:
        settings = parse_arguments(shlex.split(os.environ.get("STUBSERVE_ARGS", "model_repository")))
    notices = (*settings.notices, *without_effect(settings))
    # There is no port where metrics could be read, and what a host serves at its address is not known here.
    http, metrics = replace(settings.http, try_page=False), replace(settings.metrics, allow=False)
    chosen = replace(settings, http=http, metrics=metrics)
    deferred = _Deferred()

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        server = deferred.start(chosen)
        for notice in notices:
            log.warning(notice)
        try:
            try:
                complete = await server.load()
            except ServeError as error:
                if chosen.exit_on_error:
                    raise
                log.error("%s", error.status_text)
            else:
                if not complete and chosen.exit_on_error:
                    raise RuntimeError("failed to load all models; the log says why")
            yield
        finally:
            await server.stop()

    # These parts only give the app its routes: a host may start the app again, and each server has parts of its own.
    return create_http_app(deferred, parts_of(chosen), lifespan=lifespan, cors_origins=chosen.http.cors_origins)
