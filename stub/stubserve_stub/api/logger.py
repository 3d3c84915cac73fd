"""`Logger`: a model's lines in the server's log.

Until the stub is connected (while the model is imported, and in `auto_complete_config`) all lines go to stderr, in
upstream's form. Afterwards they go to the server, with the file and line of the caller, unless the server would drop
them.
"""

from __future__ import annotations

import datetime
import os
import sys
from typing import Any, Callable, Optional

from stubserve_stub.api import constants
from stubserve_stub.api.arguments import as_text, incompatible
from stubserve_stub.api.constants import LogLevel

Emit = Callable[[int, str, int, str], None]

# The levels that are logged by default, as bits
DEFAULT_LEVELS = 1 << LogLevel.INFO | 1 << LogLevel.WARNING | 1 << LogLevel.ERROR

# The server, once connected
_emit: Optional[Emit] = None


def _levels() -> int:
    """The levels that the server wants to hear of, as bits."""
    return DEFAULT_LEVELS


def connect(emit: Optional[Emit], levels: Callable[[], int] = _levels) -> None:
    """Sends lines to `emit(level, file name, line, message)` from now on, from any thread; None means stderr again.

    `levels()` gives the levels that are wanted at the moment, as bits.
    """
    global _emit, _levels
    _emit, _levels = emit, levels


def _as_line(message: Any) -> Optional[str]:
    # Bytes that are no text can still be logged.
    if isinstance(message, (bytes, bytearray)):
        return message.decode(errors="backslashreplace")
    return as_text(message)


def _write(level: LogLevel, message: Any, function: str) -> None:
    """Logs a line on behalf of the caller of Logger's method, two frames up. Raises TypeError if it is no text."""
    text = _as_line(message)
    if text is None:
        raise incompatible(function, "(message: str) -> None", (message,))
    frame = sys._getframe(2)
    file, line = frame.f_code.co_filename, frame.f_lineno
    if _emit is not None:
        if _levels() >> level & 1:
            _emit(int(level), file, line, text)
        return
    now = datetime.datetime.now()
    sys.stderr.write(
        f"{'I' if level == LogLevel.VERBOSE else level.name[0]}{now:%m%d %H:%M:%S.%f} {os.getpid()} "
        f"{os.path.basename(file)}:{line}]  {text}\n"
    )
    sys.stderr.flush()


class Logger:
    """Used as it is, without an instance. Raises TypeError if the message is no text or the level no LogLevel."""

    LogLevel = LogLevel
    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    def __init__(self) -> None:
        raise TypeError("Logger: No constructor defined!")

    @staticmethod
    def log(message: str, level: constants.LogLevel = constants.LogLevel.INFO) -> None:
        if _as_line(message) is None or not isinstance(level, constants.LogLevel):
            raise incompatible("log", "(message: str, level: LogLevel = <LogLevel.INFO: 0>) -> None", (message, level))
        _write(level, message, "log")

    @staticmethod
    def log_info(message: str) -> None:
        _write(LogLevel.INFO, message, "log_info")

    @staticmethod
    def log_warn(message: str) -> None:
        _write(LogLevel.WARNING, message, "log_warn")

    @staticmethod
    def log_error(message: str) -> None:
        _write(LogLevel.ERROR, message, "log_error")

    @staticmethod
    def log_verbose(message: str) -> None:
        _write(LogLevel.VERBOSE, message, "log_verbose")
