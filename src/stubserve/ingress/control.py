"""A worker's end of the control socket: rare things, and memory.

Asking for memory waits for the answer, because whoever places a tensor cannot; meanwhile everything else that the owner
says is heard, too, or the two could wait for each other. When the socket ends the owner is gone, and so is the worker.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import Callable
from typing import Any

from stubserve_stub.wire.messages import Unframer, frame

_READ = 1 << 16


class Control:
    """Sends and receives control messages. `on_end` is called when the owner is gone, and does not return."""

    def __init__(self, descriptor: int, on_end: Callable[[], None]) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._on_end = on_end
        self._unframer = Unframer()
        self._handlers: dict[str, Callable[[dict[str, Any]], None]] = {}
        self._granted: dict[str, Any] | None = None
        self.handle("granted", self._on_granted)
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def handle(self, kind: str, handler: Callable[[dict[str, Any]], None]) -> None:
        """Has messages of a kind go to `handler`."""
        self._handlers[kind] = handler

    def watch(self) -> None:
        """From now on messages are heard on the running event loop."""
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    def send(self, kind: str, **fields: Any) -> None:
        """Sends a message; they are few and small, and the owner reads them at once."""
        try:
            self._socket.sendall(frame(dict(fields, kind=kind)))
        except OSError:
            self._on_end()

    def ask_for_memory(self, least: int, most: int) -> tuple[int, str]:
        """How many bytes the owner grants; or none, and why."""
        self._granted = None
        self.send("need", least=least, most=most)
        while self._granted is None:
            self._poll.poll()
            self._read()
        return self._granted["nbytes"], self._granted["error"]

    def wait_for(self, kind: str) -> dict[str, Any]:
        """The first message, which is of this kind."""
        heard: list[dict[str, Any]] = []
        self.handle(kind, heard.append)
        while not heard:
            self._poll.poll()
            self._read()
        return heard[0]

    def _on_granted(self, message: dict[str, Any]) -> None:
        self._granted = message

    def _read(self) -> None:
        try:
            data = self._socket.recv(_READ, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._on_end()
        self._unframer.feed(data)
        while (message := self._unframer.next()) is not None:
            self._handlers[message["kind"]](message)


def end_now() -> None:
    """The owner is gone: nobody is answered any more."""
    os._exit(0)
