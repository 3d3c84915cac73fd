"""The server's end of all HTTP/2 connections: what they share, and their settings."""

from __future__ import annotations

from stubserve.api.inference_server import InferenceServer
from stubserve.connections.open_connections import OpenConnections
from stubserve.connections.sent_memory import SentMemory
from stubserve.grpc.transport import Method
from stubserve.settings.fronts import GrpcSettings

# The most that one read of a connection brings
SCRATCH_BYTES = 256 * 1024
# The heap that unfinished short messages share
SHORT_MESSAGES_BYTES = 16 << 20

# The encoding that grpcio's core chooses at each level if the client takes all encodings; then zlib's own level, which
# is low because compressing takes the event loop's time.
_ENCODINGS: dict[str, tuple[str, int]] = {"low": ("gzip", 1), "medium": ("deflate", 3), "high": ("deflate", 6)}


class Endpoint:
    """What the connections of one server share.

    `encoding` compresses answers for clients that take it; None: no compression. `short_messages_left` is the part of
    the heap for unfinished short messages that none of them claims.
    """

    def __init__(self, server: InferenceServer, methods: dict[str, Method], options: GrpcSettings) -> None:
        self.server = server
        self.methods = methods
        self.options = options
        self.encoding: str | None = None
        self.compression_level = 0
        if options.compression_level in _ENCODINGS:
            self.encoding, self.compression_level = _ENCODINGS[options.compression_level]
        self.scratch_view = memoryview(bytearray(SCRATCH_BYTES))
        self.short_messages_left = SHORT_MESSAGES_BYTES
        self.sent_memory = SentMemory()
        self.slow_clients = server.slow_clients
        self.open = OpenConnections(server.slow_clients, server.max_connections)
