"""The stub's end of the control socket: everything that is rare. Handshake, readiness, cancellation, logs, end of life.

A daemon thread reads the socket from the first moment on. What the main thread has to do goes into `inbox`; what must
not wait for it (a running `execute` keeps it busy) is handled here. When the socket ends, the parent is gone, and so is
the stub, whatever its model is doing.

Anything may be sent at any moment, also by a finalizer that runs in the middle of sending on the same thread: every
message goes through an outbox, and the thread that is sending sends until that is empty.
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


class _Thread(threading.local):
    """Of each thread, whether it is sending."""

    sending = False


class Control:
    """Sends and receives control messages. `send` may be called from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._pid = os.getpid()
        self._outbox: Deque[bytes] = deque()
        self._sending = threading.Lock()
        self._thread = _Thread()
        self._handlers: Dict[str, Callable[[Message], None]] = {}
        os.register_at_fork(after_in_child=self._begin_anew)
        self.inbox: "queue.SimpleQueue[Message]" = queue.SimpleQueue()
        threading.Thread(target=self._read, name="stubserve-control", daemon=True).start()

    def handle(self, kind: str, handler: Callable[[Message], None]) -> None:
        """From now on messages of this kind go to `handler`, on the control thread, and not into the inbox."""
        self._handlers[kind] = handler

    def send(self, kind: str, **fields: Any) -> None:
        """Sends one message; ends the process where that cannot be, but for one that was forked from the stub's."""
        self._outbox.append(frame(dict(fields, kind=kind)))
        if self._thread.sending:
            return
        while self._outbox:
            self._thread.sending = True
            try:
                with self._sending:
                    self._send_outbox()
            finally:  # a signal handler of the model's may raise
                self._thread.sending = False

    def _begin_anew(self) -> None:
        """In a forked process, which may log: what other threads were sending at that moment is theirs."""
        self._outbox.clear()
        self._sending = threading.Lock()
        self._thread = _Thread()

    def _send_outbox(self) -> None:
        while self._outbox:
            try:
                self._socket.sendall(self._outbox.popleft())
            except OSError as error:
                self._outbox.clear()
                if os.getpid() == self._pid:
                    # The model has closed what is not its own, or the parent is gone. It would wait for this for ever.
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
