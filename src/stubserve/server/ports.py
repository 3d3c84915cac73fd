"""The ports of one server, from binding to the last answer.

They are bound before the first model is loaded, so that a taken port is found at once, and so that probes and clients
get answers meanwhile. Ports that several servers share are served only once the models are loaded: until then their
connections go to servers that are ready. At the end no new connections are accepted, and requests under way are
answered first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from stubserve.connections.listening import BACKLOG, explained, listen
from stubserve.errors import ServeError
from stubserve.http.endpoint import HttpEndpoint
from stubserve.server.fronts import HttpServer, grpc_server, http_server, metrics_server, part_server
from stubserve.server.server import Server

if TYPE_CHECKING:
    from stubserve.grpc.http2.connection import Http2Transport

log = logging.getLogger("stubserve.server")

# The part of --exit-timeout-secs for HTTP requests to end; the rest is for models to finalize.
_DRAIN_PART = 0.8

_HTTP, _METRICS = "HTTPService", "Metrics Service"


class CannotServe(Exception):
    """The server cannot start; the text is for the log."""


class Ports:
    """The ports of a server. Lives on the event loop."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._http: dict[str, tuple[HttpServer, socket.socket]] = {}
        self._grpc: Http2Transport | None = None
        self._serving: list[asyncio.Task[None]] = []
        self._stopping_grpc: asyncio.Task[None] | None = None
        server.log_settings.watchers.add(self._log_requests_if_verbose)

    async def open(self) -> None:
        """Binds all ports; gRPC is served from now on, unless its port is shared. Raises CannotServe."""
        for name, protocol, address, port, make in self._wanted():
            try:
                self._http[name] = (make(), listen(address, port, self._is_shared(name)))
            except OSError as error:
                place = f"Socket '{address}:{port}' cannot be opened"
                raise CannotServe(explained(error, protocol, place)) from None
            except ServeError as error:
                raise CannotServe(f"error: creating server: {error.status_text}") from None
        self._log_requests_if_verbose()
        grpc = self._server.settings.grpc
        if grpc.allow:
            try:
                self._grpc = grpc_server(self._server)
            except OSError as error:
                raise self._no_grpc(error) from None
            if not grpc.reuse_port:
                await self._grpc.start()
            self._server.grpc_port = self._grpc.port

    def _no_grpc(self, error: OSError) -> CannotServe:
        grpc = self._server.settings.grpc
        return CannotServe(explained(error, "grpc", f"failed to start gRPC at '{grpc.address}:{grpc.port}'"))

    def _is_shared(self, name: str) -> bool:
        return name == _HTTP and self._server.settings.http.reuse_port

    def _wanted(self) -> Iterator[tuple[str, str, str, int, Callable[[], HttpServer]]]:
        """The ports for uvicorn: name in the log and in flags, address, port, and the maker of the front end."""
        server, settings = self._server, self._server.settings
        address = settings.http.address
        if settings.http.allow:
            yield _HTTP, "http", address, settings.http.port, partial(http_server, server)
        if settings.metrics.allow:
            yield _METRICS, "metrics", settings.metrics.address, settings.metrics.port, partial(metrics_server, server)
        for part in server.parts:
            for port in part.ports(server):
                yield port.name, port.protocol, address, port.number, partial(part_server, server, port)

    def serve(self) -> None:
        """Accepts connections from now on, except on shared ports."""
        for name in self._http:
            if not self._is_shared(name):
                self._accept(name)

    def _accept(self, name: str) -> None:
        front, listener = self._http[name]
        listener.listen(BACKLOG)
        self._serving.append(asyncio.get_running_loop().create_task(front.serve([listener])))

    async def ready(self) -> None:
        """Accepts connections on shared ports, too, and logs the server's addresses. Raises CannotServe."""
        for name in self._http:
            if self._is_shared(name):
                self._accept(name)
        if self._grpc is not None:
            if self._server.settings.grpc.reuse_port:
                try:
                    await self._grpc.start()
                except OSError as error:
                    raise self._no_grpc(error) from None
            log.info("Started GRPCInferenceService at %s:%d", self._server.settings.grpc.address, self._grpc.port)
        for name, (_, listener) in self._http.items():
            log.info("Started %s at %s:%d", name, *listener.getsockname()[:2])

    def addresses(self) -> dict[str, str]:
        """The server's addresses, by protocol, as people on this machine write them."""
        settings = self._server.settings
        scheme = "http" if settings.http.tls is None else "https"
        served = self._server.serving()
        addresses = {}
        if _HTTP in self._http:
            model = f"/{served[0].name}/infer" if served else ""
            http = f"{scheme}://{_host(settings.http.address)}:{self._port(_HTTP)}"
            addresses["HTTP"] = f"{http}/v2/models{model}"
            for part in self._server.parts:
                addresses |= part.addresses(http, "", served)
        if self._grpc is not None:
            addresses["gRPC"] = f"{_host(settings.grpc.address)}:{self._grpc.port}"
        if _METRICS in self._http:
            metrics = f"{scheme}://{_host(settings.metrics.address)}:{self._port(_METRICS)}"
            addresses["Metrics"] = f"{metrics}/metrics"
            for part in self._server.parts:
                addresses |= part.addresses("", metrics, served)
        return addresses

    def _port(self, name: str) -> int:
        port: int = self._http[name][1].getsockname()[1]
        return port

    def begin_leaving(self) -> None:
        """The server goes soon: HTTP connections take one request more, and gRPC's clients are asked to use others."""
        for endpoint in self._endpoints():
            endpoint.open.begin_leaving()
        if self._grpc is not None:
            self._grpc.begin_leaving()

    def begin_drain(self) -> None:
        """Marks the HTTP requests under way now: `drain` waits for these."""
        for endpoint in self._endpoints():
            endpoint.open.begin_drain()

    async def drain(self, timeout_s: float) -> None:
        """Accepts no more connections. Waits until HTTP requests are answered, for 0.8 of `timeout_s` at most.

        Requests over gRPC have all of `timeout_s`; `close` waits for them.
        """
        if self._grpc is not None:
            self._stopping_grpc = asyncio.get_running_loop().create_task(self._grpc.stop(timeout_s))
        for front, _ in self._http.values():
            if front.endpoint is not None:
                front.stop()
        with contextlib.suppress(asyncio.TimeoutError):
            draining = asyncio.gather(*(endpoint.open.drain() for endpoint in self._endpoints()))
            await asyncio.wait_for(draining, timeout_s * _DRAIN_PART)

    async def close(self) -> None:
        if self._stopping_grpc is not None:
            await self._stopping_grpc
        for front, _ in self._http.values():
            front.stop()
        await asyncio.gather(*self._serving)

    def _log_requests_if_verbose(self) -> None:
        for endpoint in self._endpoints():
            endpoint.log_requests = self._server.log_settings.verbose

    def _endpoints(self) -> Iterator[HttpEndpoint]:
        """What our own connections share, by port."""
        return (front.endpoint for front, _ in self._http.values() if front.endpoint is not None)


def _host(address: str) -> str:
    if address in ("0.0.0.0", "::"):
        return "localhost"
    return f"[{address}]" if ":" in address else address
