"""The stub's end of the control socket: everything that is rare. Handshake, readiness, cancellation, logs, end of life.

A daemon thread reads the socket from the start. Orders for the main thread go into `inbox`; messages that must not wait
for it (a running `execute` keeps it busy) are handled here. When the socket ends, the parent is gone, and the stub
ends, whatever its model is doing.

A message may be sent at any moment, also by a finalizer that interrupts a send on the same thread. So every message
goes through an outbox, and the thread that sends goes on until it is empty.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
from collections import deque
from typing import Any, Callable, Deque, Dict

from stubserve_stub.wire.messages import Unframer, frame

Message = Dict[str, Any]


class Control:
    """`send` may be called from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._pid = os.getpid()
        self._outbox: Deque[bytes] = deque()
        self._sending = threading.Lock()
        # Of each thread: whether it is `sending`
        self._thread = threading.local()
        self._handlers: Dict[str, Callable[[Message], None]] = {}
        os.register_at_fork(after_in_child=self._begin_anew)
        self.inbox: "queue.SimpleQueue[Message]" = queue.SimpleQueue()
        threading.Thread(target=self._read, name="stubserve-control", daemon=True).start()

    def handle(self, kind: str, handler: Callable[[Message], None]) -> None:
        """Has messages of this kind go to `handler`, on the control thread, and not into the inbox."""
        self._handlers[kind] = handler

    def send(self, kind: str, **fields: Any) -> None:
        """Sends one message; ends the process if that fails, unless it is a fork of the stub."""
        self._outbox.append(frame(dict(fields, kind=kind)))
        if getattr(self._thread, "sending", False):
            return
        while self._outbox:
            self._thread.sending = True
            try:
                with self._sending:
                    self._send_outbox()
            finally:  # a signal handler of the model may raise
                self._thread.sending = False

    def _begin_anew(self) -> None:
        """For a forked process, which may log: messages of the stub's other threads are not its own."""
        self._outbox.clear()
        self._sending = threading.Lock()
        self._thread = threading.local()

    def _send_outbox(self) -> None:
        while self._outbox:
            try:
                self._socket.sendall(self._outbox.popleft())
            except OSError as error:
                self._outbox.clear()
                if os.getpid() == self._pid:
                    # The model has closed this descriptor, or the parent is gone. The stub would wait for ever.
                    print("The line to the server is lost:", error, file=sys.stderr, flush=True)
                    os._exit(1)

    def _read(self) -> None:
        unframer = Unframer()
        while True:
            try:
                data = self._socket.recv(65536)
            except OSError:
                data = b""
            if not data:
                try:
                    print("Non-graceful termination detected. ", file=sys.stderr, flush=True)
                finally:  # whatever has become of stderr
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
