"""`Logger`: a model's lines in the server's log.

Until the stub is connected (while the model is imported, and in `auto_complete_config`) lines go to stderr, all of
them, in the form that upstream uses there. Afterwards they go to the server, which knows the file and line of the
caller; lines that the server would drop are dropped here.
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

INFO_LEVEL = int(LogLevel.INFO)
WARNING_LEVEL = int(LogLevel.WARNING)
ERROR_LEVEL = int(LogLevel.ERROR)
VERBOSE_LEVEL = int(LogLevel.VERBOSE)

# The levels that are logged by default, as bits
DEFAULT_LEVELS = 1 << INFO_LEVEL | 1 << WARNING_LEVEL | 1 << ERROR_LEVEL

# The server, once connected
_emit: Optional[Emit] = None

_LETTERS = {INFO_LEVEL: "I", WARNING_LEVEL: "W", ERROR_LEVEL: "E", VERBOSE_LEVEL: "I"}


def _default_levels() -> int:
    return DEFAULT_LEVELS


# The levels that the server wants to hear of, as bits
_levels: Callable[[], int] = _default_levels


def connect(emit: Emit, levels: Callable[[], int] = _default_levels) -> None:
    """From now on lines go to `emit(level, file name, line, message)`; it may be called from any thread.

    `levels()` gives the levels that are wanted at the moment, as bits.
    """
    global _emit, _levels
    _emit, _levels = emit, levels


def disconnect() -> None:
    """From now on lines go to stderr again."""
    global _emit
    _emit = None


def _write(level: int, message: str) -> None:
    """Logs a line on behalf of the caller of Logger's method, two frames up."""
    frame = sys._getframe(2)
    file, line = frame.f_code.co_filename, frame.f_lineno
    if _emit is not None:
        if _levels() >> level & 1:
            _emit(level, file, line, message)
        return
    now = datetime.datetime.now()
    sys.stderr.write(
        "{}{:%m%d %H:%M:%S.%f} {} {}:{}]  {}\n".format(
            _LETTERS[level], now, os.getpid(), os.path.basename(file), line, message
        )
    )
    sys.stderr.flush()


def _as_line(message: Any) -> Optional[str]:
    # Bytes that are no text cannot name anything, but they can be logged.
    if isinstance(message, (bytes, bytearray)):
        return message.decode(errors="backslashreplace")
    return as_text(message)


def _text(function: str, message: str) -> str:
    text = _as_line(message)
    if text is None:
        raise incompatible(function, "(message: str) -> None", (message,))
    return text


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
        text = _as_line(message)
        if text is None or not isinstance(level, constants.LogLevel):
            raise incompatible("log", "(message: str, level: LogLevel = <LogLevel.INFO: 0>) -> None", (message, level))
        _write(int(level), text)

    @staticmethod
    def log_info(message: str) -> None:
        _write(INFO_LEVEL, _text("log_info", message))

    @staticmethod
    def log_warn(message: str) -> None:
        _write(WARNING_LEVEL, _text("log_warn", message))

    @staticmethod
    def log_error(message: str) -> None:
        _write(ERROR_LEVEL, _text("log_error", message))

    @staticmethod
    def log_verbose(message: str) -> None:
        _write(VERBOSE_LEVEL, _text("log_verbose", message))
