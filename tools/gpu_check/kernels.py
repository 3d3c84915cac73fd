"""Checks with kernels, which are PTX as text: the driver compiles it, so nothing of CUDA has to be installed."""

from __future__ import annotations

import ctypes
import struct
from ctypes import byref, c_uint, c_ulonglong, c_void_p

from stubserve_stub.device.cuda import Stream
from stubserve_stub.device.driver import NotSupported
from stubserve_stub.device.pool import Pool

from . import other
from .row import MIB, BrokenError, Gpu, NotTriedError, Row

# The newest architecture that is asked for; the driver compiles for any later one.
NEWEST = 75
# `fill` writes seed + i to word i; `spin` takes so many nanoseconds.
PTX = """
.version 7.0
.target sm_{architecture}
.address_size 64

.visible .entry fill(.param .u64 to, .param .u32 count, .param .u32 seed)
{{
    .reg .pred %done;
    .reg .b32 %at, %block, %width, %count, %value;
    .reg .b64 %to, %offset;
    ld.param.u64 %to, [to];
    ld.param.u32 %count, [count];
    ld.param.u32 %value, [seed];
    mov.u32 %block, %ctaid.x;
    mov.u32 %width, %ntid.x;
    mov.u32 %at, %tid.x;
    mad.lo.u32 %at, %block, %width, %at;
    setp.ge.u32 %done, %at, %count;
    @%done ret;
    cvta.to.global.u64 %to, %to;
    mul.wide.u32 %offset, %at, 4;
    add.u64 %to, %to, %offset;
    add.u32 %value, %value, %at;
    st.global.u32 [%to], %value;
    ret;
}}

.visible .entry spin(.param .u64 nanoseconds)
{{
    .reg .pred %early;
    .reg .b64 %now, %end;
    ld.param.u64 %end, [nanoseconds];
    mov.u64 %now, %globaltimer;
    add.u64 %end, %end, %now;
again:
    mov.u64 %now, %globaltimer;
    setp.lt.u64 %early, %now, %end;
    @%early bra again;
    ret;
}}
"""
WORDS = MIB
SPIN_NS = 300_000_000


def ptx(capability: tuple[int, int]) -> bytes:
    """The kernels for a device of this compute capability, or a later one."""
    return PTX.format(architecture=min(10 * capability[0] + capability[1], NEWEST)).encode()


class Kernels:
    """Both kernels, compiled for the device. Raises NotTriedError where the driver runs none."""

    def __init__(self, gpu: Gpu) -> None:
        self._device = gpu.device
        gpu.find("cuModuleLoadData")
        module = c_void_p()
        try:
            gpu.device.call("cuModuleLoadData", byref(module), ptx(gpu.facts.compute_capability))
        except NotSupported as error:
            raise NotTriedError(f"the driver runs no kernels ({error.name})") from None
        for name in ("cuModuleGetFunction", "cuLaunchKernel"):
            gpu.find(name)
        self._fill, self._spin = c_void_p(), c_void_p()
        gpu.device.call("cuModuleGetFunction", byref(self._fill), module, b"fill")
        gpu.device.call("cuModuleGetFunction", byref(self._spin), module, b"spin")

    def fill(self, stream: Stream, address: int, count: int, seed: int) -> None:
        self._launch(stream, self._fill, (count + 255) // 256, 256, c_ulonglong(address), c_uint(count), c_uint(seed))

    def spin(self, stream: Stream, nanoseconds: int) -> None:
        self._launch(stream, self._spin, 1, 1, c_ulonglong(nanoseconds))

    def _launch(self, stream: Stream, function: c_void_p, blocks: int, threads: int, *arguments: object) -> None:
        pointers = (c_void_p * len(arguments))(*(ctypes.addressof(one) for one in arguments))  # type: ignore[arg-type]
        self._device.call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, stream.handle, pointers, None)


def words(seed: int) -> bytes:
    return struct.pack(f"<{WORDS}I", *range(seed, seed + WORDS))


def writes_to_the_pool(gpu: Gpu) -> str:
    kernels = Kernels(gpu)
    pool = Pool(gpu.device, 64 * MIB)
    pool.allocate(30 * MIB, "before")
    address = pool.window.address(pool.allocate(4 * WORDS, "check"), 4 * WORDS)
    with gpu.stream() as stream:
        kernels.fill(stream, address, WORDS, 3)
    gpu.expect(address, words(3), "what the kernel wrote")
    return "across two chunks"


def writes_to_another_process(gpu: Gpu) -> str:
    kernels = Kernels(gpu)
    with other.process("maker") as maker:
        window, offset = maker.take_block(gpu)
        with gpu.stream() as stream:
            kernels.fill(stream, window.address(offset, other.BLOCK), WORDS, 9)
        maker.connection.send(b"+")
        if maker.connection.recv(8) != words(9)[:8]:
            raise BrokenError("the other process does not see what the kernel wrote here")
    return ""


def waits(gpu: Gpu) -> str:
    """A copy in another stream has a slow kernel's words if it waits for the event, and not if it does not."""
    kernels = Kernels(gpu)
    pool = Pool(gpu.device, 64 * MIB)
    source, to = (pool.window.address(pool.allocate(4 * WORDS, "check"), 4 * WORDS) for _ in range(2))
    event = gpu.device.event()
    old = words(0)
    with gpu.stream() as first, gpu.stream() as second:
        kernels.fill(first, source, WORDS, 0)
        first.synchronize()
        kernels.spin(first, SPIN_NS)
        kernels.fill(first, source, WORDS, 77)
        first.record(event)
        if event.reached:
            raise BrokenError("adding work took as long as the work")
        second.copy(to, source, 4 * WORDS)
        second.synchronize()
        early = gpu.read(to, len(old)) == old
        second.wait(event)
        second.copy(to, source, 4 * WORDS)
        second.synchronize()
        if not event.reached:
            raise BrokenError("the stream did not wait")
    gpu.expect(to, words(77), "after the wait")
    return "without the wait the bytes were the old ones" if early else "without the wait they were right by chance"


ROWS = [
    Row("a kernel writes to a pool", writes_to_the_pool),
    Row("a kernel writes to another process' pool", writes_to_another_process),
    Row("a stream that waits for an event sees what a slow kernel of another wrote", waits),
]
