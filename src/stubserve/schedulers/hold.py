"""Keeping everything back until enough waits, for tests that want to know what shares a batch."""

from __future__ import annotations

import os

# How many requests have to wait with a batching model, and how many in the backlog of one with sequences
HOLD_VARIABLE = "TRITONSERVER_DELAY_SCHEDULER"
BACKLOG_VARIABLE = "TRITONSERVER_BACKLOG_DELAY_SCHEDULER"


def from_environment(variable: str) -> int:
    """What an environment variable says, once when a model is loaded; 0 if it is unset or no number."""
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else 0


class Hold:
    """Holds until so many requests wait in slots and so many in the backlog; then never again.

    As upstream, a number for the backlog alone holds nothing.
    """

    __slots__ = ("_backlog", "_in_slots")

    def __init__(self, in_slots: int = 0, backlog: int = 0) -> None:
        self._in_slots = in_slots
        self._backlog = backlog

    def holds(self, in_slots: int, backlog: int) -> bool:
        """Whether to wait for more, with so many there."""
        if self._in_slots and in_slots >= self._in_slots and backlog >= self._backlog:
            self._in_slots = 0
        return self._in_slots > 0
