"""Busy polling: a stub looks for its next batch for a moment before it sleeps.

To wake a process on another core takes 40 to 60 µs on a virtual machine, longer than a small model runs, and its caches
are cold then. So after a request that was alone in the server, the stub watches a word in shared memory before it
sleeps in the kernel. The parent raises the word with every announcement. The word is only a hint: the doorbell
(`wire.ring`) alone decides what may be read.

A look takes at most twice the last pause, and at least LEAST_NS. After a pause longer than LONGEST_NS the stub sleeps
at once, and measures the next pause. A look without success is followed by pauses without a look, because a busy core
has better work: 0 after the first, which may be a client that has become slower, then 2, 6, 14, 30 and at most 62. A
success ends this.

A stub does not look

- under load, because then a request is not alone;
- on a single core, or with a quota of less than two: a look would keep the parent from answering;
- for a request of another model (BLS), nor after a batch whose model has called another: two processes would look while
  a third works (1490 µs of processor time for each call instead of 700, beside neighbours);
- after a large request, because the core is needed to move its answer.

Costs: for each lone request of a client with short intervals, two looks at the clock, and at most LONGEST_NS of a core.
One connection, 16 floats, 2 cores: median latency 330 µs without, 220 µs with.
"""

from __future__ import annotations

import os
import time
from typing import Callable

from stubserve_stub.wire.layout import ALONE, ANNOUNCED

# The shortest time for which a stub looks
LEAST_NS = 300_000
# The longest pause after which a stub looks
LONGEST_NS = 1_000_000
# So many looks in a row without success are counted at most
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


class BusyPoll:
    """Polls the parent's `words` for announcements, if these allow it. `clock` is CLOCK_MONOTONIC in ns."""

    def __init__(self, words: memoryview, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._words = words
        self._clock = clock
        self._taken = 0
        self._worth_it = usable_cores() >= 2
        # The length of the last pause, and the beginning of the present one; 0 for none, or not measured
        self._pause_ns = 0
        self._since_ns = 0
        # How many looks in a row had no success, and how many looks to skip for that
        self._vain = 0
        self._left_out = 0
        # Whether the model has called another model since the last look
        self._has_called = False

    def wait(self) -> None:
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

    def on_taken(self, records: int) -> None:
        self._taken += records
        if self._since_ns:
            self._pause_ns = self._clock() - self._since_ns

    def on_call(self) -> None:
        """The model has waited for another model."""
        self._has_called = True
