"""Keeps all requests back until enough of them wait, for tests that must know which requests share a batch."""

# Compiled by mypyc.
from __future__ import annotations

import os

# How many requests have to wait for a batching model, or in the backlog of a model with sequences
HOLD_VARIABLE = "TRITONSERVER_DELAY_SCHEDULER"
BACKLOG_VARIABLE = "TRITONSERVER_BACKLOG_DELAY_SCHEDULER"


def from_environment(variable: str) -> int:
    """The value of an environment variable when a model is loaded; 0 if it is unset or no number."""
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else 0


# How long the hold then waits for one more
_ONE_MORE_NS = 10_000_000


class SchedulerDelay:
    """Holds until that many requests wait in slots and in the backlog, and then for one more; then never again.

    As upstream: its thread looks again at the next request, or after 10 ms. Otherwise chance decides whether a
    client's requests beyond these numbers get a batch of their own. As upstream, a number for the backlog alone holds
    nothing. `until_ns` is the latest end of the hold, None while that is not known.
    """

    def __init__(self, in_slots: int = 0, backlog: int = 0) -> None:
        self._in_slots = in_slots
        self._backlog = backlog
        self._there = 0
        self.until_ns: int | None = None

    def holds(self, in_slots: int, backlog: int, now_ns: int) -> bool:
        """Whether to wait for more."""
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
