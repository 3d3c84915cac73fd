"""What a protocol's inference needs of the rest of the server."""

from __future__ import annotations

from typing import Protocol

from stubserve.inference.heap_account import HeapAccount
from stubserve.inference.memory import Block
from stubserve.inference.served_model import ServedModel
from stubserve.protocols.arrival import Arrivals
from stubserve.protocols.departure import Departures
from stubserve.protocols.forwarding import HeaderForwarding
from stubserve.protocols.stall import Pace


class Ingress(Protocol):
    """The server: finds models, gives memory of the arena, and counts what is kept outside of it."""

    max_input_size: int
    heap: HeapAccount
    arrivals: Arrivals
    departures: Departures
    pace: Pace
    http_forwarding: HeaderForwarding | None

    def find_model(self, name: str, version: str) -> ServedModel: ...

    def block(self, nbytes: int) -> Block: ...

    def store(self, data: bytes | memoryview) -> Block: ...
