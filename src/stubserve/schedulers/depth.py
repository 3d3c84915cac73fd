"""How much work an instance may have at a time: the batch that it executes, and the batches that wait for it.

This module alone decides whether work is handed out ahead of time:

- never if the queue has rules (priorities, timeouts, slots): work that is handed out early cannot be overtaken, nor
  expire;
- never while a second instance serves, which might be idle sooner;
- never to an instance that may have only so many open requests: a stream that begins may take its last place;
- work that later requests could still join: one ahead at most, and only to an instance that is always quick. There the
  messages between parent and stub take longer than the execution, and the stub would mostly wait. A slower model is
  better served with the larger batch that gathers while it executes, until that batch is *ripe*: shortly before the
  execution is over, judged by the last two executions;
- *closed* work, which the requests behind it cannot join: the same batch would be formed later. A quick instance may
  have closed work for about AHEAD_NS of execution, and MOST_AHEAD at most. Stub and parent then exchange several
  batches and results at a time, so that requests which cannot be batched share the cost of a wake-up. A slower instance
  has one: the stub then need not wait for the parent, which is busy with answers;
- a slower instance gets at most half of the requests in one batch, if that costs hardly more (below). "The requests"
  are the most that have lately been waiting or executing. Such a half is closed, too;
- nothing to an instance with executions so long (SLOW_NS) that the gain cannot be noticed. Work that is handed out can
  neither be cancelled nor go to an instance that joins.

**The cost of a half.** An instance that gets all requests in one batch waits afterwards, until all their answers have
been written, read by the clients, and followed by other requests. Of two halves one is executed while the other is on
its way. That is worth it if the time of an execution grows with its requests, as it mostly does on processors, and not
if the time is much the same for any number. So a line is laid through the last executions (`Cost`): the time of any
execution, and the time of one more request. Times also differ for other reasons, and a line says little if sizes hardly
differ. So halves are tried, and given up only if the line leaves no doubt that they cost too much. After a while they
are tried again, since batches of one size would teach nothing more.

Costs a dictionary lookup when work is handed out, and two when it is done.
"""

# Compiled by mypyc.
from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Final

from stubserve.inference.work import Work

# Shorter executions are quick. An instance is quick after this many quick executions in a row.
QUICK_NS: Final = 200_000
QUICK_IN_A_ROW: Final = 32

# The work that waits for an instance takes about this long, including the stub's own time for each work
AHEAD_NS: Final = 1_000_000
AROUND_NS: Final = 20_000
MOST_AHEAD: Final = 8

# An instance with longer executions gains nothing
SLOW_NS: Final = 100_000_000
# The next batch is ripe when 1 / RIPE_PARTS of the execution is left. The batch must be read and handed out in that
# time, and requests that come in the rest of the time miss it
RIPE_PARTS: Final = 8
# How fast the record of the most requests at a time is forgotten
FORGOTTEN: Final = 1 / 64

# The weight of the last execution in the line through the last executions
_PART: Final = 1 / 32
# "No doubt" is this many standard errors of the line's slope, as if the line went through the last 1 / _PART executions
_ERRORS: Final = 3
# Executions before the first judgement, and executions after which halves are tried again
FIRST: Final = 32
AGAIN: Final = 64
# Half of fewer requests is too little work for the cost of its messages
LEAST: Final = 8
NEVER: Final = 1 << 30
# The most that a second execution may cost for each request of both halves: less than parent and client need to send
# the next request, for which the instance would wait
_WAIT_NS: Final = 25_000
# And in all at most 1 / _OF_ALL of the time that the requests add: then halves are answered earlier on average, even if
# the instance would not have waited
_OF_ALL: Final = 2


class Cost:
    """The time of an instance's executions. `halves_from` is the number of requests from which halves are worth it."""

    def __init__(self, around_ns: int, least_ns: int) -> None:
        """`around_ns` is the time besides the execution itself, and `least_ns` the least time of a half."""
        self.halves_from = NEVER
        self._around_ns = around_ns
        self._least_ns = least_ns
        self._wait = FIRST
        self._requests = 0.0
        self._took_ns = 0.0
        self._spread = 0.0
        self._spread_ns = 0.0
        self._shared = 0.0

    def learn(self, requests: int, took_ns: int) -> None:
        """An execution of that many requests took `took_ns`."""
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


