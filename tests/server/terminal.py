"""Servers on a pseudo-terminal, as a person has them."""

from __future__ import annotations

import os
import pty
import re
import select
import time
from types import TracebackType

from tests.real_server import Serving


class Terminal:
    """The person's end of a pseudo-terminal in which a server runs, as a context manager."""

    def __init__(self, server: Serving) -> None:
        self.text = ""
        self._server = server

    def __enter__(self) -> Terminal:
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            os.execvpe(self._server.command[0], self._server.command, self._server.environment)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.pid:
            os.kill(self.pid, 9 if error is not None else 15)
            self.end()
        os.close(self.descriptor)

    def expect(self, pattern: str, timeout: float = 60.0) -> re.Match[str]:
        """Reads until what has come since the last match holds `pattern`."""
        deadline = time.monotonic() + timeout
        while True:
            match = re.search(pattern, self.text)
            if match:
                self.text = self.text[match.end() :]
                return match
            ready, _, _ = select.select([self.descriptor], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"no {pattern!r} on the terminal:\n{self.text}"
            self.text += os.read(self.descriptor, 65536).decode()

    def serving(self) -> None:
        """Waits until the server serves."""
        self._server.port = int(self.expect(r"Started HTTPService at [^ ]*:(\d+)")[1])

    def type(self, keys: str) -> None:
        os.write(self.descriptor, keys.encode())

    def end(self) -> int:
        """Reads what the server writes until it has ended; its exit code."""
        try:
            while data := os.read(self.descriptor, 65536):
                self.text += data.decode()
        except OSError:  # a terminal that nobody has open any more
            pass
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)
