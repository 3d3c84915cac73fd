"""When a dead stub may be started again."""

from __future__ import annotations

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 30.0
STABLE_S = 1.0


class RestartPolicy:
    """Counts deaths in a row and says how long to wait: 0.1 s, doubling to 30 s.

    A stub that served for a second before it died starts the count anew: what kills it then is a request or somebody
    outside, and between two deaths it does its work. One that dies in loading, or as soon as it gets to work, is what
    the delays and the limit are for. After `limit` restarts in a row there is no other; a limit of 0 turns restarting
    off. Times are seconds of any one clock; `ready_at` is None for a stub that never served.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.restarts = 0

    def next_delay(self, ready_at: float | None, died_at: float) -> float | None:
        """Seconds until the next start, None if there is to be none."""
        if ready_at is not None and died_at - ready_at >= STABLE_S:
            self.restarts = 0
        if self.restarts >= self.limit:
            return None
        self.restarts += 1
        return float(min(FIRST_DELAY_S * 2 ** (self.restarts - 1), LONGEST_DELAY_S))
