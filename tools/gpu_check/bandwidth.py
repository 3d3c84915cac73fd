"""How fast bytes move, ours beside a bare copy of the same size, and what our own code costs."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from ctypes import addressof, byref, c_char, c_float, c_ulonglong

from stubserve_stub.device.cuda import Stream
from stubserve_stub.device.pool import Pool

from .row import MIB, Gpu, Row

ROUNDS = 10
CALLS = 2000


def _rate(gpu: Gpu, copy: Callable[[Stream], None]) -> str:
    """GB/s of a copy, by the device's clock; the first one is not counted."""
    begun, ended = gpu.device.event(timed=True), gpu.device.event(timed=True)
    with gpu.stream() as stream:
        copy(stream)
        stream.record(begun)
        for _ in range(ROUNDS):
            copy(stream)
        stream.record(ended)
        ended.synchronize()
    took = c_float()
    gpu.device.call("cuEventElapsedTime", byref(took), begun.handle, ended.handle)
    return f"{gpu.measured_bytes * ROUNDS / 1e6 / max(took.value, 1e-3):.1f} GB/s"


def _bare(gpu: Gpu) -> int:
    address = c_ulonglong()
    gpu.device.call("cuMemAlloc", byref(address), gpu.measured_bytes)
    return address.value


def up_and_down(gpu: Gpu) -> str:
    """From and to the arena's kind of memory and a pool; bare is private memory and cuMemAlloc."""
    size = gpu.measured_bytes
    pool = Pool(gpu.device, size)
    ours, bare = pool.window.address(pool.allocate(size, "check"), size), _bare(gpu)
    private = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    private[:] = bytes(size)
    private_address = addressof(c_char.from_buffer(private))
    loose = _rate(gpu, lambda stream: stream.copy_up(ours, private_address, size))
    gpu.device.register(private_address, size)
    with gpu.pinned(size) as (host, address):
        host[:] = bytes(size)
        told = [
            f"up {_rate(gpu, lambda stream: stream.copy_up(ours, address, size))}",
            f"bare {_rate(gpu, lambda stream: stream.copy_up(bare, private_address, size))}",
            f"not registered {loose}",
            f"down {_rate(gpu, lambda stream: stream.copy_down(address, ours, size))}",
            f"bare {_rate(gpu, lambda stream: stream.copy_down(private_address, bare, size))}",
        ]
    return "; ".join(told)


def within(gpu: Gpu) -> str:
    size = gpu.measured_bytes
    pool = Pool(gpu.device, 2 * size)
    one, two = (pool.window.address(pool.allocate(size, "check"), size) for _ in range(2))
    bare_one, bare_two = _bare(gpu), _bare(gpu)
    ours = _rate(gpu, lambda stream: stream.copy(two, one, size))
    return f"{ours}; bare {_rate(gpu, lambda stream: stream.copy(bare_two, bare_one, size))}"


def _microseconds(act: Callable[[], object]) -> str:
    act()
    begun = time.perf_counter()
    for _ in range(CALLS):
        act()
    return f"{(time.perf_counter() - begun) / CALLS * 1e6:.1f} µs"


def own_costs(gpu: Gpu) -> str:
    pool = Pool(gpu.device, 64 * MIB)
    source, to = (pool.window.address(pool.allocate(4096, "check"), 4096) for _ in range(2))
    block = _microseconds(lambda: pool.free(pool.allocate(MIB, "check")))
    with gpu.stream() as stream:

        def copy() -> None:
            stream.copy(to, source, 4096)
            stream.synchronize()

        return f"a block {block}; a copy of 4 KiB within the device, waited for, {_microseconds(copy)}"


ROWS = [
    Row("copies up and down, beside bare ones", up_and_down, measures=True),
    Row("copies within the device, beside bare ones", within, measures=True),
    Row("what our own code costs", own_costs, measures=True),
]
