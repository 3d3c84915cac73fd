"""Clients' memory of GPUs, read and written by a process of its own for a server that loads no driver.

Run as a program, with the numbers of a socket and of a file without a name of WINDOW_BYTES, through which bytes go.
Each message is answered by a text: OK, or what went wrong. Only `close` gets no answer::

    ("open", region, device, handle, nbytes)     a client's handle; `region` is the server's number for it
    ("read", region, offset, nbytes)             from the region to the beginning of the file
    ("write", region, offset, nbytes)            the other way
    ("close", region)

The process ends when the server closes the socket.
"""

from __future__ import annotations

import mmap
import socket
import sys
from typing import Any, Callable, Dict, Tuple

import msgpack
import numpy as np

from stubserve_stub.device import gpu as gpus
from stubserve_stub.device.driver import DriverError
from stubserve_stub.device.gpu import Gpu
from stubserve_stub.wire.arena import address_of

WINDOW_BYTES = 4 << 20
OK = "ok"

# More than any message has
_DATAGRAM = 1024


class _Clients:
    """The regions that are open: the GPU and the address of each."""

    def __init__(self, window: mmap.mmap) -> None:
        self._window = address_of(np.frombuffer(window, np.uint8))
        self._regions: Dict[int, Tuple[Gpu, int]] = {}

    def open(self, region: int, device: int, handle: bytes, nbytes: int) -> None:
        gpu = gpus.gpu(device)
        address = gpu.device.open_handle(handle)
        size = gpu.device.size_at(address)
        if nbytes > size:
            gpu.device.close_handle(address)
            raise DriverError("its memory has {} bytes, not {}".format(size, nbytes))
        self._regions[region] = gpu, address

    def read(self, region: int, offset: int, nbytes: int) -> None:
        gpu, address = self._regions[region]
        gpu.copy_to_host(self._window, address + offset, nbytes)

    def write(self, region: int, offset: int, nbytes: int) -> None:
        gpu, address = self._regions[region]
        gpu.fill_from_host(address + offset, self._window, nbytes)

    def close(self, region: int) -> None:
        gpu, address = self._regions.pop(region)
        gpu.device.close_handle(address)


def serve(line: socket.socket, window: mmap.mmap) -> None:
    clients = _Clients(window)
    commands: Dict[str, Callable[..., None]] = {
        "open": clients.open,
        "read": clients.read,
        "write": clients.write,
        "close": clients.close,
    }
    while True:
        data = line.recv(_DATAGRAM)
        if not data:
            return
        name, *arguments = msgpack.unpackb(data)
        problem = _problem(commands[name], arguments)
        if name != "close":
            line.send(problem.encode())


def _problem(act: Callable[..., None], arguments: Any) -> str:
    try:
        act(*arguments)
    except DriverError as error:
        return str(error)
    except KeyError:
        return "the process that had opened it has ended"
    return OK


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), mmap.mmap(int(sys.argv[2]), WINDOW_BYTES))
