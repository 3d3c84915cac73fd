"""The server's log, on stdout (info) and stderr (warnings and errors), or in a file.

A record is a line of JSON, or a line in upstream's form, with further lines below it. Upstream's form is `I1121
02:02:20.519482 21594 server.py:117] "message"`: level, date, time, pid, place, message. The message is quoted and
escaped as JSON, unless the environment says TRITON_SERVER_ESCAPE_LOG_MESSAGES=0. Its other lines (a traceback) follow
indented, with unprintable characters escaped, so no text can look like a record. A terminal gets colours, not quotes.

The settings can change while the server runs (`LogSettings`). Parts that filter at the source, as stubs do, watch them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from stubserve.observability.output import QueuedStream, output
from stubserve.settings.groups import LoggingSettings

if TYPE_CHECKING:
    from stubserve.observability.log_file import LogFile

DEFAULT, ISO8601, JSON = "default", "ISO8601", "json"

_EVENT_LOOP = str(Path(asyncio.__file__).parent)
_LETTERS = {logging.DEBUG: "I", logging.INFO: "I", logging.WARNING: "W", logging.ERROR: "E", logging.CRITICAL: "F"}
_NAMES = {"I": "info", "W": "warning", "E": "error", "F": "fatal"}
_INDENT = "\n    "
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")

_RESET = "\x1b[0m"
# Grey, yellow, red: for the head of a line, and for its message
_HEAD_COLORS = {"I": "\x1b[2m", "W": "\x1b[33m", "E": "\x1b[1;31m", "F": "\x1b[1;31m"}
_TEXT_COLORS = {"W": "\x1b[33m", "E": "\x1b[31m", "F": "\x1b[31m"}


class LogFormatter(logging.Formatter):
    """Formats records in one of the forms, which may change; `colored` is for a terminal."""

    def __init__(self, colored: bool = False) -> None:
        super().__init__()
        self.form = DEFAULT
        self._colored = colored
        self._escape = os.environ.get("TRITON_SERVER_ESCAPE_LOG_MESSAGES", "1") != "0"

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        letter = _LETTERS.get(record.levelno, "I")
        moment = time.gmtime(record.created)
        microseconds = int(record.created % 1 * 1_000_000)
        if self.form == JSON:
            fields = {
                "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', moment)}.{microseconds:06d}Z",
                "level": _NAMES[letter],
                "pid": record.process,
                "place": _place(record),
                "message": message,
                # A line's values beside its message, for machines
                **getattr(record, "fields", {}),
            }
            return json.dumps(fields, ensure_ascii=False)
        if self.form == ISO8601:
            stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', moment)} {letter}"
        else:
            stamp = f"{letter}{time.strftime('%m%d %H:%M:%S', moment)}.{microseconds:06d}"
        head = f"{stamp} {record.process} {_place(record)}]"
        if self._colored:
            text = _indented(message, printable(message.partition("\n")[0]))
            color = _TEXT_COLORS.get(letter, "")
            return f"{_HEAD_COLORS[letter]}{head}{_RESET} {color}{text}{_RESET if color else ''}"
        if not self._escape:
            return f"{head} {message}"
        quoted = json.dumps(message.partition("\n")[0], ensure_ascii=False)
        return f"{head} {_indented(message, printable(quoted))}"


def printable(text: str) -> str:
    """The text with escapes for characters that control a terminal or end a line."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _indented(message: str, first: str) -> str:
    """A message's first line, given as `first`, and the others below it."""
    rest = message.rstrip("\n").split("\n")[1:]
    return _INDENT.join([first, *(printable(line) for line in rest)])


def _place(record: logging.LogRecord) -> str:
    # A compiled function has no frame that logging sees, so its lines would name the event loop as their place.
    compiled = record.pathname.startswith(_EVENT_LOOP) and record.name.startswith("stubserve")
    return record.name if compiled or not record.lineno else f"{record.filename}:{record.lineno}"


log = logging.getLogger("stubserve.log")

# The formats that can be chosen while the server runs, as in upstream; a reader of JSON wants no other lines.
FORMATS = (DEFAULT, ISO8601)
# In the order of the stub's levels
_SWITCHES = {logging.INFO: "log_info", logging.WARNING: "log_warning", logging.ERROR: "log_error"}
# The errors that the status page shows, and the most characters of a text
_LAST = 20
_LENGTH = 8000


