"""The transport's listening side: sockets, TLS, and its end."""

from __future__ import annotations

import asyncio

from stubserve.api.inference_server import InferenceServer
from stubserve.connections.listening import BACKLOG, listen
from stubserve.connections.tls import HANDSHAKE_S, tls_context
from stubserve.grpc.http2.connection import Http2Connection
from stubserve.grpc.http2.endpoint import Endpoint
from stubserve.grpc.service import Service
from stubserve.settings.groups import GrpcSettings


class Http2Transport:
    """A listening gRPC server for a service. `port` is the one that it got. Raises OSError."""

    def __init__(self, server: InferenceServer, service: Service, options: GrpcSettings) -> None:
        self._endpoint = Endpoint(server, service.methods, options)
        self._service = service
        self._tls = None if options.tls is None else tls_context(options.tls, ["h2"])
        self._listener = listen(options.address, options.port, options.reuse_port)
        self.port: int = self._listener.getsockname()[1]
        self._accepting: asyncio.Server | None = None

    async def start(self) -> None:
        self._accepting = await asyncio.get_running_loop().create_server(
            lambda: Http2Connection(self._endpoint),
            sock=self._listener,
            backlog=BACKLOG,
            ssl=self._tls,
            ssl_handshake_timeout=None if self._tls is None else HANDSHAKE_S,
        )

    async def stop(self, grace_s: float) -> None:
        """No new RPCs; those that are running end, or are cut off after `grace_s`."""
        if self._accepting is None:
            self._listener.close()
        else:
            self._accepting.close()
        self._service.stop()
        await self._endpoint.open.end(grace_s)
