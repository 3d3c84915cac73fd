"""What the connections of one server have in common."""

from __future__ import annotations

import asyncio
from typing import Protocol

from stubserve.protocols.http.head import HeadCache
from stubserve.protocols.http.reply import SentMemory
from stubserve.protocols.serving import Ingress

SCRATCH_BYTES = 64 * 1024
# A head and the JSON of a few tensors: what is read at first of a request that will be large.
HEAD_BYTES = 4 * 1024
STALL_S = 60.0


class Watched(Protocol):
    """A connection whose request has arrived in part."""

    bytes_received: int

    def stalled(self) -> None: ...


class Connections:
    """What the connections of one server share: scratch buffer, known heads, memory being sent, the stall watch."""

    def __init__(self, ingress: Ingress) -> None:
        self.ingress = ingress
        self.scratch = bytearray(SCRATCH_BYTES)
        self.scratch_view = memoryview(self.scratch)
        self.head_view = self.scratch_view[:HEAD_BYTES]
        self.heads = HeadCache()
        self.sent_memory = SentMemory()
        self._unfinished: dict[Watched, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, connection: Watched) -> None:
        """A request has begun to arrive and is not complete: its client must go on sending."""
        self._unfinished[connection] = -1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(STALL_S / 2, self._sweep)

    def unwatch(self, connection: Watched) -> None:
        self._unfinished.pop(connection, None)

    def _sweep(self) -> None:
        self._timer = None
        for connection, seen in list(self._unfinished.items()):
            if connection.bytes_received == seen:
                connection.stalled()
            else:
                self._unfinished[connection] = connection.bytes_received
        if self._unfinished:
            self._timer = asyncio.get_running_loop().call_later(STALL_S / 2, self._sweep)
