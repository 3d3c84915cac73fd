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


# How long it then waits for one more
_ONE_MORE_NS = 10_000_000


class Hold:
    """Holds until so many requests wait in slots and so many in the backlog, and then for one more; then never again.

    As upstream, whose thread looks again at the next request, or after 10 ms. Who sends more than it waits for would
    otherwise find the last ones in a batch of their own or not, by chance. And as upstream, a number for the backlog
    alone holds nothing. `until_ns` is when it ends at the latest, None while that is not known.
    """

    def __init__(self, in_slots: int = 0, backlog: int = 0) -> None:
        self._in_slots = in_slots
        self._backlog = backlog
        self._there = 0
        self.until_ns: int | None = None

    def holds(self, in_slots: int, backlog: int, now_ns: int) -> bool:
        """Whether to wait for more, with so many there."""
        if not self._in_slots:
            return False
        there = in_slots + backlog
        if self.until_ns is not None:
            if there > self._there or now_ns >= self.until_ns:
                self._in_slots = 0
                self.until_ns = None
                return False
        elif in_slots >= self._in_slots and backlog >= self._backlog:
            self._there = there
            self.until_ns = now_ns + _ONE_MORE_NS
        return True
