"""When a dead stub may be started again."""

from __future__ import annotations

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 30.0
STABLE_S = 60.0


class RestartPolicy:
    """Counts deaths in a row and says how long to wait: 0.1 s, doubling to 30 s.

    A stub that lived for a minute before it died starts the count anew. After `limit` restarts in a row there is no
    other; a limit of 0 turns restarting off. Times are seconds of any one clock.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.restarts = 0
        self.total = 0

    def next_delay(self, started_at: float, died_at: float) -> float | None:
        """Seconds until the next start, None if there is to be none."""
        if died_at - started_at >= STABLE_S:
            self.restarts = 0
        if self.restarts >= self.limit:
            return None
        self.restarts += 1
        self.total += 1
        return float(min(FIRST_DELAY_S * 2 ** (self.restarts - 1), LONGEST_DELAY_S))
