"""The server's end of all HTTP/2 connections: what they share, and what they have been told to do."""

from __future__ import annotations

from stubserve.api.inference_server import InferenceServer
from stubserve.connections.open_connections import OpenConnections
from stubserve.connections.sent_memory import SentMemory
from stubserve.grpc.transport import Method
from stubserve.settings.fronts import GrpcSettings

# What one read of a connection may bring.
SCRATCH_BYTES = 256 * 1024
# The heap that unfinished short messages share.
SHORT_MESSAGES_BYTES = 16 << 20

# The encodings are those that grpcio's core makes of the levels with a client that takes them all. Behind them zlib's
# own level: compressing takes the event loop's time.
_ENCODINGS: dict[str, tuple[str, int]] = {"low": ("gzip", 1), "medium": ("deflate", 3), "high": ("deflate", 6)}


class Endpoint:
    """What the connections of one server share.

    `encoding` is how answers are compressed for clients that take it, None for not at all. `short_messages_left` is how
    much of the heap unfinished short messages do not claim.
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
