"""The emulated driver catches what a GPU would not forgive: without that, the tests that use it would show nothing."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from stubserve_stub.device.cuda import Cuda, Device
from stubserve_stub.device.driver import DeviceLost, DriverError
from stubserve_stub.wire.arena import address_of

from tests.emulated_gpu import DOWN, UP, WITHIN, Emulator
from tests.stub.device.memory import CHUNK, mapped, pinned, read, stream_of, write

TOUCH = """
import ctypes
from stubserve_stub.device.cuda import Cuda
device = Cuda().open(0)
handle, address = device.create(1 << 21), device.reserve(1 << 21)
device.map(address, 1 << 21, handle)
ctypes.string_at(address, 1)
"""


def test_a_host_that_touches_device_memory_is_ended(emulator: Emulator) -> None:
    done = subprocess.run([sys.executable, "-c", TOUCH])
    assert done.returncode == -signal.SIGSEGV


def test_a_missing_wait_between_streams_gives_wrong_bytes(device: Device, emulator: Emulator) -> None:
    """The second stream copies what the first one has not brought yet, in every run."""
    with mapped(device) as one, mapped(device) as other, stream_of(device) as first, stream_of(device) as second:
        write(device, one, b"old!")
        with pinned(device, b"new!") as host:
            first.copy_up(one, address_of(host), 4)
            second.copy(other, one, 4)
            second.synchronize()
            assert read(device, other, 4) == b"old!"
            first.synchronize()


def test_with_the_wait_they_are_right(device: Device) -> None:
    with mapped(device) as one, mapped(device) as other, stream_of(device) as first, stream_of(device) as second:
        write(device, one, b"old!")
        event = device.event()
        with pinned(device, b"new!") as host:
            first.copy_up(one, address_of(host), 4)
            first.record(event)
            second.wait(event)
            second.copy(other, one, 4)
            second.synchronize()
            assert read(device, other, 4) == b"new!"
        assert event.reached
        event.close()


def test_a_missing_wait_of_the_host_gives_wrong_bytes(device: Device) -> None:
    with mapped(device) as address, stream_of(device) as stream, pinned(device, b"....") as host:
        write(device, address, b"done")
        stream.copy_down(address_of(host), address, 4)
        assert host.tobytes() == b"...."
        stream.synchronize()
        assert host.tobytes() == b"done"


def test_pinned_memory_that_changes_too_early_shows(device: Device) -> None:
    with mapped(device) as address, stream_of(device) as stream, pinned(device, b"sent") as host:
        stream.copy_up(address, address_of(host), 4)
        host[:] = np.frombuffer(b"next", np.uint8)
        stream.synchronize()
        assert read(device, address, 4) == b"next"


def test_other_host_memory_may_change_at_once(device: Device) -> None:
    with mapped(device) as address, stream_of(device) as stream:
        host = np.frombuffer(bytearray(b"sent"), np.uint8)
        stream.copy_up(address, address_of(host), 4)
        host[:] = 0
        stream.synchronize()
        assert read(device, address, 4) == b"sent"


def test_memory_that_is_unmapped_too_early_loses_the_device(device: Device) -> None:
    with stream_of(device) as stream, mapped(device) as source:
        with mapped(device) as address:
            stream.copy(address, source, 4)
        with pytest.raises(DeviceLost, match="cuStreamSynchronize failed on GPU 0 with CUDA_ERROR_ILLEGAL_ADDRESS"):
            stream.synchronize()
        # What the process does then is to end. The test goes on with other devices, so this one has to be tidy.
        ctypes.CDLL(os.environ["STUBSERVE_CUDA_DRIVER"]).emulator_lose(0, 0)


@pytest.mark.parametrize("seed", range(6))
def test_in_a_random_order_events_are_kept(monkeypatch: pytest.MonkeyPatch, emulator: Emulator, seed: int) -> None:
    """A chain through four streams, each of which has other work, too."""
    monkeypatch.setenv("EMULATED_ORDER", "random")
    monkeypatch.setenv("EMULATED_SEED", str(seed))
    device = Cuda().open(0)
    streams, events = [device.stream() for _ in range(4)], [device.event() for _ in range(4)]
    with mapped(device) as address, mapped(device) as aside:
        write(device, address, bytes(range(64)))
        for step in range(63):
            stream, before = streams[step % 4], events[(step - 1) % 4]
            stream.copy(aside + 4096 * (step % 4), aside + 65536, 4096)
            if step:
                stream.wait(before)
            stream.copy(address + step + 1, address + step, 1)
            stream.record(events[step % 4])
        events[62 % 4].synchronize()
        assert read(device, address, 64) == bytes(64)
        for stream in streams:
            stream.synchronize()


def test_orders_differ_where_nothing_orders_them(monkeypatch: pytest.MonkeyPatch, emulator: Emulator) -> None:
    monkeypatch.setenv("EMULATED_ORDER", "random")
    device = Cuda().open(0)
    streams = [device.stream() for _ in range(8)]
    seen = set()
    with mapped(device) as address, mapped(device) as source:
        write(device, source, bytes(range(8)))
        gate, opened = device.stream(), device.event()
        while len(seen) < 2:
            # All streams wait for one gate, so that they can begin together.
            gate.copy(source + 4096, source + 4096, CHUNK // 2)
            gate.record(opened)
            for at, stream in enumerate(streams):
                stream.wait(opened)
                stream.copy(address, source + at, 1)
            for stream in streams:
                stream.synchronize()
            seen.add(read(device, address, 1))


def test_it_counts_bytes_by_direction(device: Device, emulator: Emulator) -> None:
    with mapped(device) as one, mapped(device) as other, stream_of(device) as stream:
        write(device, one, bytes(100))
        stream.copy(other, one, 30)
        stream.synchronize()
        read(device, other, 7)
    assert [emulator.nbytes(direction) for direction in (UP, WITHIN, DOWN)] == [100, 30, 7]


def test_calls_fail_on_demand(device: Device, emulator: Emulator) -> None:
    emulator.fail("cuStreamCreate", 999, after=1)
    with stream_of(device):
        with pytest.raises(DeviceLost, match="CUDA_ERROR_UNKNOWN"):
            device.stream()
        with stream_of(device):
            pass


def test_a_child_cannot_go_on_with_the_driver(device: Device) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            device.free_memory()
        except DriverError as error:
            os._exit(17 if error.name == "CUDA_ERROR_NOT_INITIALIZED" else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 17
