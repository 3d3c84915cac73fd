"""CUDA's driver: devices, streams, events and memory that other processes can map.

- Addresses of devices are numbers. The host never reads or writes through them.
- Copies are asynchronous: they are done when the stream has been synchronized, or an event that was recorded after
  them. Host memory that is registered (`Device.register`) has to stay as it is until then. Other host memory works,
  too, but more slowly: the driver copies it on the way.
- Every call makes the device's primary context current and then takes it back. So a model finds the device that it
  has chosen itself. Frameworks use the primary context as well, so their memory and their streams work here.
- Streams do not wait for the default stream, and it does not wait for them.
- A child of a process that has used the driver cannot use it: CUDA says so (CUDA_ERROR_NOT_INITIALIZED).

All errors are a DriverError. Methods may be called from any thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from ctypes import byref, c_int, c_size_t, c_ulonglong, c_void_p
from typing import Any, Iterator, List, Sequence

from stubserve_stub.device import cuda_functions as functions
from stubserve_stub.device.driver import DeviceFacts, DriverError

_MAJOR, _MINOR = 75, 76
_SUPPORTS_VMM = 102
_SUPPORTS_DESCRIPTORS = 103

_PINNED = 1
_ON_DEVICE = 1
_POSIX_DESCRIPTOR = 1
_MINIMUM_GRANULARITY = 0
_READ_WRITE = 3
_NON_BLOCKING = 1
_NO_TIMING = 2
_PORTABLE = 1
_LAZY_PEER_ACCESS = 1


class Cuda:
    """The driver. Raises NoDriver where there is none, where it is too old, or where it finds no GPU.

    Without `peers` no device accesses another one's memory directly.
    """

    def __init__(self, peers: bool = True) -> None:
        self._peers = peers
        self.functions = functions.Functions()
        self.functions.call("cuInit", 0)
        version = c_int()
        self.functions.call("cuDriverGetVersion", byref(version))
        self.version = (version.value // 1000, version.value % 1000 // 10)

    def devices(self) -> List[DeviceFacts]:
        """All devices that this process sees. Needs no context, and so no memory of a device."""
        count = c_int()
        self.functions.call("cuDeviceGetCount", byref(count))
        return [self._facts(number) for number in range(count.value)]

    def open(self, number: int) -> Device:
        """A device with its primary context, which takes some hundred MB of its memory. To be closed."""
        return Device(self.functions, self._facts(number))

    def can_access(self, number: int, peer: int) -> bool:
        """Whether a device can read and write the memory of another one directly."""
        if not self._peers:
            return False
        can = c_int()
        self.functions.call("cuDeviceCanAccessPeer", byref(can), number, peer)
        return bool(can.value)

    def _facts(self, number: int) -> DeviceFacts:
        device, memory = c_int(), c_size_t()
        name = ctypes.create_string_buffer(256)
        self.functions.call("cuDeviceGet", byref(device), number)
        self.functions.call("cuDeviceGetName", name, len(name), device)
        self.functions.call("cuDeviceTotalMem", byref(memory), device)
        attributes = (_MAJOR, _MINOR, _SUPPORTS_VMM, _SUPPORTS_DESCRIPTORS)
        major, minor, vmm, descriptors = (self._attribute(device, one) for one in attributes)
        shares = bool(vmm and descriptors)
        return DeviceFacts(number, name.value.decode("utf-8", "replace"), memory.value, (major, minor), shares)

    def _attribute(self, device: c_int, attribute: int) -> int:
        value = c_int()
        self.functions.call("cuDeviceGetAttribute", byref(value), attribute, device)
        return value.value


class Device:
    """One device with its primary context. `granularity` is what sizes of shared memory are multiples of, in bytes."""

    def __init__(self, driver: functions.Functions, facts: DeviceFacts) -> None:
        self.facts = facts
        self.driver = driver
        self.context = c_void_p()
        driver.call("cuDevicePrimaryCtxRetain", byref(self.context), facts.number)
        self._properties = functions.AllocationProperties(
            _PINNED, _POSIX_DESCRIPTOR, functions.Location(_ON_DEVICE, facts.number)
        )
        self.granularity = self._granularity() if facts.shares_memory else 0

    def close(self) -> None:
        """Lets go of the context. What was made of the device has to be closed before."""
        self.driver.call("cuDevicePrimaryCtxRelease", self.facts.number)

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function of the driver in this device's context. Raises DriverError."""
        code = self.status(name, *arguments)
        if code:
            raise self.driver.error(name, code, " on GPU {}".format(self.facts.number))

    def status(self, name: str, *arguments: Any) -> int:
        """As `call`, for a function that answers with its result."""
        self.driver.call("cuCtxPushCurrent", self.context)
        try:
            return self.driver.status(name, *arguments)
        finally:
            self.driver.status("cuCtxPopCurrent", byref(c_void_p()))

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Makes this the current device of the thread meanwhile, for libraries that ask CUDA which one that is."""
        self.driver.call("cuCtxPushCurrent", self.context)
        try:
            yield
        finally:
            self.driver.status("cuCtxPopCurrent", byref(c_void_p()))

    def free_memory(self) -> int:
        """Bytes that nobody uses. Others may take them at any moment."""
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo", byref(free), byref(total))
        return free.value

    def synchronize(self) -> None:
        """Waits for all work of this process on the device, in every stream. Raises what went wrong with it."""
        self.call("cuCtxSynchronize")

    def stream(self) -> Stream:
        """A new stream, to be closed."""
        return Stream(self)

    def event(self, timed: bool = False) -> Event:
        """A new event, to be closed. It has been reached until it is recorded."""
        return Event(self, timed)

    def register(self, address: int, nbytes: int) -> None:
        """Pins host memory, so that copies from and to it run without the processor. No part may be pinned already."""
        self.call("cuMemHostRegister", address, nbytes, _PORTABLE)

    def unregister(self, address: int) -> None:
        """Lets go of the host memory that was registered from this address on."""
        self.call("cuMemHostUnregister", address)

    # Memory that can be shared: a handle is memory, a range is addresses, and mapping brings them together.

    def create(self, nbytes: int) -> int:
        """A handle of new memory; `nbytes` is a multiple of the granularity. Raises OutOfDeviceMemory."""
        handle = c_ulonglong()
        self.call("cuMemCreate", byref(handle), nbytes, byref(self._properties), 0)
        return handle.value

    def release(self, handle: int) -> None:
        """Lets go of a handle. Its memory goes once it is mapped nowhere, and no descriptor of it is left."""
        self.call("cuMemRelease", handle)

    def exported(self, handle: int) -> int:
        """A new file descriptor of this memory, which other processes can import; the caller closes it."""
        descriptor = c_int(-1)
        self.call("cuMemExportToShareableHandle", byref(descriptor), handle, _POSIX_DESCRIPTOR, 0)
        os.set_inheritable(descriptor.value, False)
        return descriptor.value

    def imported(self, descriptor: int) -> int:
        """A handle of another process' memory. The descriptor is not needed any more afterwards, and not closed."""
        handle = c_ulonglong()
        self.call("cuMemImportFromShareableHandle", byref(handle), descriptor, _POSIX_DESCRIPTOR)
        return handle.value

    def reserve(self, nbytes: int) -> int:
        """The first of so many addresses, without memory."""
        address = c_ulonglong()
        self.call("cuMemAddressReserve", byref(address), nbytes, 0, 0, 0)
        return address.value

    def unreserve(self, address: int, nbytes: int) -> None:
        """Gives addresses back. Nothing may be mapped at them."""
        self.call("cuMemAddressFree", address, nbytes)

    def map(self, address: int, nbytes: int, handle: int, readers: Sequence[int] = ()) -> None:
        """Maps memory, so that this device and the devices `readers` may read and write it; they must be peers."""
        self.call("cuMemMap", address, nbytes, 0, handle, 0)
        numbers = [self.facts.number, *readers]
        access = (functions.AccessDescription * len(numbers))(
            *[functions.AccessDescription(functions.Location(_ON_DEVICE, number), _READ_WRITE) for number in numbers]
        )
        try:
            self.call("cuMemSetAccess", address, nbytes, access, len(numbers))
        except DriverError:
            self.unmap(address, nbytes)
            raise

    def unmap(self, address: int, nbytes: int) -> None:
        """Takes memory away from its addresses. No work that uses them may be under way."""
        self.call("cuMemUnmap", address, nbytes)

    def open_handle(self, handle: bytes) -> int:
        """The address of a client's memory, by the 64 bytes of its cudaIpcMemHandle_t.

        The client's process has to live as long as the memory is used. Raises DriverError for any other bytes.
        """
        size = ctypes.sizeof(functions.IpcMemoryHandle)
        if len(handle) != size:
            raise DriverError("a CUDA memory handle has {} bytes, this one has {}".format(size, len(handle)))
        address = c_ulonglong()
        given = functions.IpcMemoryHandle.from_buffer_copy(handle)
        self.call("cuIpcOpenMemHandle", byref(address), given, _LAZY_PEER_ACCESS)
        return address.value

    def size_at(self, address: int) -> int:
        """How many bytes there are from an address to the end of the memory that it lies in."""
        start, size = c_ulonglong(), c_size_t()
        self.call("cuMemGetAddressRange", byref(start), byref(size), address)
        return start.value + size.value - address

    def close_handle(self, address: int) -> None:
        """Lets go of a client's memory that was opened."""
        self.call("cuIpcCloseMemHandle", address)

    def _granularity(self) -> int:
        found = c_size_t()
        self.call("cuMemGetAllocationGranularity", byref(found), byref(self._properties), _MINIMUM_GRANULARITY)
        return found.value


