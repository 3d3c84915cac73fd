"""The server's standard output and error, written by a thread of their own.

The reader of the log may be slow, or stop reading, and a write to a full pipe waits. So the event loop only appends to
a queue, for its own lines and for the stubs' stderr, and only the thread waits. The queue is bounded:

- one source (a stub, or the server's own log) may have up to SOURCE_BYTES in it. A source that can wait asks `is_full`
  first and reads on later, so a model that floods its stderr is slowed to the speed at which the log is read;
- if nothing could be written for STUCK_S nobody waits any more: what does not fit is dropped. Once there is room again,
  a line names the source and how much is missing;
- what cannot be written, because the disk is full, is lost. After the first line that can be written, a line says how
  many are missing.

All that goes through here keeps its order. What is queued when the server ends is written then (`finish`).
"""

from __future__ import annotations

import collections
import errno
import logging
import os
import select
import threading
import time
from typing import TextIO

SOURCE_BYTES = 1 << 20
STUCK_S = 1.0
_FINISH_S = 2.0
_LARGEST_WRITE = 64 << 10

SERVER = "the server"

log = logging.getLogger("stubserve.log")


class OutputQueue:
    """A queue of bytes for descriptors, and the thread that writes them. Safe on any thread."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._queue: collections.deque[tuple[int, str, bytes]] = collections.deque()
        self._waiting: collections.Counter[str] = collections.Counter()
        self._dropped: collections.Counter[str] = collections.Counter()
        # All lines that were dropped or not written; unwritten lines not reported yet, and the reason
        self.lines_lost = 0
        self._unwritten = 0
        self._why = ""
        self._thread: threading.Thread | None = None
        # When something was last written, or the queue began to fill; None if nothing is to be written
        self._began: float | None = None

    def write(self, descriptor: int, data: bytes, source: str = SERVER) -> None:
        with self._news:
            if self._waiting[source] + len(data) > SOURCE_BYTES + _LARGEST_WRITE:
                self._dropped[source] += len(data)
                self.lines_lost += data.count(b"\n")
                return
            self._waiting[source] += len(data)
            self._queue.append((descriptor, source, data))
            if self._began is None:
                self._began = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="stubserve-output", daemon=True)
                self._thread.start()
            self._news.notify()

    def is_full(self, source: str) -> bool:
        """Whether `source` should wait before it writes more."""
        return self._waiting[source] > SOURCE_BYTES and not self.is_stuck

    @property
    def is_stuck(self) -> bool:
        """Whether nothing has been written for a while although there is something to write."""
        began = self._began
        return began is not None and time.monotonic() - began > STUCK_S

    def close(self) -> None:
        """Waits until everything is written, for at most two seconds."""
        with self._news:
            self._news.wait_for(lambda: self._began is None, _FINISH_S)

    def _run(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._queue)
                descriptor, source, data = self._queue.popleft()
            unwritten = lost = 0
            try:
                self._write(descriptor, data)
                unwritten, self._unwritten = self._unwritten, 0
            except OSError as error:
                # A reader that has closed its pipe does not want the lines.
                if error.errno != errno.EPIPE:
                    lost = data.count(b"\n")
                    self._unwritten += lost
                    self._why = error.strerror or str(error)
            with self._news:
                self.lines_lost += lost
                self._began = time.monotonic() if self._queue else None
                self._waiting[source] -= len(data)
                if not self._waiting[source]:
                    del self._waiting[source]
                dropped, self._dropped = self._dropped, collections.Counter()
                self._news.notify_all()
            if unwritten:
                # Reported only after a successful write, so that this line does not cause the next.
                log.warning("%d lines of the log are missing here: %s", unwritten, self._why)
            for name, nbytes in dropped.items():
                log.warning("%d bytes that %s wrote were dropped: the log is not read fast enough", nbytes, name)

    def _write(self, descriptor: int, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(descriptor, left[:_LARGEST_WRITE]) :]
            except BlockingIOError:
                select.select([], [descriptor], [])
            self._began = time.monotonic()


class QueuedStream:
    """One of the process's text streams, for a handler of `logging`: its text goes through a queue."""

    def __init__(self, stream: TextIO, output: OutputQueue) -> None:
        self._descriptor = stream.fileno()
        self._encoding = stream.encoding
        self._output = output

    def write(self, text: str) -> None:
        # Text that the encoding cannot express (names of files may be any bytes) must not lose the line.
        self._output.write(self._descriptor, text.encode(self._encoding, "backslashreplace"))

    def flush(self) -> None:
        """Nothing waits here for more."""


output = OutputQueue()
