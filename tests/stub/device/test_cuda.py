"""The driver's binding: what it tells, what it says when something fails, and that it leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from ctypes import byref, c_void_p

import numpy as np
import pytest
from stubserve_stub.device.cuda import Cuda, Device
from stubserve_stub.device.cuda_functions import LIBRARY_VARIABLE, Functions
from stubserve_stub.device.driver import (
    DeviceFacts,
    DeviceLost,
    DriverError,
    NoDriver,
    NotSupported,
    OutOfDeviceMemory,
)
from stubserve_stub.wire.arena import address_of

from tests.emulated_gpu import PEER, STAGED, Emulator
from tests.stub.device.memory import CHUNK, MIB, mapped, read, stream_of, write


def test_devices_and_what_they_are(cuda: Cuda) -> None:
    assert cuda.version == (12, 4)
    assert cuda.devices() == [DeviceFacts(number, "Emulated GPU", 1 << 30, (9, 0), True) for number in (0, 1)]
    assert cuda.can_access(0, 1)


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIBRARY_VARIABLE, "libcuda-that-is-not-there.so")
    with pytest.raises(NoDriver, match=r"libcuda-that-is-not-there.so cannot be loaded .*Install NVIDIA's driver"):
        Cuda()


def test_a_driver_that_is_not_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIBRARY_VARIABLE, "")
    with pytest.raises(NoDriver, match="there is no CUDA driver, as STUBSERVE_CUDA_DRIVER says"):
        Cuda()


def test_a_library_that_is_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIBRARY_VARIABLE, "libc.so.6")
    with pytest.raises(NoDriver, match=r"libc.so.6 is too old: it has no cuGetProcAddress, which came with CUDA 11.3"):
        Cuda()


def test_no_device(monkeypatch: pytest.MonkeyPatch, emulator: Emulator) -> None:
    monkeypatch.setenv("EMULATED_GPUS", "0")
    with pytest.raises(NoDriver, match="cuInit failed with CUDA_ERROR_NO_DEVICE"):
        Cuda()


def test_a_function_that_the_driver_does_not_have(emulator: Emulator) -> None:
    with pytest.raises(NoDriver, match=r"too old: it has no cuMemFancy of CUDA 14.2"):
        Functions().find("cuMemFancy", (14020, ()))
    with pytest.raises(NoDriver, match=r"no cuMemCreate of CUDA 9.0"):
        Functions().find("cuMemCreate", (9000, ()))


def test_bytes_go_up_and_come_down(device: Device) -> None:
    content = os.urandom(CHUNK)
    with mapped(device) as address:
        write(device, address, content)
        assert read(device, address, CHUNK) == content


def test_threads_need_no_context_of_their_own(device: Device) -> None:
    found: list[bytes] = []
    with mapped(device) as address:
        write(device, address, b"seen")
        thread = threading.Thread(target=lambda: found.append(read(device, address, 4)))
        thread.start()
        thread.join()
    assert found == [b"seen"]


def test_the_models_context_stays_current(cuda: Cuda, device: Device) -> None:
    """A call for one device leaves the context that a model has made current for another."""
    other = cuda.open(1)
    other.driver.call("cuCtxPushCurrent", other.context)
    with mapped(device):
        pass
    with pytest.raises(DriverError):
        device.map(1, 1, 1)
    current = c_void_p()
    other.driver.call("cuCtxPopCurrent", byref(current))
    assert current.value == other.context.value
    other.close()


def test_events(device: Device) -> None:
    with mapped(device) as address, stream_of(device) as stream:
        event = device.event()
        assert event.reached
        stream.copy(address, address + 4096, 4096)
        stream.copy(address, address + 4096, 4096)
        stream.record(event)
        # Each question lets the emulated device do a little.
        asked = [event.reached for _ in range(3)]
        assert asked == [False, False, True]
        stream.record(event)
        event.synchronize()
        assert event.reached
        event.close()


def test_between_devices(cuda: Cuda, device: Device, emulator: Emulator) -> None:
    other = cuda.open(1)
    with mapped(device) as source, mapped(other) as to, stream_of(other) as stream:
        write(device, source, b"over")
        stream.copy_from(device, to, source, 4)
        stream.synchronize()
        assert read(other, to, 4) == b"over"
    assert (emulator.nbytes(PEER), emulator.nbytes(STAGED)) == (4, 0)
    other.close()


def test_between_devices_that_are_no_peers(monkeypatch: pytest.MonkeyPatch, emulator: Emulator) -> None:
    """The bytes go by way of the host. Mapping such memory for the other device fails, and leaves nothing behind."""
    monkeypatch.setenv("EMULATED_PEERS", "0")
    cuda = Cuda()
    assert not cuda.can_access(0, 1)
    one, other = cuda.open(0), cuda.open(1)
    with mapped(one) as source, mapped(other) as to, stream_of(other) as stream:
        write(one, source, b"over")
        stream.copy_from(one, to, source, 4)
        stream.synchronize()
        assert read(other, to, 4) == b"over"
        with pytest.raises(DriverError, match="cuMemcpyDtoDAsync failed on GPU 1 with CUDA_ERROR_INVALID_VALUE"):
            stream.copy(to, source, 4)
    assert (emulator.nbytes(PEER), emulator.nbytes(STAGED)) == (0, 4)
    handle, address = one.create(CHUNK), one.reserve(CHUNK)
    with pytest.raises(DriverError, match="cuMemSetAccess failed on GPU 0 with CUDA_ERROR_INVALID_DEVICE"):
        one.map(address, CHUNK, handle, readers=[1])
    one.unreserve(address, CHUNK)
    one.release(handle)
    assert emulator.live() == {}


def test_out_of_memory(monkeypatch: pytest.MonkeyPatch, emulator: Emulator) -> None:
    monkeypatch.setenv("EMULATED_GPU_MEMORY", str(3 * CHUNK))
    device = Cuda().open(0)
    handles = [device.create(CHUNK) for _ in range(3)]
    assert device.free_memory() == 0
    with pytest.raises(OutOfDeviceMemory, match=r"cuMemCreate failed on GPU 0 with CUDA_ERROR_OUT_OF_MEMORY \(out of"):
        device.create(CHUNK)
    device.release(handles[0])
    device.release(device.create(CHUNK))


@pytest.mark.parametrize("error", [214, 719, 999])
def test_a_lost_device(cuda: Cuda, device: Device, emulator: Emulator, error: int) -> None:
    """Everything that is asked of it fails at once, what waits included, and other devices go on."""
    other = cuda.open(1)
    with mapped(device) as address, stream_of(device) as stream:
        stream.copy(address, address + 4096, 4096)
        emulator.lose(0, error)
        for ask in (stream.synchronize, device.stream, device.free_memory, lambda: device.create(CHUNK)):
            with pytest.raises(DeviceLost, match=r"on GPU 0 with CUDA_ERROR_.*only another process can use it again"):
                ask()
        with mapped(other) as fine:
            write(other, fine, b"fine")
        emulator.lose(0, 0)
    other.close()


def test_a_device_that_is_lost_while_somebody_waits(device: Device, emulator: Emulator) -> None:
    """The first copy of the stream fails, so the wait that has begun before it ends with that error."""
    with stream_of(device) as stream, mapped(device) as source:
        with mapped(device) as gone:
            stream.copy(gone, source, 8)
            stream.copy(source, source + 4096, 8)
        with pytest.raises(DeviceLost):
            stream.synchronize()
        emulator.lose(0, 0)


def test_a_device_without_virtual_memory_management(monkeypatch: pytest.MonkeyPatch, emulator: Emulator) -> None:
    monkeypatch.setenv("EMULATED_VMM", "0")
    cuda = Cuda()
    assert not cuda.devices()[0].shares_memory
    device = cuda.open(0)
    with pytest.raises(NotSupported):
        device.create(CHUNK)


CLIENT = """
import sys
from ctypes import byref, c_char, c_ulonglong
from stubserve_stub.device.cuda import Cuda
from stubserve_stub.device.cuda_functions import IpcMemoryHandle
from tests.stub.device.memory import write
from tools.gpu_check.functions import CHECKED
device = Cuda().open(0)
for name in ("cuMemAlloc", "cuIpcGetMemHandle"):
    device.driver.find(name, CHECKED[name])
address, handle = c_ulonglong(), IpcMemoryHandle()
device.call("cuMemAlloc", byref(address), 1000)
write(device, address.value, b"a client's bytes")
device.call("cuIpcGetMemHandle", byref(handle), address)
sys.stdout.buffer.write(bytes(handle))
sys.stdout.flush()
sys.stdin.read()
"""


def test_a_clients_memory(device: Device) -> None:
    """Opened by its handle while the client lives, refused afterwards and for other bytes."""
    command = [sys.executable, "-c", CLIENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        handle = client.stdout.read(64)
        address = device.open_handle(handle)
        assert read(device, address, 16) == b"a client's bytes"
        device.close_handle(address)
        client.kill()
    for wrong in (handle, bytes(64), b"short"):
        with pytest.raises(DriverError):
            device.open_handle(wrong)


def test_registered_memory_is_registered_once(device: Device) -> None:
    host = np.zeros(MIB, np.uint8)
    device.register(address_of(host), MIB)
    with pytest.raises(DriverError, match="CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"):
        device.register(address_of(host) + 4096, 4096)
    device.unregister(address_of(host))
    with pytest.raises(DriverError, match="CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"):
        device.unregister(address_of(host))
