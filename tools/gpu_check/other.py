"""Another process of the check. `python -m tools.gpu_check.other ROLE DEVICE DESCRIPTOR`.

- maker: makes a pool with a block in it, hands out its chunks, and waits.
- client: makes memory as a client does, tells its handle, and waits.
- toucher: reads device memory as if it were the host's.
"""

from __future__ import annotations

import array
import ctypes
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_ulonglong
from dataclasses import dataclass

from stubserve_stub.device.cuda_functions import IpcMemoryHandle
from stubserve_stub.device.pool import Pool
from stubserve_stub.device.window import Window

from .row import MIB, BrokenError, Gpu, pattern

BLOCK = 40 * MIB
SEED = 5
_HEAD = struct.Struct("<QQQB")
# The device of this check, for processes that it starts
DEVICE_VARIABLE = "GPU_CHECK_DEVICE"
PATIENCE_S = 60.0


@dataclass
class Other:
    """A process that was started, and our end of its socket."""

    popen: subprocess.Popen[bytes]
    connection: socket.socket

    def take_block(self, gpu: Gpu) -> tuple[Window, int]:
        """The maker's window with all its chunks, and the offset of its block."""
        limit = socket.CMSG_SPACE(64 * array.array("i").itemsize)
        message, ancillary, _, _ = self.connection.recvmsg(_HEAD.size + 64, limit)
        if not message:
            raise BrokenError(f"the other process ended with {self.popen.wait()}")
        span, chunk_bytes, offset, count = _HEAD.unpack_from(message)
        descriptors = array.array("i")
        for _, _, data in ancillary:
            descriptors.frombytes(data)
        window = Window(gpu.device, span, chunk_bytes)
        for index, descriptor in zip(message[_HEAD.size :][:count], descriptors, strict=True):
            window.take(index, descriptor)
            os.close(descriptor)
        return window, offset


@contextmanager
def process(role: str) -> Iterator[Other]:
    """Another process in this role, ended afterwards."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(PATIENCE_S)
    command = [sys.executable, "-m", "tools.gpu_check.other", role, os.environ[DEVICE_VARIABLE], str(theirs.fileno())]
    with ours, theirs, subprocess.Popen(command, pass_fds=[theirs.fileno()]) as popen:
        theirs.close()
        try:
            yield Other(popen, ours)
        finally:
            popen.kill()


def main() -> None:
    role, number, descriptor = sys.argv[1:]
    connection = socket.socket(fileno=int(descriptor))
    gpu = Gpu(int(number))
    if role == "client":
        connection.send(_client_memory(gpu))
    else:
        pool = Pool(gpu.device, 64 * MIB)
        offset = pool.allocate(BLOCK, "check")
        address = pool.window.address(offset, BLOCK)
        if role == "toucher":
            ctypes.string_at(address, 1)
        gpu.write(address, pattern(BLOCK, SEED))
        chunks = pool.new_chunks()
        head = _HEAD.pack(pool.window.span, pool.window.chunk_bytes, offset, len(chunks))
        socket.send_fds(connection, [head + bytes(index for index, _ in chunks)], [fd for _, fd in chunks])
        if connection.recv(1):
            # It was written to.
            connection.send(gpu.read(address, 8))
    connection.recv(1)


def _client_memory(gpu: Gpu) -> bytes:
    gpu.find("cuIpcGetMemHandle")
    address, handle = c_ulonglong(), IpcMemoryHandle()
    gpu.device.call("cuMemAlloc", byref(address), MIB)
    gpu.write(address.value, pattern(MIB, SEED))
    gpu.device.call("cuIpcGetMemHandle", byref(handle), address)
    return bytes(handle)


if __name__ == "__main__":
    main()
