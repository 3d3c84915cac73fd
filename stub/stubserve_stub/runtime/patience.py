"""Whether a stub looks for its next batch for a moment before it goes to sleep.

A sleeping process on another core has to be woken, which on a virtual machine takes longer than a small model runs: 40
to 60 µs, and its caches are cold after that. So after a request that was alone in the server the stub watches a word in
shared memory before it sleeps in the kernel. The parent raises the word with every announcement. It is only a hint: the
doorbell (`wire.ring`) alone decides what may be read.

How long is learned from the pause before: twice of that, at least LEAST_NS. Where the last pause was longer than
LONGEST_NS the stub sleeps at once; the next pause tells. A look that does not succeed is followed by pauses without
one, for a core with busy neighbours has better work to do: by none after the first, for that may be a client that has
become slower, then by 2, 6, 14, 30 and at most 62. A look that succeeds ends this.

Nobody looks

- under load, for then a request is not alone;
- where there is only one core to use, or a quota of less than two: looking would keep the parent from answering;
- for a request of another model (BLS), nor after a batch whose model has called another: two of three processes would
  look while the third one works (1490 µs of processor time a call in place of 700, beside neighbours);
- after a large request: the core is needed to move its answer.

Costs: two looks at the clock, and at most LONGEST_NS of one core, per lone request of a client that asks at short
intervals. One connection, 16 floats, 2 cores: median latency 330 µs without, 220 µs with.
"""

from __future__ import annotations

import os
import time
from typing import Callable

from stubserve_stub.wire.layout import ALONE, ANNOUNCED

# For how long a stub looks at least, if it looks
LEAST_NS = 300_000
# The longest pause that is worth looking through
LONGEST_NS = 1_000_000
# As many looks in a row that did not succeed count
MOST_VAIN = 6

_QUOTA = "/sys/fs/cgroup/cpu.max"


def usable_cores() -> float:
    """Cores that this process may use: its affinity, or its control group's quota where that is less."""
    try:
        cores = float(len(os.sched_getaffinity(0)))
    except AttributeError:  # PyPy
        cores = float(os.cpu_count() or 1)
    try:
        with open(_QUOTA) as file:
            quota, period = file.read().split()[:2]
        if quota != "max":
            cores = min(cores, int(quota) / int(period))
    except (OSError, ValueError):
        pass  # no control group, or none with a quota
    return cores


class Patience:
    """Looks for announcements among the parent's `words`, if these say that it may.

    `clock` is CLOCK_MONOTONIC in ns.
    """

    def __init__(self, words: memoryview, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._words = words
        self._clock = clock
        self._taken = 0
        self._worth_it = usable_cores() >= 2
        # How long the last pause was, and when the one that is under way began; 0 where there is none, or none measured
        self._pause_ns = 0
        self._since_ns = 0
        # How many looks in a row did not succeed, and how many are to be left out for that
        self._vain = 0
        self._left_out = 0
        # Whether the model has called another one since the last look
        self._has_called = False

    def look(self) -> None:
        """Returns when there is an announcement to take, or when it is time to sleep."""
        words = self._words
        if not self._worth_it or not words[ALONE] or self._has_called:
            self._has_called = False
            self._since_ns = 0
            return
        clock = self._clock
        self._since_ns = since = clock()
        taken, pause = self._taken, self._pause_ns
        if words[ANNOUNCED] != taken or pause > LONGEST_NS:
            return
        if self._left_out:
            self._left_out -= 1
            return
        deadline = since + min(max(2 * pause, LEAST_NS), LONGEST_NS)
        while words[ANNOUNCED] == taken:
            if clock() >= deadline:
                self._vain = min(self._vain + 1, MOST_VAIN)
                self._left_out = (1 << self._vain) - 2
                return
            os.sched_yield()
        self._vain = 0

    def took(self, records: int) -> None:
        """So many records have been taken."""
        self._taken += records
        if self._since_ns:
            self._pause_ns = self._clock() - self._since_ns

    def called(self) -> None:
        """The model has waited for another one."""
        self._has_called = True
