"""What the connections of one server have in common."""

from __future__ import annotations

from stubserve.api.inference_server import InferenceServer
from stubserve.connections.open_connections import OpenConnections
from stubserve.connections.sent_memory import SentMemory
from stubserve.http.access import HttpAccess
from stubserve.http.cors import Cors
from stubserve.http.head import HeadCache

SCRATCH_BYTES = 64 * 1024
# A head and the JSON of a few tensors: what is read at first of a request that will be large.
HEAD_BYTES = 4 * 1024


class Connections:
    """What the connections of one server share.

    That is the scratch buffer, known heads, memory being sent, and the list of those that are open.
    """

    def __init__(
        self,
        server: InferenceServer,
        cors: Cors | None = None,
        log_answers: bool = False,
        access: HttpAccess | None = None,
    ) -> None:
        # None where everybody may ask for everything
        self.access = access
        # None where pages of other origins are not told that they may ask
        self.cors = cors
        self.server = server
        self.scratch_view = memoryview(bytearray(SCRATCH_BYTES))
        self.head_view = self.scratch_view[:HEAD_BYTES]
        self.heads = HeadCache(() if access is None else access.credentials)
        self.sent_memory = SentMemory()
        # Whether each request gets a line in the log; each answer, with its status
        self.log_requests = False
        self.log_answers = log_answers
        self.slow_clients = server.slow_clients
        self.open = OpenConnections(server.slow_clients, server.max_connections)

    def where_http2_is(self) -> str:
        """What a client is told that speaks HTTP/2 on this port."""
        port = self.server.grpc_port
        where = f"gRPC is served on port {port}" if port else "gRPC is not served (--allow-grpc)"
        return f"this port speaks HTTP/1.1, not HTTP/2; {where}"
