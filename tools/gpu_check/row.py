"""What a check of one promise is, and what it works with."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from stubserve_stub.device.cuda import Cuda, Device, Stream
from stubserve_stub.device.cuda_functions import Functions

from .functions import CHECKED

MIB = 1 << 20


class NotTriedError(Exception):
    """This promise cannot be tried here; the text says why."""


class BrokenError(Exception):
    """This promise does not hold; the text says how."""


@dataclass(frozen=True)
class Row:
    """One promise; `check` returns what is worth telling of how it holds, and raises where it does not.

    Some rows only measure.
    """

    promise: str
    check: Callable[[Gpu], str]
    measures: bool = False


class Gpu:
    """The driver, and the device that is checked. What is opened is closed by the end of the check's process.

    Copies that are measured have `measured_bytes`.
    """

    def __init__(self, number: int, measured_bytes: int = 64 * MIB) -> None:
        self.measured_bytes = measured_bytes
        self.cuda = Cuda()
        devices = self.cuda.devices()
        if number >= len(devices):
            raise NotTriedError(f"there is no GPU {number}; the driver counts {len(devices)} from 0 on")
        self.facts = devices[number]
        self.device: Device = self.cuda.open(number)
        for name in ("cuMemAlloc", "cuMemFree", "cuEventElapsedTime"):
            self.find(name)

    @property
    def functions(self) -> Functions:
        return self.cuda.functions

    def find(self, name: str) -> None:
        """Makes one of the functions known that stubs do not use."""
        self.functions.find(name, CHECKED[name])

    @contextmanager
    def stream(self) -> Iterator[Stream]:
        """A stream, and no error about closing it after another error."""
        stream = self.device.stream()
        yield stream
        stream.synchronize()
        stream.close()

    def write(self, address: int, content: bytes) -> None:
        """Has these bytes be in device memory."""
        with self.stream() as stream:
            stream.copy_up(address, ctypes.addressof(ctypes.c_char.from_buffer(host := bytearray(content))), len(host))

    def read(self, address: int, nbytes: int) -> bytes:
        """The bytes that are in device memory."""
        host = bytearray(nbytes)
        with self.stream() as stream:
            stream.copy_down(ctypes.addressof(ctypes.c_char.from_buffer(host)), address, nbytes)
        return bytes(host)

    def expect(self, address: int, content: bytes, what: str) -> None:
        """Raises BrokenError where device memory has other bytes."""
        found = self.read(address, len(content))
        if found != content:
            at = next(at for at, (one, other) in enumerate(zip(found, content, strict=True)) if one != other)
            raise BrokenError(f"{what}: byte {at} of {len(content)} is {found[at]}, not {content[at]}")

    @contextmanager
    def pinned(self, nbytes: int) -> Iterator[tuple[mmap.mmap, int]]:
        """Registered host memory of the arena's kind, a memfd that is mapped shared: the mapping and its address."""
        descriptor = os.memfd_create("gpu-check", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, nbytes)
        mapping = mmap.mmap(descriptor, nbytes)
        os.close(descriptor)
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        self.device.register(address, nbytes)
        try:
            yield mapping, address
        finally:
            with contextlib.suppress(Exception):
                self.device.unregister(address)


def pattern(nbytes: int, seed: int) -> bytes:
    """Bytes that differ from page to page, and from seed to seed; cheap to make."""
    return b"".join(bytes([(seed + at // 4096 * 7) % 251]) * 4096 for at in range(0, nbytes, 4096))[:nbytes]
