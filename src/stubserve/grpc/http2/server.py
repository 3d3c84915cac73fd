"""The transport's listening side: sockets, TLS, and its end."""

from __future__ import annotations

import asyncio

from stubserve.api.inference_server import InferenceServer
from stubserve.connections.listening import BACKLOG, listen
from stubserve.connections.open_connections import OpenConnections
from stubserve.connections.sent_memory import SentMemory
from stubserve.connections.tls import HANDSHAKE_S, tls_context
from stubserve.grpc.http2.connection import Http2Connection
from stubserve.grpc.http2.inbox import SmallRoom
from stubserve.grpc.http2.shared import ListedConnection
from stubserve.grpc.service import Service
from stubserve.settings.groups import GrpcSettings

# What one read of a connection may bring.
SCRATCH_BYTES = 256 * 1024

# The encodings are those that grpcio's core makes of the levels with a client that takes them all. Behind them zlib's
# own level: compressing takes the event loop's time.
_ENCODINGS = {"low": ("gzip", 1), "medium": ("deflate", 3), "high": ("deflate", 6)}


class Http2Transport:
    """A listening gRPC server for a service. `port` is the one that it got. Raises OSError."""

    def __init__(self, server: InferenceServer, service: Service, options: GrpcSettings) -> None:
        self.server = server
        self.options = options
        self.methods = service.methods
        self.response_encoding: str | None = None
        self.compression_level = 0
        if options.compression_level in _ENCODINGS:
            self.response_encoding, self.compression_level = _ENCODINGS[options.compression_level]
        # What connections share
        self.scratch_view = memoryview(bytearray(SCRATCH_BYTES))
        self.small_room = SmallRoom()
        self.sent_memory = SentMemory()
        self.slow_clients = server.slow_clients
        self.connections: set[ListedConnection] = set()
        self._open = OpenConnections(server.slow_clients, server.max_connections)
        self._service = service
        self._tls = None if options.tls is None else tls_context(options.tls, ["h2"])
        self._listener = listen(options.address, options.port, options.reuse_port)
        self.port: int = self._listener.getsockname()[1]
        self._accepting: asyncio.Server | None = None
        self._gone = asyncio.Event()

    async def start(self) -> None:
        self._accepting = await asyncio.get_running_loop().create_server(
            lambda: Http2Connection(self),
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
        for connection in list(self.connections):
            connection.go_away()
        try:
            await asyncio.wait_for(self._all_gone(), grace_s)
        except asyncio.TimeoutError:
            for connection in list(self.connections):
                connection.close()

    async def _all_gone(self) -> None:
        while self.connections:
            self._gone.clear()
            await self._gone.wait()

    def add(self, connection: ListedConnection, descriptor: int) -> bool:
        """A client has connected; False where there is no descriptor for it."""
        self.connections.add(connection)
        return self._open.add(connection, descriptor)

    def forget(self, connection: ListedConnection) -> None:
        """A connection is closed."""
        self.connections.discard(connection)
        self._open.forget(connection)
        self._gone.set()
