"""Whether a stub looks for its next batch for a moment before it goes to sleep.

A sleeping process on another core has to be woken, which on a virtual machine takes longer than a small model runs:
40 to 60 µs, and its caches are cold after that. For a lone client that asks again and again this is the largest part
of its latency. So after a request that was alone in the server the stub watches a word in shared memory, which the
parent raises with every announcement, before it sleeps in the kernel.

How long is learned from the pause before: twice of that, and LEAST_NS at least, so that a client that asks at an even
pace finds it awake. Where the last pause was longer than LONGEST_NS, watching would have been in vain, and the stub
sleeps at once; the next pause tells. So the stubs of an ensemble's steps, each of which waits while all others have
their turn, stay awake for a whole round: one that falls asleep makes the pauses of all longer, and the others fall
asleep, too.

The word is only a hint: the doorbell (see `wire.ring`) alone decides what may be read, so nothing depends on how soon
another core sees it. Under load nobody looks: then a request is not alone, and the core has better things to do. Where
there is only one core to use, or a quota of less than two, looking would keep the parent from answering; it is off.

The same for the answer to a request of the model's own (BLS), while the main thread waits for it, and in the stub of
the model that was called. Then three take turns: two stubs, and the server between them. So each look offers its core
to the others, and on 2 cores the server finds one that is awake. A stub that waits for such an answer is not at work,
however many batches lie ready for it: of a model that calls others, or a chain of them, one request runs at a time, and
the instance that it asks is alone, although a queue of clients waits in front. So the server tells of each waiting
whether anybody else was at work, and the next one goes by that.

Costs: two looks at the clock, and at most LONGEST_NS of one core, per lone request of a client that asks at short
intervals. An idle server costs nothing, nor do clients that take their time. Measured on 2 cores, one connection, 16
floats: median latency 330 µs without, 220 µs with (and no difference at 16 connections); ensembles are in
docs/performance.md. After a large request nobody looks: its answer is not even read when the time is up, and the core
is needed to move it.
"""

from __future__ import annotations

import os
import time
from typing import Callable

# For how long a stub looks at least, if it looks
LEAST_NS = 300_000
# The longest pause that is worth looking through
LONGEST_NS = 1_000_000

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
    """Looks for announcements in word `counter` of the header page `words`, if word `alone` says that it may.

    `clock` is CLOCK_MONOTONIC in ns.
    """

    def __init__(
        self, words: memoryview, counter: int, alone: int, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._words = words
        self._counter = counter
        self._alone = alone
        self._clock = clock
        self._taken = 0
        self._worth_it = usable_cores() >= 2
        # How long the last pause was, and when the one that is under way began; 0 where there is none, or none measured
        self._pause_ns = 0
        self._since_ns = 0

    def look(self) -> None:
        """Returns when there is an announcement to take, or when it is time to sleep."""
        words = self._words
        if not self._worth_it or not words[self._alone]:
            self._since_ns = 0
            return
        clock = self._clock
        self._since_ns = since = clock()
        taken, counter, pause = self._taken, self._counter, self._pause_ns
        if words[counter] != taken or pause > LONGEST_NS:
            return
        deadline = since + min(max(2 * pause, LEAST_NS), LONGEST_NS)
        while words[counter] == taken and clock() < deadline:
            os.sched_yield()

    def took(self, records: int) -> None:
        """So many records have been taken."""
        self._taken += records
        if self._since_ns:
            self._pause_ns = self._clock() - self._since_ns
