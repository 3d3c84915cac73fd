"""The time of an execution by its number of requests, which tells whether two halves of a batch cost hardly more.

An instance that gets all requests in one batch waits afterwards, until all their answers have been written, read by the
clients, and followed by other requests. Of two halves the one is executed while the other is on its way. That is worth
it where the time of an execution grows with its requests, as on processors it mostly does, and not where it is much the
same for many as for few.

So a line is laid through the last executions: what each takes at all, and what one more request adds. Times differ for
other reasons, too, and where sizes hardly differ such a line says little. So halves are what is tried, and given up
only where the line leaves no doubt that they cost too much; after a while they are tried again, since batches that are
always of one size would teach nothing more.
"""

from __future__ import annotations

import math
from typing import Final

# The part that the last execution has in the line
_PART: Final = 1 / 32
# No doubt: so many standard errors of the slope of the line, as if it had been laid through the last 1 / _PART
_ERRORS: Final = 3
# So many executions say nothing yet, and so many go by until halves are tried again
FIRST: Final = 32
AGAIN: Final = 64
# Half of less is too little work for what telling of it costs
LEAST: Final = 8
NEVER: Final = 1 << 30
# What a second execution may cost for each request of both: less than parent and client need to follow it with another,
# which is for how long the instance would wait
_WAIT_NS: Final = 25_000
# And in all no more than such a part of what the requests add: then halves are answered earlier on average, even where
# the instance would not have waited
_OF_ALL: Final = 2


class Cost:
    """What an instance takes. `halves_from` is the number of requests from which on halves of them are worth it."""

    __slots__ = (
        "_around_ns",
        "_least_ns",
        "_requests",
        "_shared",
        "_spread",
        "_spread_ns",
        "_took_ns",
        "_wait",
        "halves_from",
    )

    def __init__(self, around_ns: int, least_ns: int) -> None:
        """`around_ns` is what is spent on an execution besides, and `least_ns` what a half has to take."""
        self.halves_from = NEVER
        self._around_ns = around_ns
        self._least_ns = least_ns
        self._wait = FIRST
        # Of the last executions: means of size and time, variances of both, and their covariance
        self._requests = 0.0
        self._took_ns = 0.0
        self._spread = 0.0
        self._spread_ns = 0.0
        self._shared = 0.0

    def learn(self, requests: int, took_ns: int) -> None:
        """So many requests have taken that long."""
        if not self._requests:
            self._requests, self._took_ns = float(requests), float(took_ns)
        more = requests - self._requests
        longer = took_ns - self._took_ns
        self._requests += _PART * more
        self._took_ns += _PART * longer
        self._spread = (1 - _PART) * (self._spread + _PART * more * more)
        self._spread_ns = (1 - _PART) * (self._spread_ns + _PART * longer * longer)
        self._shared = (1 - _PART) * (self._shared + _PART * more * longer)
        if self._wait:
            self._wait -= 1
            return
        self.halves_from = self._halves_from()
        if self.halves_from == NEVER:
            self._wait = AGAIN

    def _halves_from(self) -> int:
        if not self._spread:
            return LEAST
        each_ns = self._shared / self._spread
        unexplained = max(self._spread_ns - each_ns * self._shared, 0.0)
        each_ns += _ERRORS * math.sqrt(unexplained / self._spread * _PART)
        if each_ns <= 0:
            return NEVER
        at_all_ns = max(self._took_ns - each_ns * self._requests, 0.0) + self._around_ns
        quick = self._least_ns / self._took_ns * self._requests
        needed = max(at_all_ns / _WAIT_NS, _OF_ALL * at_all_ns / each_ns, 2 * quick)
        return max(LEAST, int(needed)) if needed < 1000 else NEVER
