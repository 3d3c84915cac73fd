"""How many requests of one step may be under way (`max_inflight_requests`).

The limit is one for all requests to the ensemble, as upstream has it. Where upstream stops the thread that brings the
answer before, and lets it go after five minutes whatever happens, here the step waits in a queue, and who makes more
work for it is told to pause (`ensemble_pace`). What is under way never waits for the gate that it has passed, and a
flow has no circles, so a gate always opens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Gate:
    """The gate of one step, for `limit` requests at a time."""

    __slots__ = ("_inside", "_limit", "_waiting")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._inside = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def enter(self, go: Callable[[], None]) -> bool:
        """Whether one more may go now; if not, `go` is called once it is inside."""
        if self._inside < self._limit:
            self._inside += 1
            return True
        self._waiting.append(go)
        return False

    def give_up(self, go: Callable[[], None]) -> None:
        """Who waits does not want to go any more."""
        self._waiting.remove(go)

    def leave(self) -> None:
        """One has been answered; the next goes in its place."""
        if self._waiting:
            self._waiting.popleft()()
        else:
            self._inside -= 1
