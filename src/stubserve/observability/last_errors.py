"""The last errors of the log, with what belongs to them, for the status page."""

from __future__ import annotations

import logging
from collections import deque

_LAST = 20
# Of a text no more than this is kept
_LENGTH = 8000


class LastErrors(logging.Handler):
    """Keeps the last errors that are logged, each as `{"time", "text", "count"}`; the same text again only counts.

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