class LastErrors(logging.Handler):
    """Keeps the last errors for the status page, as `{"time", "text", "count"}`; a repeated text only counts.

    `time` is that of the last occurrence, in seconds since 1970.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._last: deque[dict[str, float | str]] = deque(maxlen=_LAST)
        self._plain = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self._plain.format(record)[:_LENGTH]
        except Exception:
            return  # the handler that writes the log reports this
        for known in self._last:
            if known["text"] == text:
                self._last.remove(known)
                self._last.append({"time": record.created, "text": text, "count": float(known["count"]) + 1})
                return
        self._last.append({"time": record.created, "text": text, "count": 1})

    def newest_first(self) -> list[dict[str, float | str]]:
        return list(reversed(tuple(self._last)))


class _BelowWarning(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno < logging.WARNING


class LogSettings:
    """The log settings of the protocols, by name (`to_dict`). `watchers` are called after each change."""

    def __init__(self, settings: LoggingSettings) -> None:
        # One per output
        self.formatters: list[LogFormatter] = []
        self.last_errors = LastErrors()
        # None if the log goes to the standard output and error
        self.log_file: LogFile | None = None
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
        """Whether to log details that matter only for a close look."""
        return bool(self._values["log_verbose_level"] > 0)

    def lines_lost(self) -> int:
        """How many lines of the log, and of models' output, could not be written."""
        return output.lines_lost + (0 if self.log_file is None else self.log_file.lost)

    def model_levels(self) -> int:
        """The levels of models' lines to log, as bits by their numbers in the stub's `LogLevel`."""
        names = (*_SWITCHES.values(), "log_verbose_level")
        return sum(1 << level for level, name in enumerate(names) if self._values[name])

    def update(self, changes: Mapping[str, Any]) -> None:
        """Changes the settings named; their values are of the right types, and the format is one of FORMATS."""
        self._values.update(changes)
        self.apply()
        for watcher in tuple(self.watchers):
            watcher()

    def reopen(self) -> None:
        """Goes on in the file that has the log's path now: a program that rotates logs has renamed the old one."""
        path = self._values["log_file"]
        if self.log_file is None:
            log.info("SIGHUP is ignored: there is no --log-file to open again")
            return
        try:
            self.log_file.reopen()
        except OSError as error:
            why = error.strerror or str(error)
            log.error("--log-file=%s cannot be opened again, so the log goes on in the old file: %s", path, why)
        else:
            log.info("--log-file=%s has been opened again, after SIGHUP", path)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log a line, for the handlers' filters. Each level has its own switch."""
        switch = _SWITCHES.get(record.levelno)
        return switch is None or self._values[switch]

    def apply(self) -> None:
        for formatter in self.formatters:
            formatter.form = self._values["log_format"]
        logging.getLogger("stubserve").setLevel(logging.DEBUG if self.verbose else logging.INFO)


def configure(settings: LoggingSettings) -> LogSettings:
    """Sets up the loggers "stubserve" and "uvicorn"."""
    log_settings = LogSettings(settings)
    handlers: list[logging.Handler]
    colored = [False, False]
    if settings.file:
        from stubserve.observability.log_file import LogFile

        log_settings.log_file = LogFile(settings.file, output)
        handlers = [log_settings.log_file]
    else:
        out = logging.StreamHandler(QueuedStream(sys.stdout, output))
        out.addFilter(_BelowWarning())
        err = logging.StreamHandler(QueuedStream(sys.stderr, output))
        err.setLevel(logging.WARNING)
        handlers = [out, err]
        colored = [takes_colors(sys.stdout), takes_colors(sys.stderr)]
    for handler, is_colored in zip(handlers, colored, strict=False):
        formatter = LogFormatter(is_colored)
        log_settings.formatters.append(formatter)
        handler.setFormatter(formatter)
        handler.addFilter(log_settings.filter)
    for name in ("stubserve", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [*handlers, log_settings.last_errors]
        logger.propagate = False
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    log_settings.apply()
    return log_settings


def takes_colors(stream: TextIO) -> bool:
    """Whether the stream is a terminal with colours not switched off."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