class _Load:
    """The work of one instance.

    `last_ns` and `before_ns` are the times of its last two executions, `slowest_ns` is about that of the slowest of the
    last ones. `requests` counts those in its works. `there` is about the most requests in its works and in the queue,
    lately.
    """

    def __init__(self) -> None:
        self.works = 0
        self.quick_in_a_row = 0
        self.slowest_ns = 0
        self.last_ns = 0
        self.before_ns = 0
        self.requests = 0
        self.there = 0.0
        self.cost = Cost(AROUND_NS, QUICK_NS)


class Depth:
    """The works that each instance has. `early`: the scheduler's rules let work be formed ahead of time."""

    def __init__(self, early: bool) -> None:
        self._early = early
        self._loads: dict[Hashable, _Load] = {}

    def join(self, instance: Hashable, streams: int = 0) -> None:
        """An instance serves, which may have so many open requests, 0 for any number."""
        self._early = self._early and not streams
        self._loads[instance] = _Load()

    def leave(self, instance: Hashable) -> None:
        self._loads.pop(instance, None)

    def handed_out(self, instance: Hashable, work: Work, queued: int = 0) -> None:
        """An instance has got work, while `queued` requests wait. Raises KeyError if it does not serve."""
        load = self._loads[instance]
        load.works += 1
        load.requests += len(work.requests)
        load.there = max(load.requests + queued, load.there - load.there * FORGOTTEN)

    def handed_back(self, instance: Hashable, work: Work) -> None:
        """The work last handed out did not reach the instance."""
        load = self._loads.get(instance)
        if load is not None:
            load.works -= 1
            load.requests -= len(work.requests)

    def done(self, instance: Hashable, work: Work) -> None:
        """An instance has executed work. The times of the work are set."""
        load = self._loads.get(instance)
        if load is None:
            return
        load.works -= 1
        load.requests -= len(work.requests)
        first = work.requests[0]
        took_ns = first.compute_infer_end_ns - first.compute_input_end_ns
        load.before_ns, load.last_ns = load.last_ns, took_ns
        load.quick_in_a_row = load.quick_in_a_row + 1 if took_ns < QUICK_NS else 0
        load.slowest_ns = max(took_ns, load.slowest_ns - (load.slowest_ns >> 5))
        if load.quick_in_a_row < QUICK_IN_A_ROW:
            load.cost.learn(len(work.requests), took_ns)

    def room(self, instance: Hashable) -> tuple[int, int, int, int]:
        """How many works an instance may have now, and how many closed ones besides; none if it does not serve.

        Third: how long after the start of its present work a closed work may be any work, 0 for never. Fourth: the most
        requests of a work, 0 for no limit.
        """
        load = self._loads.get(instance)
        if load is None:
            return 0, 0, 0, 0
        works = load.works
        if not self._early or len(self._loads) > 1:
            return (0, 0, 0, 0) if works else (1, 0, 0, 0)
        if load.quick_in_a_row >= QUICK_IN_A_ROW:
            open_ = 2 - works if works < 2 else 0
            ahead = min(MOST_AHEAD, AHEAD_NS // (load.slowest_ns + AROUND_NS))
            return open_, max(0, 1 + ahead - works - open_), 0, 0
        open_ = 0 if works else 1
        there = math.ceil(load.there)
        halved = there >= load.cost.halves_from and load.slowest_ns < SLOW_NS
        most = (there + 1) // 2 if halved else 0
        expected_ns = min(load.last_ns, load.before_ns)
        if works > 1 or not QUICK_NS <= expected_ns < SLOW_NS:
            return open_, 0, 0, most
        return open_, 1, expected_ns - expected_ns // RIPE_PARTS, most

    def works(self, instance: Hashable) -> int:
        """How many works an instance has; none if it does not serve."""
        load = self._loads.get(instance)
        return 0 if load is None else load.works

    def serves(self, instance: Hashable) -> bool:
        return instance in self._loads

    def idle(self) -> list[Hashable]:
        return [instance for instance, load in self._loads.items() if not load.works]

    def __len__(self) -> int:
        """How many instances serve."""
        return len(self._loads)
