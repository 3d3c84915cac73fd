"""What requests keep in the heap and what they keep in the arena are one sum."""

from __future__ import annotations

import pytest

from stubserve.errors import Code, ServeError
from stubserve.memory.heap_account import FREE_BYTES
from stubserve.memory.server_memory import Memory

MIB = 1 << 20


def test_heap_and_arena_share_one_limit() -> None:
    memory = Memory(16 * MIB)
    memory.heap.take(10 * MIB)
    with pytest.raises(ServeError, match="--shm-limit") as refused:
        memory.block(8 * MIB)
    assert refused.value.code is Code.UNAVAILABLE
    assert f"{10 * MIB} bytes of texts and bodies" in refused.value.message
    memory.heap.give_back(10 * MIB)
    memory.block(8 * MIB).drop()
    assert memory.heap.taken == 0


def test_what_is_refused_is_not_counted() -> None:
    memory = Memory(16 * MIB)
    block = memory.block(12 * MIB)
    with pytest.raises(ServeError, match=rf"--shm-limit.*Requests hold {12 * MIB} bytes of tensors"):
        memory.heap.take(8 * MIB)
    assert memory.heap.taken == 0
    block.drop()
    # The block is free and still warm; it goes back to the system for what is wanted now.
    memory.heap.take(15 * MIB)


def test_a_share_counts_what_is_more_than_a_little() -> None:
    memory = Memory(16 * MIB)
    share = memory.heap.share()
    share.add(FREE_BYTES)
    assert memory.heap.taken == 0
    share.add(1)
    assert memory.heap.taken == FREE_BYTES + 1
    share.add(MIB)
    with pytest.raises(ServeError):
        share.add(16 * MIB)
    assert memory.heap.taken == FREE_BYTES + 1 + MIB
    share.drop()
    share.drop()
    assert memory.heap.taken == 0
