"""The server's end of all HTTP connections: what they share."""

# Compiled by mypyc.
from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from stubserve.api.access_log import log_answer
from stubserve.api.inference_server import InferenceServer
from stubserve.connections.open_connections import OpenConnections
from stubserve.connections.sent_memory import SentMemory
from stubserve.http.access import Cors, HttpAccess
from stubserve.http.message import RequestHead
from stubserve.http.reader import SCRATCH_BYTES, KnownHeads, RequestReader
from stubserve.memory.blocks import Block
from stubserve.memory.heap_account import FREE_BYTES

log = logging.getLogger("stubserve.http")


class HttpEndpoint:
    """What the connections of one server share: scratch buffer, known heads, memory being sent, open connections."""

    def __init__(
        self,
        server: InferenceServer,
        cors: Cors | None = None,
        log_answers: bool = False,
        access: HttpAccess | None = None,
    ) -> None:
        # None if everybody may ask for everything
        self.access = access
        # None if pages of other origins may not ask
        self.cors = cors
        self.server = server
        self.heads = KnownHeads()
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.sent_memory = SentMemory()
        # Whether the log gets a line for each request; for each answer, with its status
        self.log_requests = False
        self.log_answers = log_answers
        self.slow_clients = server.slow_clients
        self.open = OpenConnections(server.slow_clients, server.max_connections)

    def reader(self, transport: asyncio.Transport) -> RequestReader:
        """The reader of a new connection."""
        return RequestReader(self.server, self.heads, self.scratch, transport)

    def kept(self, part: bytes | memoryview, blocks: Sequence[Block]) -> bytes | memoryview:
        """A part of a large reply, held and counted until the client has taken it. Raises ServeError."""
        if not isinstance(part, bytes):
            return self.sent_memory.wrap(part, blocks)
        if len(part) <= FREE_BYTES:
            return part
        share = self.server.heap.share()
        share.add(len(part))
        return self.sent_memory.wrap_text(part, share)

    def log_request(self, head: RequestHead) -> None:
        log.debug("HTTP request: %s %s", head.method.decode("latin-1"), head.target.decode("latin-1"))

    def log_answer(
        self, client: str, head: RequestHead, id: str, status: int, began_ns: int, received: int, sent: int
    ) -> None:
        """Writes a line into the access log; `received` and `sent` are the bytes of the bodies."""
        method, target = head.method.decode("latin-1"), head.target.decode("latin-1")
        model, version = head.infer or head.generate or ("", "")
        names = {"model": model, "version": version, "id": id}
        log_answer(client, f"{method} {target} HTTP/1.1", status, names, began_ns, received, sent)
