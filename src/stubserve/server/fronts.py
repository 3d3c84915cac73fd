"""The front ends of a server: HTTP and metrics, which uvicorn runs, and gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from starlette.types import ASGIApp

from stubserve.connections.listening import Acceptor
from stubserve.connections.paced_transport import ensure_closed
from stubserve.http.access import Cors, HttpAccess
from stubserve.http.app import create_app
from stubserve.http.connection import HttpConnection
from stubserve.http.endpoint import HttpEndpoint
from stubserve.http.fallback import uvicorn_config
from stubserve.http.message import has_asked
from stubserve.http.metrics import create_metrics_app
from stubserve.inference.long_work import Offload
from stubserve.parts import Port
from stubserve.server.server import Server

if TYPE_CHECKING:
    from stubserve.grpc.http2.connection import Http2Transport


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers and without its ten wake-ups per second: an idle server sleeps.

    With an `offload` an `Acceptor` takes the connections, which share `endpoint`, for an orderly stop.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        tls: ssl.SSLContext | None,
        offload: Offload | None = None,
        endpoint: HttpEndpoint | None = None,
    ) -> None:
        super().__init__(config)
        self.endpoint = endpoint
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
                ensure_closed(cast(Any, connection).transport)
        await super().shutdown(sockets)

    def stop(self) -> None:
        self.should_exit = True
        self._stopping.set()


def http_server(server: Server) -> HttpServer:
    """The HTTP front end of a server, with the routes of its parts. Raises OSError."""
    app = create_app(server, server.parts, cors_origins=server.settings.http.cors_origins)
    return _on_own_connections(server, app, server.http_access)


def metrics_server(server: Server) -> HttpServer:
    """The front end of a server's metrics. Raises OSError."""
    return HttpServer(_config(server, create_metrics_app(server)), _tls(server))


def part_server(server: Server, port: Port) -> HttpServer:
    """The front end for a port of one of the server's parts. Raises OSError, ServeError."""
    app = port.app()
    if port.own_connections:
        return _on_own_connections(server, app, port.access)
    return HttpServer(_config(server, app), _tls(server))


def _on_own_connections(server: Server, app: ASGIApp, access: HttpAccess | None) -> HttpServer:
    settings = server.settings
    cors = Cors(settings.http.cors_origins) if settings.http.cors_origins else None
    endpoint = HttpEndpoint(server, cors, settings.logging.access, access)
    protocol = functools.partial(HttpConnection, endpoint)
    config = _config(server, app, http=protocol, timeout_graceful_shutdown=settings.exit_timeout_secs)
    return HttpServer(config, _tls(server), server.offload, endpoint)


def _tls(server: Server) -> ssl.SSLContext | None:
    tls = server.settings.http.tls
    if tls is None:
        return None
    from stubserve.connections.tls import tls_context

    return tls_context(tls, ["http/1.1"])


def _config(server: Server, app: Any, **more: Any) -> uvicorn.Config:
    return uvicorn_config(app, server.settings.logging.access, **more)


def grpc_server(server: Server) -> Http2Transport:
    """The gRPC front end of a server, listening. Raises OSError."""
    # Imported here, so that a server does not pay for gRPC that it does not serve.
    from stubserve.grpc.http2.connection import Http2Transport
    from stubserve.grpc.service import Service, rpc_access

    settings = server.settings.grpc
    access = rpc_access(settings.restricted, server.tokens, server.settings.auth.open_kinds, server.owner)
    service = Service(server, settings.header_forward_pattern, access, server.settings.logging.access)
    return Http2Transport(server, service, settings)
