"""A stub's stdout or stderr, passed on to the server's, line by line, with the stub's name in front.

It is read no faster than the server's own output is read (`observability.output`), so a model with too much output
waits. A line is passed on when it is whole, or after a moment if its end does not come; a long one in pieces. The last
part is kept, so that an error can quote it.
"""

from __future__ import annotations

import asyncio
import os

from stubserve.observability.output import output

_TAIL_BYTES = 4096

# The pause in reading when a stub writes faster than the log is read.
_PAUSE_S = 0.05

# How long a line waits for its end, and the size of a line that does not wait
_LINE_S = 0.2
_LONG_LINE = 8192

# More than a pipe holds: another process with its other end may write as fast as this reads.
_MOST_READS = 64


class StubOutput:
    """Reads `descriptor`, which `close` closes, and writes its lines to `target`. For the event loop.

    `name` is the stub's, and may change.
    """

    def __init__(self, descriptor: int, target: int, name: str) -> None:
        self.name = name
        self.tail = b""
        self._descriptor = descriptor
        self._target = target
        self._loop = asyncio.get_running_loop()
        self._line = b""
        self._waiting: asyncio.TimerHandle | None = None
        self._pause: asyncio.TimerHandle | None = None
        os.set_blocking(descriptor, False)
        self._go_on()

    def close(self) -> None:
        """Passes on what is there now, and stops reading: another process may keep the other end open for ever."""
        if self._pause is not None:
            self._pause.cancel()
        for _ in range(_MOST_READS):
            if not self._read():
                break
        self._loop.remove_reader(self._descriptor)
        self._pass_on_rest()
        os.close(self._descriptor)

    @property
    def _source(self) -> str:
        return f"stub '{self.name}'"

    def _go_on(self) -> None:
        self._loop.add_reader(self._descriptor, self._on_data)

    def _on_data(self) -> None:
        """Reads no faster than the server's own output is read; slowly if that stands still."""
        if output.is_full(self._source) or (self._read() and output.is_stuck):
            self._loop.remove_reader(self._descriptor)
            self._pause = self._loop.call_later(_PAUSE_S, self._go_on)

    def _read(self) -> bool:
        """Reads once; False at the end of the stream, or when there is nothing now."""
        try:
            data = os.read(self._descriptor, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._descriptor)
            return False
        self.tail = (self.tail + data)[-_TAIL_BYTES:]
        whole, newline, self._line = (self._line + data).rpartition(b"\n")
        if newline:
            self._pass_on(whole)
        if len(self._line) > _LONG_LINE:
            self._pass_on_rest()
        elif self._line and self._waiting is None:
            self._waiting = self._loop.call_later(_LINE_S, self._pass_on_rest)
        return True

    def _pass_on_rest(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        if self._line:
            rest, self._line = self._line, b""
            self._pass_on(rest)

    def _pass_on(self, lines: bytes) -> None:
        """Writes lines; the last has no line end."""
        front = f"[{self.name}] ".encode(errors="backslashreplace")
        output.write(self._target, front + lines.replace(b"\n", b"\n" + front) + b"\n", self._source)
