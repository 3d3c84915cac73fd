"""A real arena with one allocator, and bodies put into it."""

from __future__ import annotations

from stubserve_stub.wire.allocator import Allocator
from stubserve_stub.wire.arena import Arena
from stubserve_stub.wire.budget import Ledger

from stubserve.api.placement import BodyPlacer, ReplyFormat, Store
from stubserve.http.infer import decode
from stubserve.inference.request import Request
from stubserve.inference.signature import Signature
from stubserve.memory.blocks import Block


class Memory:
    """Hands out blocks of an arena; `allocator.live_blocks` tells whether all came back."""

    def __init__(self) -> None:
        self.arena = Arena.create(Ledger(1 << 24))
        self.allocator = Allocator(self.arena, 0, retain=1 << 20)

    def store(self, data: bytes | memoryview) -> Block:
        offset = self.allocator.allocate(len(data))
        view = self.arena.view(offset, len(data))
        view[:] = data
        return Block(offset, len(data), view, lambda block: self.allocator.free(block.offset))


def decoded(
    body: bytes, json_length: int | None, model: Signature, store: Store, limit: int = 1 << 20
) -> tuple[Request, ReplyFormat]:
    """As `decode`, for a body that does not lie in the arena."""
    return decode(body, json_length, model, BodyPlacer(body, None, 0, store), limit)
