"""The arena: versions, the absence of a name, and what a stub can write to."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest
from stubserve_stub.wire import layout
from stubserve_stub.wire.arena import Arena
from stubserve_stub.wire.budget import Grant, Ledger
from stubserve_stub.wire.layout import PAGE
from stubserve_stub.wire.stub_arena import StubArena

MIB = 1 << 20


def stub_of(arena: Arena, own: int) -> StubArena:
    return StubArena(arena.fd, arena.facts(), own, Grant())


def can_write(arena: Arena, offset: int) -> bool:
    """Asked of the kernel, which refuses to write where the process would die of it."""
    with open("/dev/zero", "rb", buffering=0) as zeros:
        try:
            return zeros.readinto(arena.view(offset, 1)) == 1
        except OSError as error:
            if error.errno != errno.EFAULT:
                raise
            return False


def test_two_sights_of_one_arena_see_the_same_bytes() -> None:
    arena = Arena.create(Ledger(MIB))
    offset = arena.segment(3).start + layout.HEAP
    other = stub_of(arena, 3)
    arena.view(offset, 5)[:] = b"hello"
    assert bytes(other.view(offset, 5)) == b"hello"
    assert (other.limit, other.span) == (arena.limit, arena.span)


def test_another_wire_version_is_refused() -> None:
    arena = Arena.create(Ledger(MIB))
    with pytest.raises(RuntimeError, match="wire version 99"):
        StubArena(arena.fd, {**arena.facts(), "version": 99}, 1, Grant())


def test_it_has_no_name_and_costs_only_what_is_touched() -> None:
    before = set(os.listdir("/dev/shm"))
    arena = Arena.create(Ledger(1 << 33))
    for index in range(4):
        arena.segment(index)
    assert set(os.listdir("/dev/shm")) == before
    assert os.readlink(f"/proc/self/fd/{arena.fd}").startswith("/memfd:")
    assert os.fstat(arena.fd).st_blocks * 512 < 1 << 16


def test_many_instances_fit_where_the_limit_is_large() -> None:
    arena = Arena.create(Ledger(2 << 40))
    for index in range(300):
        arena.segment(index)


def test_released_pages_read_as_zeros() -> None:
    arena = Arena.create(Ledger(MIB))
    segment = arena.segment(1)
    behind = segment.span - layout.PAGE
    segment.view[layout.HEAP] = segment.view[behind - 1] = segment.view[behind] = 7
    segment.release_pages(segment.start + layout.PAGE, behind - layout.PAGE)
    assert (segment.view[layout.HEAP], segment.view[behind - 1], segment.view[behind]) == (0, 0, 7)


@pytest.mark.parametrize(
    ("place", "writable"),
    [
        (0, False),
        (layout.PARENT_WORDS, False),
        (layout.REQUEST_RING, False),
        (layout.ANSWER_RING + layout.RING_BYTES - 1, False),
        (layout.STUB_WORDS, True),
        (layout.RESPONSE_RING + layout.RING_BYTES - 1, True),
        (layout.HEAP_GUARD, False),
        (layout.HEAP, True),
    ],
)
def test_a_stub_writes_only_to_its_part_of_its_segment(place: int, writable: bool) -> None:
    arena = Arena.create(Ledger(MIB))
    start = arena.segment(1).start
    stub = stub_of(arena, 1)
    assert can_write(stub, start + place) is writable
    assert can_write(stub, arena.segment(0).start + layout.HEAP) is False
    assert can_write(stub, arena.segment(2).start + layout.HEAP) is False


def test_what_is_made_writable_is_so_until_it_is_over() -> None:
    arena = Arena.create(Ledger(MIB))
    start = arena.segment(0).start + PAGE
    stub = stub_of(arena, 1)
    stub.make_writable(start, 2 * PAGE)
    assert [can_write(stub, start + page * PAGE) for page in (-1, 0, 1, 2)] == [False, True, True, False]
    # Once more, as an answer that has the same memory, and somewhat more of it
    stub.make_writable(start, 3 * PAGE)
    stub.make_read_only(start)
    assert [can_write(stub, start + page * PAGE) for page in (-1, 0, 2, 3)] == [False, True, True, False]
    stub.make_read_only(start)
    assert not any(can_write(stub, start + page * PAGE) for page in range(3))
    stub.make_read_only(start)  # of what is not writable


def test_neighbours_share_their_pages() -> None:
    arena = Arena.create(Ledger(MIB))
    start = arena.segment(0).start + PAGE
    stub = stub_of(arena, 1)
    stub.make_writable(start, PAGE + 64)
    stub.make_writable(start + PAGE + 64, 64)
    stub.make_writable(start + PAGE + 128, PAGE)
    stub.make_read_only(start)
    assert [can_write(stub, start + page * PAGE) for page in range(3)] == [False, True, True]
    stub.make_read_only(start + PAGE + 128)
    assert [can_write(stub, start + page * PAGE) for page in range(3)] == [False, True, False]
    stub.make_read_only(start + PAGE + 64)
    assert not any(can_write(stub, start + page * PAGE) for page in range(3))


MANY = """
from pathlib import Path
from stubserve_stub.wire.arena import Arena
from stubserve_stub.wire.budget import Grant, Ledger
from stubserve_stub.wire.layout import PAGE
from stubserve_stub.wire.stub_arena import StubArena

arena = Arena.create(Ledger(1 << 30))
first = arena.segment(0).start + PAGE
stub = StubArena(arena.fd, arena.facts(), 1, Grant())
most = int(Path("/proc/sys/vm/max_map_count").read_text())
offsets = range(first, first + most * 2 * PAGE, 2 * PAGE)
for offset in offsets:
    stub.make_writable(offset, 8)
for offset in offsets[:: len(offsets) // 100]:
    stub.view(offset, 1)[0] = 1
"""


def test_more_tensors_than_the_kernel_keeps_apart_stay_writable() -> None:
    # In a process of its own: this one would have no mapping left for anything else.
    subprocess.run([sys.executable, "-c", MANY], check=True)
