"""The stub's end of the control socket: everything that is rare. Handshake, readiness, cancellation, logs, end of life.

A daemon thread reads the socket from the start. Orders for the main thread go into `inbox`; messages that must not wait
for it (a running `execute` keeps it busy) are handled here. When the socket ends, the parent is gone, and the stub
ends, whatever its model is doing.

A message about one seat (`runtime.seats`) has its number; a `Line` sends and hears those of a seat. Descriptors travel
with a message that says how many it has.

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
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

from stubserve_stub.wire.messages import Unframer, frame

Message = Dict[str, Any]

# More than a message has
_MOST_DESCRIPTORS = 16


class Control:
    """`send` may be called from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._pid = os.getpid()
        self._outbox: Deque[bytes] = deque()
        self._sending = threading.Lock()
        # Of each thread: whether it is `sending`
        self._thread = threading.local()
        self._handlers: Dict[Tuple[Optional[int], str], Callable[[Message], None]] = {}
        self._handling = threading.RLock()
        os.register_at_fork(after_in_child=self._begin_anew)
        self.inbox: "queue.SimpleQueue[Message]" = queue.SimpleQueue()
        threading.Thread(target=self._read, name="stubserve-control", daemon=True).start()

    def handle(self, kind: str, handler: Callable[[Message], None], seat: Optional[int] = None) -> None:
        """Has messages of this kind go to `handler`, on the control thread, and not into the inbox."""
        self._handlers[seat, kind] = handler

    def forget(self, seat: int) -> None:
        """Has messages about a seat be ignored from now on. Waits for the handler of one that is there."""
        with self._handling:
            # Of a list, because other threads take and leave seats meanwhile
            for key in list(self._handlers):
                if key[0] == seat:
                    del self._handlers[key]

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
        space = socket.CMSG_SPACE(4 * _MOST_DESCRIPTORS)
        descriptors: List[int] = []
        while True:
            try:
                data, ancillary, _, _ = self._socket.recvmsg(65536, space, socket.MSG_CMSG_CLOEXEC)
            except OSError:
                data, ancillary = b"", []
            for _, _, passed in ancillary:
                descriptors += memoryview(passed).cast("i")
            if not data:
                try:
                    print("Non-graceful termination detected. ", file=sys.stderr, flush=True)
                finally:  # whatever has become of stderr
                    os._exit(1)
            unframer.feed(data)
            message = unframer.next()
            while message is not None:
                if "descriptors" in message:
                    count = message["descriptors"]
                    message["descriptors"], descriptors = descriptors[:count], descriptors[count:]
                seat = message.get("seat")
                with self._handling:
                    handler = self._handlers.get((seat, message["kind"]))
                    if handler is not None:
                        handler(message)
                    elif seat is None:
                        self.inbox.put(message)
                message = unframer.next()


class Line:
    """The control messages of one seat."""

    def __init__(self, control: Control, seat: int) -> None:
        self._control = control
        self._seat = seat

    def send(self, kind: str, **fields: Any) -> None:
        self._control.send(kind, seat=self._seat, **fields)

    def handle(self, kind: str, handler: Callable[[Message], None]) -> None:
        self._control.handle(kind, handler, self._seat)

    def close(self) -> None:
        self._control.forget(self._seat)
