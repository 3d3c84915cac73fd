"""The log in a file (`--log-file`), on a disk that may be full.

A line that cannot be written is lost, without an error in the code that logs. The first lost line and the reason go to
the standard error. When the file takes lines again, the first of them says how many are missing. A line of which only a
part was written is ended before the next one, so that two never become one.

A program that rotates logs renames the file and asks for a new one (`reopen`). Each line is in one of the two.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import time

from stubserve.observability.output import OutputQueue

# If a disk is full and free in turns, a message comes at most this often.
_SAY_AGAIN_S = 60.0


class LogFile(logging.Handler):
    """Appends to the file `path`; `lost` counts the lines missing in it. Raises OSError if it cannot be opened.

    Errors about the file go to the standard error, through `output`.
    """

    def __init__(self, path: str, output: OutputQueue) -> None:
        super().__init__()
        self._path = path
        self._output = output
        self._descriptor = self._open()
        self.lost = 0
        # How many missing lines the file does not mention yet, and why they are missing
        self._untold = 0
        self._why = ""
        # Whether the file ends in a part of a line
        self._cut = False
        self._said_at = float("-inf")

    def emit(self, record: logging.LogRecord) -> None:
        try:
            data = self._line(record)
        except Exception:
            self.handleError(record)
            return
        if self._untold:
            data = self._line(self._about(f"{self._untold} lines of the log are missing here: {self._why}")) + data
        if self._cut:
            data = b"\n" + data
        try:
            written = os.write(self._descriptor, data)
        except OSError as error:
            self._lose(error.strerror or str(error))
            return
        if written < len(data):
            self._cut = True
            self._lose(os.strerror(errno.ENOSPC))
        else:
            self._cut = False
            self._untold = 0

    def reopen(self) -> None:
        """Goes on in the file that has the path now. If it raises OSError, it goes on in the old file."""
        descriptor = self._open()
        self.acquire()
        try:
            old, self._descriptor = self._descriptor, descriptor
            self._cut = False
        finally:
            self.release()
        os.close(old)

    def close(self) -> None:
        super().close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def _line(self, record: logging.LogRecord) -> bytes:
        # As on stderr: text that UTF-8 cannot encode (names of files may be any bytes) must not lose the line.
        return self.format(record).encode("utf-8", "backslashreplace") + b"\n"

    def _lose(self, why: str) -> None:
        self.lost += 1
        self._untold += 1
        self._why = why
        now = time.monotonic()
        if now - self._said_at >= _SAY_AGAIN_S:
            self._said_at = now
            text = f"--log-file={self._path} cannot be written, its lines are lost until it can be: {why}"
            self._output.write(sys.stderr.fileno(), self._line(self._about(text)))

    def _about(self, text: str) -> logging.LogRecord:
        return logging.LogRecord("stubserve.log", logging.WARNING, __file__, 0, text, (), None)
