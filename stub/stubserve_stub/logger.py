"""`Logger`: a model's lines in the server's log.

Until the stub is connected (while the model is imported, and in `auto_complete_config`) lines go to stderr, all of
them, in the form that upstream uses there. Afterwards they go to the server, which knows the file and line of the
caller; lines that the server would drop are dropped here.
"""

from __future__ import annotations

import datetime
import os
import sys
from typing import Any, Callable, Dict, Optional

from stubserve_stub import constants
from stubserve_stub.arguments import as_text, incompatible
from stubserve_stub.constants import LogLevel

Emit = Callable[[int, str, int, str], None]

INFO_LEVEL = int(LogLevel.INFO)
WARNING_LEVEL = int(LogLevel.WARNING)
ERROR_LEVEL = int(LogLevel.ERROR)
VERBOSE_LEVEL = int(LogLevel.VERBOSE)

# The server, once connected, and the levels that it wants to hear of
_emit: Optional[Emit] = None
_enabled: Dict[int, bool] = {INFO_LEVEL: True, WARNING_LEVEL: True, ERROR_LEVEL: True, VERBOSE_LEVEL: False}
_LETTERS = {INFO_LEVEL: "I", WARNING_LEVEL: "W", ERROR_LEVEL: "E", VERBOSE_LEVEL: "I"}


def connect(emit: Emit) -> None:
    """From now on lines go to `emit(level, file name, line, message)`; it may be called from any thread."""
    global _emit
    _emit = emit


def disconnect() -> None:
    """From now on lines go to stderr again."""
    global _emit
    _emit = None


def set_levels(settings: Dict[str, Any]) -> None:
    """Takes the server's log settings, named as `/v2/logging` does; what is not named stays."""
    for name, level in (("log_info", INFO_LEVEL), ("log_warning", WARNING_LEVEL), ("log_error", ERROR_LEVEL)):
        if name in settings:
            _enabled[level] = bool(settings[name])
    if "log_verbose_level" in settings:
        _enabled[VERBOSE_LEVEL] = int(settings["log_verbose_level"]) >= 1


def _write(level: int, message: str) -> None:
    """Logs a line on behalf of the caller of Logger's method, two frames up."""
    frame = sys._getframe(2)
    file, line = frame.f_code.co_filename, frame.f_lineno
    if _emit is not None:
        if _enabled[level]:
            _emit(level, file, line, message)
        return
    now = datetime.datetime.now()
    sys.stderr.write(
        "{}{:%m%d %H:%M:%S.%f} {} {}:{}]  {}\n".format(
            _LETTERS[level], now, os.getpid(), os.path.basename(file), line, message
        )
    )
    sys.stderr.flush()


def _text(function: str, message: str) -> str:
    text = as_text(message)
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
        text = as_text(message)
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
