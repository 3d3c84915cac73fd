"""Clients' memory on GPUs: regions that a process of its own reads and writes, since the server loads no driver.

The bytes of inputs are copied into the arena before a request is admitted, and those of outputs to the GPU before it is
answered, so models see host memory. The process (`stubserve_stub.device.clients`) starts with the first region. If it
dies, its regions cannot be used any more, and the next one that is registered starts another process.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import subprocess
import sys
import threading

from stubserve_stub.wire.messages import pack

from stubserve.errors import internal, invalid

# As in `stubserve_stub.device.clients`, which the server does not import
WINDOW_BYTES = 4 << 20
_OK = b"ok"
_ENDED = "the process that had opened it has ended"


class DeviceRegion:
    """A region on a GPU (`memory.regions.Region`). Reading and writing block. It is closed with its last reference."""

    on_device = True
    # A region on a GPU has no file.
    descriptor, start = -1, 0

    def __init__(self, copier: Copier, name: str, number: int, device: int, nbytes: int) -> None:
        self.name = name
        self.number = number
        self.nbytes = nbytes
        self._device = device
        self._copier = copier

    def check(self) -> None:
        """The GPU says when a request comes whether the memory is still there."""

    def read(self, offset: int, into: memoryview) -> None:
        self._copier.read(self, offset, into)

    def write(self, offset: int, data: bytes | memoryview) -> None:
        self._copier.write(self, offset, memoryview(data))

    def row(self) -> dict[str, str | int]:
        """The region as the status route shows it."""
        return {"name": self.name, "device_id": self._device, "byte_size": self.nbytes}

    def __del__(self) -> None:
        self._copier.forget(self.number)


class Copier:
    """The process. Its methods block, and any thread may call them."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._window: mmap.mmap | None = None

    def open(self, name: str, number: int, device: int, handle: bytes, nbytes: int) -> DeviceRegion:
        """The region behind a client's handle (cudaIpcMemHandle_t, 64 bytes). Raises ServeError."""
        with self._guard:
            if self._process is None or self._process.poll() is not None:
                self._start()
            problem = self._ask("open", number, device, handle, nbytes)
        if problem:
            raise invalid(f"failed to register CUDA shared memory region '{name}': {problem}")
        return DeviceRegion(self, name, number, device, nbytes)

    def read(self, region: DeviceRegion, offset: int, into: memoryview) -> None:
        """Raises ServeError."""
        for at in range(0, len(into), WINDOW_BYTES):
            part = into[at : at + WINDOW_BYTES]
            with self._guard:
                self._copy("read", region, offset + at, len(part))
                assert self._window is not None
                part[:] = memoryview(self._window)[: len(part)]

    def write(self, region: DeviceRegion, offset: int, data: memoryview) -> None:
        """Raises ServeError."""
        for at in range(0, len(data), WINDOW_BYTES):
            part = data[at : at + WINDOW_BYTES]
            with self._guard:
                if self._window is not None:
                    self._window[: len(part)] = part
                self._copy("write", region, offset + at, len(part))

    def forget(self, number: int) -> None:
        """The region is not used any more."""
        if self._line is not None:
            with contextlib.suppress(OSError):
                self._line.send(pack(("close", number)))

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._line is not None:
            self._line.close()

    def _copy(self, direction: str, region: DeviceRegion, offset: int, nbytes: int) -> None:
        problem = self._ask(direction, region.number, offset, nbytes)
        if problem:
            raise internal(
                f"CUDA shared memory region '{region.name}' cannot be used: {problem}. Unregister it and register it "
                "again"
            )

    def _ask(self, *message: object) -> str:
        """What went wrong with a command, empty for nothing."""
        assert self._line is not None
        assert self._process is not None
        try:
            self._line.send(pack(message))
            answer = self._line.recv(1 << 16)
        except OSError:
            answer = b""
        if not answer:
            self._process.wait()
            return _ENDED
        return "" if answer == _OK else answer.decode(errors="replace")

    def _start(self) -> None:
        if self._line is not None:
            self._line.close()
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        window = os.memfd_create("stubserve-clients")
        try:
            os.ftruncate(window, WINDOW_BYTES)
            self._window = mmap.mmap(window, WINDOW_BYTES)
            numbers = (theirs.fileno(), window)
            command = [sys.executable, "-m", "stubserve_stub.device.clients", *map(str, numbers)]
            # In a session of its own: a ctrl-C for the server is none for it, which ends when the line does.
            self._process = subprocess.Popen(
                command, pass_fds=numbers, stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            raise internal(f"the process that copies clients' memory on GPUs cannot be started: {error}") from None
        finally:
            theirs.close()
            os.close(window)
