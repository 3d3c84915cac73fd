"""What connections, streams and the transport are to each other."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from stubserve.api.inference_server import InferenceServer
from stubserve.connections.open_connections import OpenConnection
from stubserve.connections.sent_memory import SentMemory
from stubserve.connections.slow_clients import SlowClients
from stubserve.grpc.http2.heads import RpcHead
from stubserve.grpc.http2.inbox import SmallRoom
from stubserve.grpc.http2.outbox import Outlet
from stubserve.grpc.http2.sender import Sending
from stubserve.grpc.transport import Method
from stubserve.settings.groups import GrpcSettings


class StreamOwner(Outlet, Hashable, Protocol):
    """A connection, as its streams know it."""

    small_room: SmallRoom

    @property
    def peer(self) -> str:
        """The client's `<address>:<port>`."""
        ...

    def compression(self, method: Method, head: RpcHead) -> str | None:
        """The encoding of a stream's answers, None for none."""
        ...

    def forget(self, stream: Sending) -> None:
        """Both sides of a stream are closed."""
        ...


class ListedConnection(OpenConnection, Hashable, Protocol):
    """A connection, as the transport knows it."""

    def go_away(self) -> None:
        """No new streams; the connection ends with the last that is open."""
        ...

    def close(self) -> None: ...


class SharedByConnections(Protocol):
    """The transport, as its connections know it."""

    server: InferenceServer
    options: GrpcSettings
    methods: dict[str, Method]
    response_encoding: str | None
    compression_level: int
    scratch_view: memoryview
    small_room: SmallRoom
    sent_memory: SentMemory
    slow_clients: SlowClients

    def add(self, connection: ListedConnection, descriptor: int) -> bool:
        """A client has connected; False where there is no descriptor for it."""
        ...

    def forget(self, connection: ListedConnection) -> None:
        """A connection is closed."""
        ...
