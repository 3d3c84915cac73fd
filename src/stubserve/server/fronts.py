"""The front ends of a server: HTTP and metrics, which uvicorn runs, and gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from starlette.types import ASGIApp

from stubserve.connections.listening import Acceptor
from stubserve.connections.paced_transport import see_it_closed
from stubserve.connections.tls import tls_context
from stubserve.http.app import create_app
from stubserve.http.connection import HttpConnection
from stubserve.http.fallback import uvicorn_config
from stubserve.http.message import has_asked
from stubserve.http.pages import create_metrics_app
from stubserve.http.shared import Connections
from stubserve.inference.long_work import Offload
from stubserve.server.server import Server

if TYPE_CHECKING:
    from stubserve.grpc.http2.connection import Http2Transport


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers and without its ten wake-ups per second: an idle server sleeps.

    With an `offload` an `Acceptor` takes the connections.
    """

    def __init__(self, config: uvicorn.Config, tls: ssl.SSLContext | None, offload: Offload | None = None) -> None:
        super().__init__(config)
        self._tls = tls
        self._stopping = asyncio.Event()
        self._offload = offload

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.config.ssl = self._tls
        if self._offload is None or sockets is None:
            await super().startup(sockets)
            return
        await self.lifespan.startup()
        config = self.config
        make = functools.partial(
            cast(Any, config.http_protocol_class),
            config=config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            _loop=asyncio.get_running_loop(),
        )
        acceptors = [Acceptor(one, make, has_asked, self._offload, self._tls) for one in sockets]
        self.servers = cast(list[asyncio.Server], acceptors)
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        await self._stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # The server's own connections do this when they are closed.
        if self._offload is None:
            for connection in self.server_state.connections:
                see_it_closed(cast(Any, connection).transport)
        await super().shutdown(sockets)

    def stop(self) -> None:
        self.should_exit = True
        self._stopping.set()


def http_server(server: Server, connections: Connections) -> HttpServer:
    """The HTTP front end of a server. Its connections share `connections`, for an orderly stop. Raises OSError."""
    http = server.settings.http
    app = create_app(server, None, http.cors_origins, http.shows_try_page, http.openai, _metrics(server))
    return _on_own_connections(server, app, connections)


def openai_server(server: Server, connections: Connections) -> HttpServer:
    """The front end for OpenAI's protocol on a port of its own. Raises OSError."""
    origins = server.settings.http.cors_origins
    app = create_app(server, None, origins, False, True, _metrics(server), as_upstream=True, access=connections.access)
    return _on_own_connections(server, app, connections)


def _on_own_connections(server: Server, app: ASGIApp, connections: Connections) -> HttpServer:
    protocol = functools.partial(HttpConnection, connections)
    grace_s = server.settings.exit_timeout_secs
    config = _config(server, app, http=protocol, timeout_graceful_shutdown=grace_s)
    return HttpServer(config, _tls(server), server.offload)


def _metrics(server: Server) -> Callable[[], Awaitable[str]] | None:
    """Gives the current metrics; None where they are off, or meant for an address that HTTP is not served at."""
    settings = server.settings
    if not settings.metrics.allow or settings.metrics_address != settings.http.address:
        return None
    return lambda: server.offload.run(server.metrics.text())


def metrics_server(server: Server) -> HttpServer:
    """The front end of a server's metrics. Raises OSError."""
    return HttpServer(_config(server, _metrics_app(server)), _tls(server))


def _metrics_app(server: Server) -> ASGIApp:
    shows_page = server.settings.metrics.status_page
    return create_metrics_app(
        lambda: server.offload.run(server.metrics.text()),
        (lambda: server.offload.run(server.status.json())) if shows_page else None,
        server.http_access,
    )


def sagemaker_server(server: Server) -> HttpServer:
    """The front end for SageMaker. Raises OSError."""
    from stubserve.http.platforms.sagemaker import SageMaker

    app = SageMaker(server, server.control, create_app(server), server.http_access, os.environ)
    return HttpServer(_config(server, app), _tls(server))


def vertex_server(server: Server) -> HttpServer:
    """The front end for Vertex AI. Raises OSError; ServeError if its environment lacks a variable."""
    from stubserve.http.platforms.vertex import VertexAi

    metrics = _metrics_app(server) if server.settings.metrics.allow else None
    app = VertexAi(server, create_app(server), metrics, server.settings.vertex.default_model, os.environ)
    return HttpServer(_config(server, app), _tls(server))


def _tls(server: Server) -> ssl.SSLContext | None:
    tls = server.settings.http.tls
    return None if tls is None else tls_context(tls, ["http/1.1"])


def _config(server: Server, app: Any, **more: Any) -> uvicorn.Config:
    return uvicorn_config(app, server.settings.logging.access, **more)


def grpc_server(server: Server) -> Http2Transport:
    """The gRPC front end of a server, listening. Raises OSError."""
    # Here, so that a server does not pay for gRPC that it does not serve.
    from stubserve.grpc.http2.connection import Http2Transport
    from stubserve.grpc.service import Service, rpc_access

    settings = server.settings.grpc
    access = rpc_access(settings.restricted, server.tokens, server.settings.auth.open_kinds, server.owner)
    service = Service(server, settings.header_forward_pattern, access, server.settings.logging.access)
    return Http2Transport(server, service, settings)
