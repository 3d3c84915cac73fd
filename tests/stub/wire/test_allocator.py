"""The allocator against a plain model of itself, and what it gives back to the system."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stubserve_stub.wire.allocator import SLAB, SMALL, Allocator, size_class
from stubserve_stub.wire.arena import Arena
from stubserve_stub.wire.budget import ArenaFull, Ledger

MIB = 1 << 20


def resident(arena: Arena) -> int:
    """Bytes of the arena's file that are backed by memory."""
    return os.fstat(arena.fd).st_blocks * 512


@given(st.integers(0, 1 << 34))
def test_a_size_class_holds_its_size_with_little_waste(nbytes: int) -> None:
    size = size_class(nbytes)
    assert size >= nbytes
    assert size % 64 == 0
    assert size <= max(64, nbytes * 17 // 16 + 4096)
    if nbytes > SMALL:
        assert size % 4096 == 0


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_blocks_never_overlap_and_accounts_stay_right(data: st.DataObject) -> None:
    ledger = Ledger(8 * MIB)
    arena = Arena.create(ledger)
    allocator = Allocator(arena, 0, retain=MIB)
    live: dict[int, int] = {}
    for _ in range(data.draw(st.integers(1, 60))):
        if live and data.draw(st.booleans()):
            offset = data.draw(st.sampled_from(sorted(live)))
            allocator.free(offset)
            del live[offset]
            continue
        nbytes = data.draw(st.one_of(st.integers(0, 4096), st.integers(4096, 3 * MIB)))
        try:
            offset = allocator.allocate(nbytes)
        except ArenaFull:
            assert sum(size_class(size) for size in live.values()) + size_class(nbytes) + 20 * SLAB > 8 * MIB
            continue
        assert offset % 64 == 0
        for other, size in live.items():
            assert offset + nbytes <= other or other + size <= offset
        live[offset] = nbytes
        assert allocator.live_bytes == sum(size_class(size) for size in live.values())
        assert ledger.committed_by(0) >= allocator.live_bytes
    for offset in live:
        allocator.free(offset)
    assert allocator.live_bytes == 0
    allocator.trim()
    # Slabs of small blocks stay; their ends are too short for another block of the size.
    assert allocator.warm_bytes <= ledger.committed_by(0) <= allocator.warm_bytes * 8 // 7
    os.close(arena.fd)


def test_a_freed_block_is_used_again_at_once() -> None:
    allocator = Allocator(Arena.create(Ledger(64 * MIB)), 0, retain=16 * MIB)
    for nbytes in (100, 5000, 4 * MIB):
        first = allocator.allocate(nbytes)
        allocator.free(first)
        assert allocator.allocate(nbytes) == first


def test_large_free_memory_goes_back_to_the_system() -> None:
    ledger = Ledger(64 * MIB)
    arena = Arena.create(ledger)
    allocator = Allocator(arena, 0, retain=8 * MIB)
    offsets = [allocator.allocate(4 * MIB) for _ in range(10)]
    for offset in offsets:
        arena.view(offset, 4 * MIB)[:] = b"x" * (4 * MIB)
    assert resident(arena) >= 40 * MIB
    for offset in offsets:
        allocator.free(offset)
    assert resident(arena) <= 9 * MIB
    assert ledger.committed() == {0: 8 * MIB}


def test_cold_memory_reads_as_zeros_and_coalesces() -> None:
    arena = Arena.create(Ledger(64 * MIB))
    allocator = Allocator(arena, 0, retain=0)
    offsets = [allocator.allocate(8 * MIB) for _ in range(7)]
    arena.view(offsets[0], 8)[:] = b"x" * 8
    for offset in offsets[::2] + offsets[1::2]:
        allocator.free(offset)
    whole = allocator.allocate(60 * MIB)
    assert whole == offsets[0]
    assert bytes(arena.view(whole, 8)) == bytes(8)


def test_the_limit_is_hard_and_says_what_to_do() -> None:
    arena = Arena.create(Ledger(4 * MIB))
    allocator = Allocator(arena, 0, retain=MIB)
    kept = allocator.allocate(3 * MIB)
    with pytest.raises(ArenaFull, match="--shm-limit"):
        allocator.allocate(2 * MIB)
    allocator.free(kept)
    allocator.allocate(2 * MIB)


def test_warm_memory_makes_room_before_the_limit_is_felt() -> None:
    arena = Arena.create(Ledger(4 * MIB))
    allocator = Allocator(arena, 0, retain=4 * MIB)
    allocator.free(allocator.allocate(3 * MIB))
    allocator.allocate(2 * MIB)


def test_the_limit_counts_all_segments() -> None:
    ledger = Ledger(4 * MIB)
    arena = Arena.create(ledger)
    one = Allocator(arena, 0, retain=0)
    other = Allocator(arena, 1, retain=0)
    one.allocate(3 * MIB)
    with pytest.raises(ArenaFull, match="3145728 of 4194304 bytes are in use"):
        other.allocate(2 * MIB)
    ledger.uncommit(0, 3 * MIB)
    other.allocate(2 * MIB)


def test_a_block_that_shrinks_gives_back_what_is_behind_it() -> None:
    ledger = Ledger(64 * MIB)
    arena = Arena.create(ledger)
    allocator = Allocator(arena, 0, retain=0)
    offset = allocator.reserve(32 * MIB)
    allocator.grow(offset, 5 * MIB)
    arena.view(offset, 8)[:] = b"x" * 8
    allocator.shrink(offset, 3 * MIB)
    assert ledger.committed() == {0: 3 * MIB}
    assert bytes(arena.view(offset, 8)) == b"x" * 8
    behind = allocator.allocate(20 * MIB)
    assert behind == offset + 3 * MIB
    assert bytes(arena.view(behind, 8)) == bytes(8)
    # A whole one shrinks as well, and none becomes larger.
    allocator.shrink(behind, 4 * MIB)
    allocator.shrink(offset, 30 * MIB)
    assert ledger.committed() == {0: 7 * MIB}
    allocator.free(offset)
    allocator.free(behind)
    assert not ledger.committed()
    assert allocator.allocate(60 * MIB) == offset


def test_freeing_twice_is_refused() -> None:
    allocator = Allocator(Arena.create(Ledger(MIB)), 0, retain=0)
    offset = allocator.allocate(10)
    allocator.free(offset)
    with pytest.raises(KeyError):
        allocator.free(offset)


def test_a_reserved_block_is_committed_as_it_grows() -> None:
    ledger = Ledger(16 * MIB)
    arena = Arena.create(ledger)
    allocator = Allocator(arena, 0, retain=8 * MIB)
    one, other = allocator.reserve(12 * MIB), allocator.reserve(12 * MIB)
    assert not ledger.total
    assert allocator.grow(one, 5 * MIB + 1) == 5 * MIB + 4096
    arena.view(one, 5 * MIB)[:] = b"x" * (5 * MIB)
    assert ledger.committed() == {0: 5 * MIB + 4096}
    assert allocator.grow(one, MIB) == 5 * MIB + 4096
    with pytest.raises(ArenaFull):
        allocator.grow(other, 12 * MIB)
    allocator.free(other)
    allocator.free(one)
    assert not ledger.total
    assert resident(arena) < MIB
    # All address space is one piece again.
    allocator.free(allocator.reserve(16 * MIB))


def test_a_reserved_block_that_is_whole_becomes_warm() -> None:
    ledger = Ledger(16 * MIB)
    arena = Arena.create(ledger)
    allocator = Allocator(arena, 0, retain=8 * MIB)
    one = allocator.reserve(4 * MIB)
    assert allocator.grow(one, 4 * MIB) == 4 * MIB
    allocator.free(one)
    assert allocator.warm_bytes == 4 * MIB
    again = allocator.reserve(4 * MIB)
    assert again == one
    assert allocator.grow(again, 0) == 4 * MIB


def test_many_may_reserve_more_than_there_is_but_none_alone() -> None:
    arena = Arena.create(Ledger(16 * MIB))
    allocator = Allocator(arena, 0, retain=MIB)
    assert len({allocator.reserve(12 * MIB) for _ in range(13)}) == 13
    assert allocator.allocate(15 * MIB)
    with pytest.raises(ArenaFull):
        allocator.reserve(17 * MIB)