class Stream:
    """Work of one device that is done in order. All methods but `synchronize` and `close` only add work."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.handle = c_void_p()
        device.call("cuStreamCreate", byref(self.handle), _NON_BLOCKING)

    def close(self) -> None:
        """Lets go of the stream; work that was added is done all the same."""
        self.device.call("cuStreamDestroy", self.handle)

    def copy_up(self, to: int, host: int, nbytes: int) -> None:
        """From host memory to the device."""
        self.device.call("cuMemcpyHtoDAsync", to, host, nbytes, self.handle)

    def copy_down(self, host: int, source: int, nbytes: int) -> None:
        """From the device to host memory."""
        self.device.call("cuMemcpyDtoHAsync", host, source, nbytes, self.handle)

    def copy(self, to: int, source: int, nbytes: int) -> None:
        """Between addresses that this device may both use."""
        self.device.call("cuMemcpyDtoDAsync", to, source, nbytes, self.handle)

    def copy_from(self, other: Device, to: int, source: int, nbytes: int) -> None:
        """From another device to this one; by way of the host where the two are no peers."""
        arguments = to, self.device.context, source, other.context, nbytes, self.handle
        self.device.call("cuMemcpyPeerAsync", *arguments)

    def record(self, event: Event) -> None:
        """The event is reached when all work that was added before is done."""
        self.device.call("cuEventRecord", event.handle, self.handle)

    def wait(self, event: Event) -> None:
        """Work that is added from now on waits for the last record of the event, which may be in any stream."""
        self.device.call("cuStreamWaitEvent", self.handle, event.handle, 0)

    def synchronize(self) -> None:
        """Waits until all work is done. Raises what went wrong with it."""
        self.device.call("cuStreamSynchronize", self.handle)


class Event:
    """A point in a stream."""

    def __init__(self, device: Device, timed: bool) -> None:
        self.device = device
        self.handle = c_void_p()
        device.call("cuEventCreate", byref(self.handle), 0 if timed else _NO_TIMING)

    def close(self) -> None:
        """Lets go of the event. Streams that wait for it still do."""
        self.device.call("cuEventDestroy", self.handle)

    @property
    def reached(self) -> bool:
        """Whether the work before its last record is done. Raises what went wrong with it."""
        code = self.device.status("cuEventQuery", self.handle)
        if code not in (0, functions.NOT_READY):
            raise self.device.driver.error("cuEventQuery", code, " on GPU {}".format(self.device.facts.number))
        return code == 0

    def synchronize(self) -> None:
        """Waits until the event is reached. Raises what went wrong."""
        self.device.call("cuEventSynchronize", self.handle)
