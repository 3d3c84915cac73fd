"""The server's log: upstream's line format, on stdout (info) and stderr (warnings and errors), or in a file.

`I1121 02:02:20.519482 21594 server.py:117] "message"`: level, date, time, pid, place, message. The message is quoted
and escaped as JSON, unless the environment says TRITON_SERVER_ESCAPE_LOG_MESSAGES=0.

What is logged can be changed while the server runs (`LogSettings`). Who filters at the source, as stubs do, watches it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stubserve.observability.output import QueuedStream, output
from stubserve.settings import LoggingSettings

_EVENT_LOOP = str(Path(asyncio.__file__).parent)

FORMATS = ("default", "ISO8601")
# In the order of the stub's levels
_SWITCHES = {logging.INFO: "log_info", logging.WARNING: "log_warning", logging.ERROR: "log_error"}
_LETTERS = {logging.DEBUG: "I", logging.INFO: "I", logging.WARNING: "W", logging.ERROR: "E", logging.CRITICAL: "F"}


class LineFormatter(logging.Formatter):
    """Formats one record as one line."""

    def __init__(self) -> None:
        super().__init__()
        self.iso8601 = False
        self._escape = os.environ.get("TRITON_SERVER_ESCAPE_LOG_MESSAGES", "1") != "0"

    def format(self, record: logging.LogRecord) -> str:
        letter = _LETTERS.get(record.levelno, "I")
        moment = time.gmtime(record.created)
        if self.iso8601:
            stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', moment)} {letter}"
        else:
            microseconds = int(record.created % 1 * 1_000_000)
            stamp = f"{letter}{time.strftime('%m%d %H:%M:%S', moment)}.{microseconds:06d}"
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        if self._escape:
            message = json.dumps(message, ensure_ascii=False)
        # What a compiled function logs would be said to come from the event loop: it has no frame that logging sees.
        compiled = record.pathname.startswith(_EVENT_LOOP) and record.name.startswith("stubserve")
        place = record.name if compiled else f"{record.filename}:{record.lineno}"
        return f"{stamp} {record.process} {place}] {message}"


class _BelowWarning(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno < logging.WARNING


class LogSettings:
    """What is logged, and how: the log settings of the protocols, under their names (`to_dict`), and they can change.

    `watchers` are called after each change.
    """

    def __init__(self, settings: LoggingSettings) -> None:
        self.formatter = LineFormatter()
        self.watchers: set[Callable[[], None]] = set()
        self._values: dict[str, Any] = {
            "log_file": settings.file,
            "log_info": settings.info,
            "log_warning": settings.warning,
            "log_error": settings.error,
            "log_verbose_level": settings.verbose,
            "log_format": settings.format,
        }

    def to_dict(self) -> dict[str, Any]:
        """All settings, in upstream's order."""
        return dict(self._values)

    @property
    def verbose(self) -> bool:
        """Whether what only matters to who looks closely is logged."""
        return bool(self._values["log_verbose_level"] > 0)

    def model_levels(self) -> int:
        """The levels that are logged of models' lines, as bits by their numbers in the stub's `LogLevel`."""
        names = (*_SWITCHES.values(), "log_verbose_level")
        return sum(1 << level for level, name in enumerate(names) if self._values[name])

    def update(self, changes: Mapping[str, Any]) -> None:
        """Changes the settings named; their values are of the right types, and the format is one of FORMATS."""
        self._values.update(changes)
        self.apply()
        for watcher in tuple(self.watchers):
            watcher()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is logged; as a filter of the handlers. Each level has a switch of its own."""
        switch = _SWITCHES.get(record.levelno)
        return switch is None or self._values[switch]

    def apply(self) -> None:
        """Has the process's log follow the settings."""
        self.formatter.iso8601 = self._values["log_format"] == "ISO8601"
        logging.getLogger("stubserve").setLevel(logging.DEBUG if self.verbose else logging.INFO)


def configure(settings: LoggingSettings) -> LogSettings:
    """Sets up the loggers "stubserve" and "uvicorn" as the settings say."""
    log_settings = LogSettings(settings)
    handlers: list[logging.Handler]
    if settings.file:
        # As on stderr, what UTF-8 cannot say (names of files may be any bytes) must not cost the line.
        handlers = [logging.FileHandler(settings.file, encoding="utf-8", errors="backslashreplace")]
    else:
        out = logging.StreamHandler(QueuedStream(sys.stdout, output))
        out.addFilter(_BelowWarning())
        err = logging.StreamHandler(QueuedStream(sys.stderr, output))
        err.setLevel(logging.WARNING)
        handlers = [out, err]
    for handler in handlers:
        handler.setFormatter(log_settings.formatter)
        handler.addFilter(log_settings.filter)
    for name in ("stubserve", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = handlers
        logger.propagate = False
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    log_settings.apply()
    return log_settings
