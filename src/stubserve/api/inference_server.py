"""The part of the server that inference by a protocol needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from stubserve.api.fair_queues import FairQueues
from stubserve.api.placement import BodyPlacer, ReplyFormat, Store
from stubserve.connections.receive_buffers import ReceiveBuffers
from stubserve.connections.slow_clients import SlowClients
from stubserve.inference.long_work import Offload
from stubserve.inference.request import Request
from stubserve.inference.served_model import ServedModel
from stubserve.inference.signature import Signature
from stubserve.memory.blocks import Block
from stubserve.memory.heap_account import HeapAccount

if TYPE_CHECKING:
    from stubserve.api.forwarded_headers import HeaderForwarding
    from stubserve.memory.client_regions import ClientRegions


class LargeJson(Protocol):
    """Reads large JSON, so that no other client has to wait for it."""

    async def read_infer(
        self, text: memoryview, signature: Signature, placer: BodyPlacer, max_input_size: int, holds: Block | None
    ) -> tuple[Request, ReplyFormat]: ...

    async def read_generate(self, text: bytes, signature: Signature, store: Store) -> Request: ...

    async def ask(
        self, function: str, about: Any, most: int, text: bytes, store: Store, timeout_s: float | None = None
    ) -> Request: ...


class InferenceServer(Protocol):
    """The server: finds models, gives memory of the arena, and counts memory outside of it.

    `grpc_port` is 0 without gRPC. `regions` and `fair_queues` are None without shared memory and without fair queues.
    """

    max_input_size: int
    grpc_port: int
    heap: HeapAccount
    receive_buffers: ReceiveBuffers
    slow_clients: SlowClients
    max_connections: int
    offload: Offload
    fair_queues: FairQueues | None

    @property
    def large_json(self) -> LargeJson: ...

    http_forwarding: HeaderForwarding | None

    @property
    def regions(self) -> ClientRegions | None: ...

    def find_model(self, name: str, version: str) -> ServedModel: ...

    def block(self, nbytes: int) -> Block: ...

    def store(self, data: bytes | memoryview) -> Block: ...
