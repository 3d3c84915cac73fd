"""Pools of a device's memory: blocks, chunks, and what is said when there is no room."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stubserve_stub.device.cuda import Cuda, Device
from stubserve_stub.device.driver import DeviceLost, DriverError, NotSupported
from stubserve_stub.device.pool import ALIGNMENT, Pool, PoolFull
from stubserve_stub.device.window import Window

from tests.emulated_gpu import Emulator
from tests.stub.device.memory import CHUNK, MIB, read, write


def take_all(pool: Pool, window: Window) -> None:
    """Has another window take the chunks that are new."""
    for index, descriptor in pool.new_chunks():
        window.take(index, descriptor)
        os.close(descriptor)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_chunk_is_made_when_a_block_needs_it(device: Device, emulator: Emulator) -> None:
    pool = Pool(device, 8 * MIB, chunk_bytes=2 * MIB)
    assert pool.statistics() == (8 * MIB, 0, 0, {})
    small = pool.allocate(1, "small")
    large = pool.allocate(3 * MIB, "large")
    assert pool.statistics() == (8 * MIB, 4 * MIB, 3 * MIB + 1, {"small": 1, "large": 3 * MIB})
    assert small % ALIGNMENT == large % ALIGNMENT == 0
    # What is free again is used again.
    pool.free(large)
    assert pool.allocate(3 * MIB, "again") == large
    assert pool.statistics().mapped == 4 * MIB
    pool.close()


def test_a_block_across_chunks_is_one_piece_of_memory(device: Device) -> None:
    pool = Pool(device, 8 * MIB, chunk_bytes=2 * MIB)
    other = Window(device, pool.window.span, pool.window.chunk_bytes)
    content = os.urandom(5 * MIB)
    offset = pool.allocate(len(content), "x")
    address = pool.window.address(offset, len(content))
    write(device, address, content)
    take_all(pool, other)
    assert other.address(offset, len(content)) != address
    assert read(device, other.address(offset, len(content)), len(content)) == content
    other.close()
    pool.close()


@settings(max_examples=30)
@given(st.data())
def test_blocks_never_overlap_and_are_always_mapped(built: object, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STUBSERVE_CUDA_DRIVER", str(built))
        device = Cuda().open(0)
    pool = Pool(device, 16 * MIB, chunk_bytes=2 * MIB)
    live: dict[int, int] = {}
    for _ in range(data.draw(st.integers(1, 40))):
        if live and data.draw(st.booleans()):
            offset = data.draw(st.sampled_from(sorted(live)))
            pool.free(offset)
            del live[offset]
            continue
        nbytes = data.draw(st.one_of(st.integers(0, 5000), st.integers(5000, 4 * MIB)))
        try:
            offset = pool.allocate(nbytes, "block")
        except PoolFull:
            continue
        assert offset % ALIGNMENT == 0
        assert pool.window.offset(pool.window.address(offset, nbytes), nbytes) == offset
        assert all(offset + nbytes <= other or other + size <= offset for other, size in live.items())
        live[offset] = nbytes
        assert pool.statistics().held == sum(live.values())
    assert pool.statistics().mapped <= 16 * MIB
    pool.close()
    device.close()


def test_over_the_limit_it_says_what_holds_the_memory(device: Device) -> None:
    pool = Pool(device, 8 * MIB)
    blocks = [pool.allocate(3 * MIB, "output 'Y'"), pool.allocate(2 * MIB, "state 'S'")]
    with pytest.raises(PoolFull) as full:
        pool.allocate(4 * MIB, "output 'Y'")
    assert str(full.value) == (
        "no room for 4194304 bytes in the pool of GPU 0, which has 8388608 bytes; output 'Y' has 3145728, "
        "state 'S' has 2097152. Raise --cuda-memory-pool-byte-size=0:BYTES"
    )
    assert full.value.nbytes == 4 * MIB
    for block in blocks:
        pool.free(block)
    with pytest.raises(PoolFull, match="nothing is in use"):
        pool.allocate(9 * MIB, "output 'Y'")
    pool.allocate(8 * MIB, "output 'Y'")
    pool.close()


def test_many_holders_are_not_all_named(device: Device) -> None:
    pool = Pool(device, 2 * MIB)
    for at in range(8):
        pool.allocate(1000 + at, f"output {at}")
    with pytest.raises(PoolFull, match=r"output 7 has 1007, .*output 3 has 1003, and 3 more\. Raise"):
        pool.allocate(2 * MIB, "more")
    pool.close()


def test_the_device_has_no_memory_left(monkeypatch: pytest.MonkeyPatch, emulator: Emulator) -> None:
    """The error has the driver's name for it. What was there stays, and there is room once others let go."""
    monkeypatch.setenv("EMULATED_GPU_MEMORY", str(3 * CHUNK))
    device = Cuda().open(0)
    others = device.create(CHUNK)
    pool = Pool(device, 64 * MIB, chunk_bytes=CHUNK)
    kept = pool.allocate(MIB, "kept")
    write(device, pool.window.address(kept, 4), b"kept")
    with pytest.raises(PoolFull) as full:
        pool.allocate(5 * MIB, "too much")
    assert str(full.value) == (
        "no room for 5242880 bytes: GPU 0 has 0 of its 6291456 bytes left. cuMemCreate failed on GPU 0 with "
        "CUDA_ERROR_OUT_OF_MEMORY (out of memory). Of the pool, kept has 1048576"
    )
    assert read(device, pool.window.address(kept, 4), 4) == b"kept"
    assert pool.statistics().held == MIB
    device.release(others)
    assert pool.allocate(4 * MIB, "enough") == MIB
    pool.close()
    assert emulator.live() == {}


