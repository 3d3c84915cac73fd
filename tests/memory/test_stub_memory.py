"""What becomes of a dead stub's memory."""

from __future__ import annotations

import asyncio

from stubserve_stub.wire.layout import HEAP

from stubserve.memory.server_memory import Memory
from stubserve.memory.stub_memory import StubMemory

NBYTES = 64 << 20


def test_the_memory_of_a_dead_stub_is_emptied_beside_the_event_loop() -> None:
    async def die() -> tuple[int, int, int, int]:
        memory = Memory(1 << 30)
        outputs = StubMemory(memory.segments)
        memory.ledger.commit(outputs.index, NBYTES)
        view = memory.arena.segment(outputs.index).view[HEAP : HEAP + NBYTES]
        view[:] = b"x" * NBYTES
        outputs.close()
        # Nobody gets the segment before it is empty, and its bytes count until then.
        counted, other = memory.ledger.committed_by(outputs.index), StubMemory(memory.segments).index
        assert outputs.emptying is not None
        await outputs.emptying
        assert (memory.ledger.total, view[0]) == (0, 0)
        return outputs.index, other, counted, StubMemory(memory.segments).index

    mine, other, counted, next_one = asyncio.run(die())
    assert counted == NBYTES
    assert other != mine
    assert next_one == mine
