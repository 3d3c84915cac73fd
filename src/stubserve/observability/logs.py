"""The server's log: upstream's line format, on stdout (info) and stderr (warnings and errors), or in a file.

`I1121 02:02:20.519482 21594 server.py:117] "message"`: level, date, time, pid, place, message. The message is quoted
and escaped as JSON, unless the environment says TRITON_SERVER_ESCAPE_LOG_MESSAGES=0.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import Any

from stubserve.settings import Settings

_LETTERS = {logging.DEBUG: "I", logging.INFO: "I", logging.WARNING: "W", logging.ERROR: "E", logging.CRITICAL: "F"}


class LineFormatter(logging.Formatter):
    """Formats one record as one line."""

    def __init__(self, iso8601: bool) -> None:
        super().__init__()
        self._iso8601 = iso8601
        self._escape = os.environ.get("TRITON_SERVER_ESCAPE_LOG_MESSAGES", "1") != "0"

    def format(self, record: logging.LogRecord) -> str:
        letter = _LETTERS.get(record.levelno, "I")
        moment = time.gmtime(record.created)
        if self._iso8601:
            stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', moment)} {letter}"
        else:
            microseconds = int(record.created % 1 * 1_000_000)
            stamp = f"{letter}{time.strftime('%m%d %H:%M:%S', moment)}.{microseconds:06d}"
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        if self._escape:
            message = json.dumps(message, ensure_ascii=False)
        return f"{stamp} {record.process} {record.filename}:{record.lineno}] {message}"


class _BelowWarning(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno < logging.WARNING


class _Switches(logging.Filter):
    """--log-info, --log-warning, --log-error: each level on its own."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._on = {
            logging.DEBUG: settings.log_verbose > 0,
            logging.INFO: settings.log_info,
            logging.WARNING: settings.log_warning,
            logging.ERROR: settings.log_error,
            logging.CRITICAL: True,
        }

    def filter(self, record: logging.LogRecord) -> bool:
        return self._on.get(record.levelno, True)


def configure(settings: Settings) -> None:
    """Sets up the loggers "stubserve" and "uvicorn" as the settings say."""
    formatter = LineFormatter(settings.log_format == "ISO8601")
    handlers: list[logging.Handler]
    if settings.log_file:
        handlers = [logging.FileHandler(settings.log_file)]
    else:
        out = logging.StreamHandler(sys.stdout)
        out.addFilter(_BelowWarning())
        err = logging.StreamHandler(sys.stderr)
        err.setLevel(logging.WARNING)
        handlers = [out, err]
    switches = _Switches(settings)
    for handler in handlers:
        handler.setFormatter(formatter)
        handler.addFilter(switches)
    for name, level in (
        ("stubserve", logging.DEBUG if settings.log_verbose else logging.INFO),
        ("uvicorn", logging.WARNING),
    ):
        logger = logging.getLogger(name)
        logger.handlers = handlers
        logger.setLevel(level)
        logger.propagate = False


def stub_levels(settings: Settings) -> dict[str, Any]:
    """The same switches in the form that a stub's Logger takes."""
    return {
        "info": settings.log_info,
        "warning": settings.log_warning,
        "error": settings.log_error,
        "verbose": settings.log_verbose,
    }
