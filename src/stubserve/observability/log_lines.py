"""The form of the log: one record as a line of upstream's form, with what belongs to it below, or as a line of JSON.

`I1121 02:02:20.519482 21594 server.py:117] "message"`: level, date, time, pid, place, message. The message is quoted
and escaped as JSON, unless the environment says TRITON_SERVER_ESCAPE_LOG_MESSAGES=0. One of several lines (a traceback)
is not squeezed into one: its other lines follow, indented, so that nobody's text can look like a record of its own,
and with what is not printable escaped. On a terminal there are colours in place of quotes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import time
from pathlib import Path

DEFAULT, ISO8601, JSON = "default", "ISO8601", "json"

_EVENT_LOOP = str(Path(asyncio.__file__).parent)
_LETTERS = {logging.DEBUG: "I", logging.INFO: "I", logging.WARNING: "W", logging.ERROR: "E", logging.CRITICAL: "F"}
_NAMES = {"I": "info", "W": "warning", "E": "error", "F": "fatal"}
_INDENT = "\n    "
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")

_RESET = "\x1b[0m"
# Grey, yellow, red: the head of a line; and what of its message is coloured
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
                # What a line says beside its message, for machines
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
    """The text, with what controls a terminal, or ends a line, escaped."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _indented(message: str, first: str) -> str:
    """The first line of a message, as it is given, and the others below it."""
    rest = message.rstrip("\n").split("\n")[1:]
    return _INDENT.join([first, *(printable(line) for line in rest)])


def _place(record: logging.LogRecord) -> str:
    # What a compiled function logs would be said to come from the event loop: it has no frame that logging sees.
    compiled = record.pathname.startswith(_EVENT_LOOP) and record.name.startswith("stubserve")
    return record.name if compiled else f"{record.filename}:{record.lineno}"