@pytest.mark.parametrize("function", ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemExportToShareableHandle"])
def test_a_chunk_that_cannot_be_made_leaves_nothing(device: Device, emulator: Emulator, function: str) -> None:
    pool = Pool(device, 8 * MIB, chunk_bytes=CHUNK)
    before, descriptors = emulator.live(), open_descriptors()
    emulator.fail(function, 1)
    with pytest.raises(DriverError, match=f"{function} failed on GPU 0 with CUDA_ERROR_INVALID_VALUE"):
        pool.allocate(MIB, "x")
    assert (emulator.live(), open_descriptors()) == (before, descriptors)
    assert pool.statistics() == (8 * MIB, 0, 0, {})
    assert pool.new_chunks() == []
    pool.allocate(MIB, "x")
    pool.close()
    assert open_descriptors() == descriptors


@pytest.mark.parametrize("function", ["cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess"])
def test_a_chunk_that_cannot_be_taken_leaves_nothing(device: Device, emulator: Emulator, function: str) -> None:
    pool = Pool(device, 8 * MIB, chunk_bytes=CHUNK)
    other = Window(device, pool.window.span, CHUNK)
    pool.allocate(MIB, "x")
    ((index, descriptor),) = pool.new_chunks()
    before, descriptors = emulator.live(), open_descriptors()
    emulator.fail(function, 1)
    with pytest.raises(DriverError, match=function):
        other.take(index, descriptor)
    assert (emulator.live(), open_descriptors()) == (before, descriptors)
    other.take(index, descriptor)
    os.close(descriptor)
    for window in (other, pool):
        window.close()


def test_what_is_not_mapped_has_no_address(device: Device) -> None:
    pool = Pool(device, 8 * MIB, chunk_bytes=CHUNK)
    window, offset = pool.window, pool.allocate(MIB, "x")
    window.address(offset, CHUNK)
    for at, nbytes in ((offset, CHUNK + 1), (CHUNK, 1), (-1, 1), (0, -1), (8 * MIB, 1), (0, 9 * MIB)):
        with pytest.raises(ValueError, match="of the pool are not mapped"):
            window.address(at, nbytes)
    start = window.address(0, 1)
    assert window.offset(start + 5, 5) == 5
    assert window.offset(start + CHUNK - 1, 2) is None
    assert window.offset(start - 1, 1) is None
    pool.close()


def test_a_chunk_is_taken_once_and_only_if_it_is_one(device: Device) -> None:
    pool = Pool(device, 8 * MIB, chunk_bytes=CHUNK)
    pool.allocate(MIB, "x")
    ((_, descriptor),) = pool.new_chunks()
    for index in (0, 4, -1):
        with pytest.raises(ValueError, match="mapped already, or outside"):
            pool.window.take(index, descriptor)
    with open("/dev/null") as other, pytest.raises(DriverError, match="cuMemImportFromShareableHandle"):
        pool.window.take(1, other.fileno())
    os.close(descriptor)
    pool.close()


def test_a_pool_for_a_peer(cuda: Cuda, device: Device) -> None:
    """With peers, the other device copies from the pool by itself."""
    other = cuda.open(1)
    pool, own = Pool(device, 2 * MIB, readers=[1]), Pool(other, 2 * MIB)
    source, to = (one.window.address(one.allocate(8, "x"), 8) for one in (pool, own))
    write(device, source, b"by peers")
    stream = other.stream()
    stream.copy(to, source, 8)
    stream.synchronize()
    stream.close()
    assert read(other, to, 8) == b"by peers"
    pool.close()
    own.close()
    other.close()


def test_a_device_that_shares_no_memory(monkeypatch: pytest.MonkeyPatch, emulator: Emulator) -> None:
    monkeypatch.setenv("EMULATED_VMM", "0")
    device = Cuda().open(0)
    with pytest.raises(NotSupported, match=r"GPU 0 \(Emulated GPU\) cannot share its memory"):
        Pool(device, 8 * MIB)


def test_the_device_is_lost(device: Device, emulator: Emulator) -> None:
    pool = Pool(device, 8 * MIB, chunk_bytes=CHUNK)
    pool.allocate(MIB, "x")
    emulator.lose(0, 719)
    with pytest.raises(DeviceLost, match="cuMemCreate failed on GPU 0 with CUDA_ERROR_LAUNCH_FAILED"):
        pool.allocate(3 * MIB, "y")
    assert pool.statistics().holders == {"x": MIB}
    emulator.lose(0, 0)
    pool.close()


def test_sizes_are_those_of_the_device(device: Device) -> None:
    """A limit that is no multiple of the granularity is rounded down, but a pool has a chunk at least."""
    for limit, span, chunk in ((5 * MIB, 4 * MIB, 4 * MIB), (1, CHUNK, CHUNK), (100 * MIB, 96 * MIB, 32 * MIB)):
        pool = Pool(device, limit)
        assert (pool.window.span, pool.window.chunk_bytes) == (span, chunk)
        pool.close()
