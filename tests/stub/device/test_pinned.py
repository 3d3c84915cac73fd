"""Pinned blocks of a stub's segment: when they are pinned, when they are unpinned, and the limit."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stubserve_stub.device.cuda import Cuda, Device
from stubserve_stub.device.pinned import LEAST_BYTES, Pinned
from stubserve_stub.device.pool import Pool
from stubserve_stub.wire import layout
from stubserve_stub.wire.allocator import Allocator
from stubserve_stub.wire.arena import Arena, Segment
from stubserve_stub.wire.budget import Ledger

from tests.emulated_gpu import Emulator
from tests.stub.device.memory import MIB, write

NOT_PERMITTED = 800


@pytest.fixture
def arena() -> Arena:
    return Arena.create(Ledger(64 * MIB))


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def pinned(told: list[str]) -> Pinned:
    return Pinned(8 * MIB, told.append)


@pytest.fixture
def segment(arena: Arena, pinned: Pinned, device: Device) -> Iterator[Segment]:
    segment = arena.segment(0)
    segment.before_release = pinned.unpin
    yield segment
    pinned.unpin(segment.address, segment.span)


def test_pages_that_are_pinned_cannot_go_back_unnoticed(arena: Arena, device: Device) -> None:
    """So a mistake in what follows would show."""
    segment = arena.segment(0)
    device.register(segment.address + layout.HEAP, MIB)
    with pytest.raises(OSError, match="Invalid argument") as refused:
        segment.release_pages(segment.start + layout.HEAP, MIB)
    assert refused.value.errno == errno.EINVAL
    device.unregister(segment.address + layout.HEAP)


def test_a_block_stays_pinned_while_it_is_warm(
    arena: Arena, segment: Segment, pinned: Pinned, device: Device, emulator: Emulator
) -> None:
    allocator = Allocator(arena, 0, retain=4 * MIB)
    block = allocator.allocate(MIB)
    for _ in range(3):
        pinned.pin(device, arena.address(block), MIB)
        allocator.free(block)
        assert allocator.allocate(MIB) == block
        assert pinned.nbytes == MIB
        assert emulator.live()["registrations"] == 1
    allocator.free(block)
    allocator.trim()
    assert pinned.nbytes == 0
    assert "registrations" not in emulator.live()


def test_a_block_that_has_become_larger_is_pinned_anew(
    arena: Arena, segment: Segment, pinned: Pinned, device: Device
) -> None:
    allocator = Allocator(arena, 0, retain=0)
    block = allocator.reserve(4 * MIB)
    allocator.grow(block, MIB)
    pinned.pin(device, arena.address(block), MIB)
    allocator.grow(block, 3 * MIB)
    pinned.pin(device, arena.address(block), 3 * MIB)
    assert pinned.nbytes == 3 * MIB
    allocator.shrink(block, MIB)
    assert pinned.nbytes == 0


def test_small_blocks_and_those_over_the_limit_are_not_pinned(
    arena: Arena, segment: Segment, pinned: Pinned, device: Device, told: list[str]
) -> None:
    at = segment.address + layout.HEAP
    pinned.pin(device, at, LEAST_BYTES - 1)
    assert pinned.nbytes == 0
    pinned.pin(device, at, 5 * MIB)
    pinned.pin(device, at + 5 * MIB, 4 * MIB)
    assert pinned.nbytes == 5 * MIB
    assert told == []


def test_a_driver_that_pins_nothing_is_asked_once(
    segment: Segment, pinned: Pinned, device: Device, emulator: Emulator, told: list[str]
) -> None:
    emulator.fail("cuMemHostRegister", NOT_PERMITTED)
    for at in (0, MIB):
        pinned.pin(device, segment.address + layout.HEAP + at, MIB)
    assert pinned.nbytes == 0
    (text,) = told
    assert text.startswith("host memory cannot be pinned, so copies from GPUs are slower: cuMemHostRegister")


def test_a_lost_device_does_not_keep_pages(
    segment: Segment, pinned: Pinned, device: Device, emulator: Emulator
) -> None:
    """Its process is of no more use for the GPU, but goes on for all else."""
    pinned.pin(device, segment.address + layout.HEAP, MIB)
    emulator.fail("cuMemHostUnregister", 700)
    pinned.unpin(segment.address + layout.HEAP, MIB)
    assert pinned.nbytes == 0
    device.unregister(segment.address + layout.HEAP)


@settings(max_examples=50)
@given(st.data())
def test_what_comes_down_is_there_whatever_was_freed_before(built: object, data: st.DataObject) -> None:
    """Copies into blocks of any sizes, freed in any order: right bytes, and nothing cold is pinned."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STUBSERVE_CUDA_DRIVER", str(built))
        device = Cuda().open(0)
    pinned = Pinned(data.draw(st.sampled_from([0, 1 * MIB, 64 * MIB])), lambda text: None)
    arena = Arena.create(Ledger(64 * MIB))
    segment = arena.segment(0)
    segment.before_release = pinned.unpin
    allocator = Allocator(arena, 0, retain=data.draw(st.sampled_from([0, 2 * MIB])))
    pool = Pool(device, 8 * MIB)
    source = pool.window.address(pool.allocate(MIB, "x"), MIB)
    stream = device.stream()
    live: dict[int, bytes] = {}
    try:
        for turn in range(data.draw(st.integers(1, 20))):
            if live and data.draw(st.booleans()):
                block = data.draw(st.sampled_from(sorted(live)))
                assert bytes(arena.view(block, len(live[block]))) == live.pop(block)
                allocator.free(block)
                continue
            nbytes = data.draw(st.integers(1, MIB))
            content = bytes([turn + 1]) * nbytes
            write(device, source, content)
            block = allocator.allocate(nbytes)
            pinned.pin(device, arena.address(block), allocator.committed(block))
            stream.copy_down(arena.address(block), source, nbytes)
            stream.synchronize()
            live[block] = content
        for block, content in live.items():
            assert bytes(arena.view(block, len(content))) == content
            allocator.free(block)
        allocator.trim()
        assert pinned.nbytes == 0
    finally:
        # Hypothesis breaks examples off.
        pinned.unpin(segment.address, segment.span)
        stream.close()
        pool.close()
        device.close()
