"""Pools across processes: their memory outlives the process that made it, and kills leave nothing behind."""

from __future__ import annotations

import array
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from stubserve_stub.device.cuda import Device
from stubserve_stub.device.driver import DriverError
from stubserve_stub.device.window import Window

from tests.emulated_gpu import DOWN, UP, Emulator
from tests.real_server import PATIENCE_S
from tests.stub.device.memory import CHUNK, MIB, read

LIMIT = 8 * MIB

# Makes blocks of 3 MiB without end, each filled with its number; says of each where it is, with the chunks that are
# new, and waits to be told that it may go on. A block is freed again after the next one.
PRODUCER = """
import os, socket, struct, sys
from stubserve_stub.device.cuda import Cuda
from stubserve_stub.device.pool import Pool
from tests.stub.device.memory import write
device = Cuda().open(0)
pool = Pool(device, 8 << 20, chunk_bytes=2 << 20)
connection = socket.socket(fileno=int(sys.argv[1]))
before = None
for number in range(1 << 30):
    offset = pool.allocate(3 << 20, "output")
    write(device, pool.window.address(offset, 3 << 20), bytes([number % 256]) * (3 << 20))
    chunks = pool.new_chunks()
    message = struct.pack("<QB", offset, len(chunks)) + bytes(index for index, _ in chunks)
    socket.send_fds(connection, [message], [descriptor for _, descriptor in chunks])
    for _, descriptor in chunks:
        os.close(descriptor)
    connection.recv(1)
    if before is not None:
        pool.free(before)
    before = offset
"""


class Producer:
    """A process that hands out device memory, and a window that takes it."""

    def __init__(self, device: Device) -> None:
        self.window = Window(device, LIMIT, CHUNK)
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection.settimeout(PATIENCE_S)
        command = [sys.executable, "-c", PRODUCER, str(theirs.fileno())]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.DEVNULL)
        theirs.close()

    def next_block(self) -> int | None:
        """The offset of the next block, its chunks taken; None when the process is gone."""
        try:
            message, ancillary, _, _ = self.connection.recvmsg(64, socket.CMSG_SPACE(64), socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:
            return None
        if not message:
            return None
        descriptors = array.array("i")
        for _, _, data in ancillary:
            descriptors.frombytes(data)
        for index, descriptor in zip(message[9:], descriptors, strict=True):
            self.window.take(index, descriptor)
            os.close(descriptor)
        return int.from_bytes(message[:8], "little")

    def go_on(self) -> None:
        self.connection.send(b"+")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        self.window.close()
        self.connection.close()


@contextmanager
def producer(device: Device) -> Iterator[Producer]:
    one = Producer(device)
    try:
        yield one
    finally:
        one.close()


def test_a_killed_producer_takes_nothing_from_a_consumer(device: Device) -> None:
    with producer(device) as one:
        first = one.next_block()
        assert first is not None
        one.go_on()
        second = one.next_block()
        assert second is not None
        one.kill()
        for offset, content in ((first, b"\0"), (second, b"\1")):
            address = one.window.address(offset, 3 * MIB)
            assert read(device, address, 3 * MIB) == content * (3 * MIB)


@pytest.mark.parametrize("kills", [12, pytest.param(100, marks=pytest.mark.slow)])
def test_kills_at_any_moment_leave_nothing(device: Device, emulator: Emulator, kills: int) -> None:
    """No descriptor and no mapping, and the block that was told last has its bytes whatever its maker did next."""
    chance = random.Random(25)
    before, descriptors = emulator.live(), sorted(os.listdir("/proc/self/fd"))
    for _ in range(kills):
        with producer(device) as one:
            told = -1
            for _ in range(1 + chance.randrange(3)):
                offset = one.next_block()
                assert offset is not None
                told += 1
                one.go_on()
            # It makes the next block, or has told of it: nobody has to see that.
            time.sleep(chance.random() / 50)
            one.kill()
            address = one.window.address(offset, 3 * MIB)
            assert read(device, address, 3 * MIB) == bytes([told]) * (3 * MIB)
        assert emulator.live() == before
        assert sorted(os.listdir("/proc/self/fd")) == descriptors


def test_only_what_is_needed_crosses(device: Device, emulator: Emulator) -> None:
    """A chunk's descriptor is passed once, and the bytes that a consumer does not look at never reach the host."""
    with producer(device) as one:
        for _ in range(20):
            assert one.next_block() is not None
            one.go_on()
        assert one.window.mapped_bytes == 6 * MIB
    assert (emulator.nbytes(UP), emulator.nbytes(DOWN)) == (0, 0)


def test_a_descriptor_of_something_else_is_refused(device: Device, emulator: Emulator) -> None:
    window = Window(device, LIMIT, CHUNK)
    before = emulator.live()
    descriptor = os.memfd_create("something else")
    os.ftruncate(descriptor, CHUNK)
    with pytest.raises(DriverError, match="cuMemImportFromShareableHandle failed on GPU 0"):
        window.take(0, descriptor)
    os.close(descriptor)
    assert emulator.live() == before
    window.close()
