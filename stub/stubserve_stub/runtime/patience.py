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

A look pays only while the core that it runs on has nothing better to do. On a machine with busy neighbours the kernel
puts a process aside that looks; it has used up its turn when the request comes, and is woken later than one that slept.
So looks that did not succeed are followed by pauses without one: by none after the first, for that may be a client
that has become slower, then by 2, 6, 14, 30 and at most 62. A look that succeeds ends this.

Nobody looks for a request of another model (BLS): there the caller, the server and the model that is called take turns,
and two of the three would look while the third one works. Measured beside neighbours, such a call took 1490 µs of
processor time where stubs looked and 700 where they slept, a chain of three 3200 and 1920, and both were answered
sooner; also with few neighbours nothing was won. Nor does a stub look after a batch whose model has called another:
what could be won is less than a tenth of what such a request takes.

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
