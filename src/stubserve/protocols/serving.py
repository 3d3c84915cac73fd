"""What a protocol's inference needs of the rest of the server."""

from __future__ import annotations

from typing import Protocol

from stubserve.inference.memory import Block
from stubserve.inference.served_model import ServedModel
from stubserve.protocols.forwarding import HeaderForwarding


class Ingress(Protocol):
    """The server: finds models, and gives memory of the arena."""

    max_input_size: int
    http_forwarding: HeaderForwarding | None

    def find_model(self, name: str, version: str) -> ServedModel: ...

    def block(self, nbytes: int) -> Block: ...

    def store(self, data: bytes | memoryview) -> Block: ...
