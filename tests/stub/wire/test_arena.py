"""The arena: attaching, versions, and the absence of a name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from stubserve_stub.wire import layout
from stubserve_stub.wire.arena import Arena


def test_two_sights_of_one_arena_see_the_same_bytes() -> None:
    arena = Arena.create(1 << 20)
    offset = arena.segment(3).start + layout.HEAP
    other = Arena.attach(os.dup(arena.fd))
    arena.view(offset, 5)[:] = b"hello"
    assert bytes(other.view(offset, 5)) == b"hello"
    assert (other.limit, other.span) == (arena.limit, arena.span)


def test_another_wire_version_is_refused() -> None:
    arena = Arena.create(1 << 20)
    arena._ledger[layout.LEDGER_VERSION] = 99
    with pytest.raises(RuntimeError, match="wire version 99"):
        Arena.attach(arena.fd)


def test_it_has_no_name_and_costs_only_what_is_touched() -> None:
    before = set(os.listdir("/dev/shm"))
    arena = Arena.create(1 << 33)
    for index in range(4):
        arena.segment(index)
    assert set(os.listdir("/dev/shm")) == before
    assert os.readlink(f"/proc/self/fd/{arena.fd}").startswith("/memfd:")
    assert os.fstat(arena.fd).st_blocks * 512 < 1 << 16
    assert not list(Path("/dev/shm").glob("stubserve*"))


def test_many_instances_fit_where_the_limit_is_large() -> None:
    arena = Arena.create(2 << 40)
    for index in range(300):
        arena.segment(index)


def test_a_forgotten_segment_reads_as_zeros() -> None:
    arena = Arena.create(1 << 20)
    offset = arena.segment(1).start + layout.HEAP
    arena.view(offset, 1)[0] = 7
    arena.commit(1, 4096)
    arena.forget(1)
    assert arena.view(offset, 1)[0] == 0
    assert arena.committed() == {}
