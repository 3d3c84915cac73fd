"""The stub's end of the control socket: everything that is rare. Handshake, readiness, cancellation, logs, end of life.

A daemon thread reads the socket from the first moment on. What the main thread has to do goes into `inbox`; what must
not wait for it (a running `execute` keeps it busy) is handled here. When the socket ends, the parent is gone, and so is
the stub, whatever its model is doing.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
from typing import Any, Callable, Dict

from stubserve_stub.wire.messages import Unframer, frame

Message = Dict[str, Any]


class Control:
    """Sends and receives control messages. `send` may be called from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._sending = threading.Lock()
        self._handlers: Dict[str, Callable[[Message], None]] = {}
        self.inbox: "queue.SimpleQueue[Message]" = queue.SimpleQueue()
        threading.Thread(target=self._read, name="stubserve-control", daemon=True).start()

    def handle(self, kind: str, handler: Callable[[Message], None]) -> None:
        """From now on messages of this kind go to `handler`, on the control thread, and not into the inbox."""
        self._handlers[kind] = handler

    def send(self, kind: str, **fields: Any) -> None:
        """Sends one message; quietly does nothing when the parent is gone (the control thread ends the process)."""
        data = frame(dict(fields, kind=kind))
        with self._sending:
            try:
                self._socket.sendall(data)
            except OSError:
                return

    def _read(self) -> None:
        unframer = Unframer()
        while True:
            try:
                data = self._socket.recv(65536)
            except OSError:
                data = b""
            if not data:
                print("Non-graceful termination detected. ", file=sys.stderr, flush=True)
                os._exit(1)
            unframer.feed(data)
            message = unframer.next()
            while message is not None:
                handler = self._handlers.get(message["kind"])
                if handler is None:
                    self.inbox.put(message)
                else:
                    handler(message)
                message = unframer.next()
