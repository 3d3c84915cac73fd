"""What the connections of one server have in common."""

from __future__ import annotations

from stubserve.protocols.http.head import HeadCache
from stubserve.protocols.sent_memory import SentMemory
from stubserve.protocols.serving import Ingress
from stubserve.protocols.stall import StallWatch

SCRATCH_BYTES = 64 * 1024
# A head and the JSON of a few tensors: what is read at first of a request that will be large.
HEAD_BYTES = 4 * 1024


class Connections(StallWatch):
    """What the connections of one server share: scratch buffer, known heads, memory being sent, the stall watch."""

    def __init__(self, ingress: Ingress) -> None:
        super().__init__(ingress.pace)
        self.ingress = ingress
        self.scratch = bytearray(SCRATCH_BYTES)
        self.scratch_view = memoryview(self.scratch)
        self.head_view = self.scratch_view[:HEAD_BYTES]
        self.heads = HeadCache()
        self.sent_memory = SentMemory()
