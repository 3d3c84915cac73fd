"""Memory for tests: host memory with an address, mapped device memory, and bytes up and down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from stubserve_stub.device.cuda import Device, Stream
from stubserve_stub.wire.arena import address_of

MIB = 1 << 20
CHUNK = 2 * MIB


@contextmanager
def mapped(device: Device, nbytes: int = CHUNK) -> Iterator[int]:
    """The address of memory of a device."""
    handle = device.create(nbytes)
    address = device.reserve(nbytes)
    device.map(address, nbytes, handle)
    device.release(handle)
    yield address
    device.unmap(address, nbytes)
    device.unreserve(address, nbytes)


@contextmanager
def stream_of(device: Device) -> Iterator[Stream]:
    stream = device.stream()
    yield stream
    stream.close()


@contextmanager
def pinned(device: Device, content: bytes) -> Iterator[np.ndarray]:
    """Registered host memory."""
    array = np.frombuffer(bytearray(content), np.uint8)
    device.register(address_of(array), array.nbytes)
    yield array
    device.unregister(address_of(array))


def write(device: Device, address: int, content: bytes) -> None:
    """Has these bytes be in device memory."""
    with stream_of(device) as stream:
        stream.copy_up(address, address_of(content), len(content))
        stream.synchronize()


def read(device: Device, address: int, nbytes: int) -> bytes:
    """The bytes that are in device memory now."""
    array = np.zeros(nbytes, np.uint8)
    with stream_of(device) as stream:
        stream.copy_down(address_of(array), address, nbytes)
        stream.synchronize()
    return array.tobytes()
