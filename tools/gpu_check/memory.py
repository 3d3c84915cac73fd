"""Checks of one process: devices, errors, copies, pools, registered memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
from ctypes import byref, c_void_p

from stubserve_stub.device.driver import DriverError, OutOfDeviceMemory
from stubserve_stub.device.pinned import Pinned
from stubserve_stub.device.pool import Pool, PoolFull
from stubserve_stub.device.window import Window

from . import other
from .row import MIB, BrokenError, Gpu, NotTriedError, Row, pattern

_READ_ONLY = 8


def devices(gpu: Gpu) -> str:
    told = []
    for facts in gpu.cuda.devices():
        major, minor = facts.compute_capability
        shares = "shares memory" if facts.shares_memory else "cannot share memory"
        told.append(f"GPU {facts.number}: {facts.name}, {facts.memory // MIB} MiB, {major}.{minor}, {shares}")
    told.append(f"CUDA {gpu.cuda.version[0]}.{gpu.cuda.version[1]}")
    if not gpu.facts.shares_memory:
        raise BrokenError("; ".join(told))
    return "; ".join(told)


def names_of_errors(gpu: Gpu) -> str:
    try:
        gpu.device.create(1)
    except DriverError as error:
        said = str(error)
        if error.name != "CUDA_ERROR_INVALID_VALUE":
            raise BrokenError(f"a size of 1: {said}") from None
    else:
        raise BrokenError("memory of 1 byte was made")
    whole = (gpu.facts.memory // gpu.device.granularity + 1) * gpu.device.granularity
    try:
        gpu.device.create(whole)
    except OutOfDeviceMemory:
        return said
    except DriverError as error:
        raise BrokenError(f"more memory than there is: {error}") from None
    raise BrokenError("the device gave more memory than it has")


def up_and_down(gpu: Gpu) -> str:
    pool = Pool(gpu.device, 64 * MIB)
    content = pattern(48 * MIB, 1)
    address = pool.window.address(pool.allocate(len(content), "check"), len(content))
    gpu.write(address, content)
    gpu.expect(address, content, "from the heap, and back")
    with gpu.pinned(len(content)) as (host, host_address), gpu.stream() as stream:
        host[:] = content[::-1]
        stream.copy_up(address, host_address, len(content))
        stream.synchronize()
        host[:] = bytes(len(content))
        stream.copy_down(host_address, address, len(content))
        stream.synchronize()
        if host[:] != content[::-1]:
            raise BrokenError("from registered memory, and back: other bytes")
    return f"{len(content) // MIB} MiB across chunks, from the heap and from registered memory of the arena's kind"


def two_windows(gpu: Gpu) -> str:
    pool = Pool(gpu.device, 64 * MIB)
    content = pattern(40 * MIB, 2)
    offset = pool.allocate(len(content), "check")
    gpu.write(pool.window.address(offset, len(content)), content)
    window = Window(gpu.device, pool.window.span, pool.window.chunk_bytes)
    for index, descriptor in pool.new_chunks():
        window.take(index, descriptor)
        os.close(descriptor)
    gpu.expect(window.address(offset, len(content)), content, "by the second addresses")
    window.close()
    gpu.expect(pool.window.address(offset, len(content)), content, "after they are gone")
    pool.close()
    return f"granularity {gpu.device.granularity // 1024} KiB, chunks of {pool.window.chunk_bytes // MIB} MiB"


def limit(gpu: Gpu) -> str:
    pool = Pool(gpu.device, 64 * MIB)
    pool.allocate(40 * MIB, "output 'Y'")
    try:
        pool.allocate(40 * MIB, "output 'Z'")
    except PoolFull as full:
        return str(full)
    raise BrokenError("a pool of 64 MiB gave 80 MiB")


def events(gpu: Gpu) -> str:
    pool = Pool(gpu.device, 32 * MIB)
    size = 8 * MIB
    one, two = (pool.window.address(pool.allocate(size, "check"), size) for _ in range(2))
    event = gpu.device.event()
    with gpu.pinned(size) as (host, address), gpu.stream() as first, gpu.stream() as second:
        for seed in range(8):
            host[:] = pattern(size, seed)
            first.copy_up(one, address, size)
            first.record(event)
            second.wait(event)
            second.copy(two, one, size)
            second.synchronize()
            gpu.expect(two, pattern(size, seed), f"round {seed}")
    return "8 rounds of 8 MiB through two streams"


def registered_arena(gpu: Gpu) -> str:
    """A part of a large, sparse mapping; then one that may only be read, as a stub sees what others write."""
    descriptor = os.memfd_create("gpu-check", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, 1 << 36)
    mapping = mmap.mmap(descriptor, 1 << 32)
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping)) + (1 << 31)
    gpu.device.register(address, 4 * MIB)
    gpu.device.unregister(address)
    told = ["a part of a sparse mapping"]
    mapping[1 << 31 : (1 << 31) + 4] = b"read"
    ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(address), ctypes.c_size_t(4 * MIB), mmap.PROT_READ)
    for flags, kind in ((1, "as any other"), (1 | _READ_ONLY, "with CU_MEMHOSTREGISTER_READ_ONLY")):
        try:
            gpu.device.call("cuMemHostRegister", address, 4 * MIB, flags)
        except DriverError as error:
            told.append(f"memory that may only be read, {kind}: {error.name}")
        else:
            pool = Pool(gpu.device, 2 * MIB)
            to = pool.window.address(pool.allocate(4, "check"), 4)
            with gpu.stream() as stream:
                stream.copy_up(to, address, 4)
            gpu.expect(to, b"read", "from memory that may only be read")
            gpu.device.unregister(address)
            told.append(f"memory that may only be read, {kind}")
    return "; ".join(told)


def pinned_blocks(gpu: Gpu) -> str:
    """Outputs come down into a block that is pinned, goes back to the system, and is pinned anew."""
    try:
        import numpy  # noqa: F401  # which the arena needs, and the other rows do not
    except ImportError:
        raise NotTriedError("numpy is not installed") from None
    from stubserve_stub.wire.allocator import Allocator
    from stubserve_stub.wire.arena import Arena
    from stubserve_stub.wire.budget import Ledger

    arena = Arena.create(Ledger(64 * MIB))
    pinned = Pinned(64 * MIB, lambda text: None)
    arena.segment(0).before_release = pinned.unpin
    allocator = Allocator(arena, 0, retain=0)
    pool = Pool(gpu.device, 8 * MIB)
    source = pool.window.address(pool.allocate(4 * MIB, "check"), 4 * MIB)
    with gpu.stream() as stream:
        for seed in range(8):
            content = pattern(4 * MIB, seed)
            gpu.write(source, content)
            block = allocator.allocate(4 * MIB)
            pinned.pin(gpu.device, arena.address(block), allocator.committed(block))
            if not pinned.nbytes:
                raise BrokenError("the driver does not pin it")
            stream.copy_down(arena.address(block), source, len(content))
            stream.synchronize()
            # As the server and other stubs see it: by the file, not by the address that is pinned
            if os.pread(arena.fd, len(content), block) != bytes(content):
                raise BrokenError(f"round {seed}: other bytes")
            allocator.free(block)
            if pinned.nbytes:
                raise BrokenError("it is pinned although its pages are gone")
    return "8 rounds of 4 MiB; between them the pages were given back"


def current_context(gpu: Gpu) -> str:
    """What a model has made current stays so; here, that nothing is."""
    gpu.device.free_memory()
    found = c_void_p()
    if gpu.functions.status("cuCtxPopCurrent", byref(found)) == 0 and found.value is not None:
        raise BrokenError("our call left its context current")
    return ""


def host_touches(gpu: Gpu) -> str:
    with other.process("toucher") as one:
        code = one.popen.wait()
    if code != -signal.SIGSEGV:
        raise BrokenError(f"the process that read device memory ended with {code}")
    return "SIGSEGV"


def between_devices(gpu: Gpu) -> str:
    numbers = [facts.number for facts in gpu.cuda.devices() if facts.number != gpu.facts.number]
    if not numbers:
        raise NotTriedError("there is one GPU only")
    told = []
    content = pattern(8 * MIB, 3)
    for number in numbers:
        peer = Gpu(number)
        pool, own = Pool(peer.device, 8 * MIB), Pool(gpu.device, 8 * MIB)
        source, to = (one.window.address(one.allocate(8 * MIB, "check"), 8 * MIB) for one in (pool, own))
        peer.write(source, content)
        with gpu.stream() as stream:
            stream.copy_from(peer.device, to, source, len(content))
        gpu.expect(to, content, f"from GPU {number}")
        told.append(f"from GPU {number}, {'a peer' if gpu.cuda.can_access(gpu.facts.number, number) else 'no peer'}")
    return "; ".join(told)


ROWS = [
    Row("the driver is found, with all its functions, and a device that can share memory", devices),
    Row("errors have the names that CUDA gives them", names_of_errors),
    Row("bytes go up and come down, by asynchronous copies", up_and_down),
    Row("the same memory has two addresses, in chunks side by side", two_windows),
    Row("over the limit the error says what holds the memory", limit),
    Row("events order the work of two streams", events),
    Row("parts of the arena can be registered", registered_arena),
    Row("outputs come down into pinned blocks", pinned_blocks),
    Row("a call leaves the context that the model has made current", current_context),
    Row("a host that reads device memory is ended", host_touches),
    Row("bytes go from one device to another", between_devices),
]
