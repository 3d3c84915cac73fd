"""The server's log, on stdout (info) and stderr (warnings and errors), or in a file; `log_lines` has its form.

What is logged can be changed while the server runs (`LogSettings`). A part that filters at the source, as stubs do,
watches it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from stubserve.observability.log_file import LogFile
from stubserve.observability.log_lines import DEFAULT, ISO8601, LogFormatter
from stubserve.observability.output import QueuedStream, output
from stubserve.settings.groups import LoggingSettings

log = logging.getLogger("stubserve.log")

# Those that can be chosen while the server runs, as with upstream; whoever reads JSON wants nothing else in between.
FORMATS = (DEFAULT, ISO8601)
# In the order of the stub's levels
_SWITCHES = {logging.INFO: "log_info", logging.WARNING: "log_warning", logging.ERROR: "log_error"}
# How many errors the status page shows, and how much of a text
_LAST = 20
_LENGTH = 8000


class LastErrors(logging.Handler):
    """Keeps the last errors for the status page, each as `{"time", "text", "count"}`; the same text again only counts.

    `time` is seconds since 1970, of the last time.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._last: deque[dict[str, float | str]] = deque(maxlen=_LAST)
        self._plain = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self._plain.format(record)[:_LENGTH]
        except Exception:
            return  # whoever writes the log says so
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
    """What is logged, and how: the log settings of the protocols, under their names (`to_dict`), and they can change.

    `watchers` are called after each change.
    """

    def __init__(self, settings: LoggingSettings) -> None:
        # One for each place that is written to
        self.formatters: list[LogFormatter] = []
        self.last_errors = LastErrors()
        # None where the log goes to the standard output and error
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
        """Whether details are logged that matter only for a close look."""
        return bool(self._values["log_verbose_level"] > 0)

    def lines_lost(self) -> int:
        """How many lines of the log, and of what models print, could not be written."""
        return output.lines_lost + (0 if self.log_file is None else self.log_file.lost)

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
        """Whether a line is logged; as a filter of the handlers. Each level has a switch of its own."""
        switch = _SWITCHES.get(record.levelno)
        return switch is None or self._values[switch]

    def apply(self) -> None:
        """Has the process's log follow the settings."""
        for formatter in self.formatters:
            formatter.form = self._values["log_format"]
        logging.getLogger("stubserve").setLevel(logging.DEBUG if self.verbose else logging.INFO)


def configure(settings: LoggingSettings) -> LogSettings:
    """Sets up the loggers "stubserve" and "uvicorn" as the settings say."""
    log_settings = LogSettings(settings)
    handlers: list[logging.Handler]
    colored = [False, False]
    if settings.file:
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
    """Whether the stream is a terminal, and colours are not switched off."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
