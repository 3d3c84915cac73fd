"""How much work an instance may have at a time: the batch that it executes, and the batches that lie ready for it.

Whether work is handed out ahead of time is decided here and nowhere else:

- never where the queue has rules (priorities, timeouts, slots): what is handed out early cannot be overtaken, nor
  expire;
- never past another instance, which might be idle sooner: only while a single one serves;
- of work that later requests could still join, one ahead, not more, and that only to an instance that is always quick.
  Where executing takes less time than telling parent and stub of each other, the stub would mostly wait. A slower model
  is better served with the larger batch that gathers while it executes, until that is *ripe*: shortly before the
  execution is over, going by how long the last two took;
- what is *closed*, because the requests behind it may not share its batch, would be the same batch later. Of that a
  quick instance may have so many that executing them takes about AHEAD_NS, and MOST_AHEAD at most. The stub is
  told of several at a time, and the parent reads several results at a time, so that requests which cannot be batched
  share what a wake-up costs. A slower one has one: the stub then goes from one batch to the next without waiting for
  the parent, which is busy with answers;
- a slower instance gets at most half of the requests that are there in one batch, where that costs hardly more (below):
  what waits and what executes, at most, in the last while. Such a half is closed, too;
- none to an instance whose executions take so long (SLOW_NS) that nobody would notice. What is handed out can neither
  be cancelled any more nor go to an instance that joins.

**What a half costs.** An instance that gets all requests in one batch
waits afterwards, until all their answers have been written, read by the clients, and followed by other requests. Of two
halves the one is executed while the other is on its way. That is worth it where the time of an execution grows with its
requests, as on processors it mostly does, and not where it is much the same for many as for few. So a line is laid
through the last executions (`Cost`): what each takes at all, and what one more request adds. Times differ for other
reasons, too, and where sizes hardly differ such a line says little. So halves are what is tried, and given up only
where the line leaves no doubt that they cost too much; after a while they are tried again, since batches that are
always of one size would teach nothing more.

Costs a dictionary lookup when work is handed out, and two when it is done.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Final

from stubserve.inference.work import Work

# Executions that take less time than this are quick, and an instance is once this many in a row have been.
QUICK_NS: Final = 200_000
QUICK_IN_A_ROW: Final = 32

# What lies ready for an instance takes about this long, each work with what the stub spends on it around the model
AHEAD_NS: Final = 1_000_000
AROUND_NS: Final = 20_000
MOST_AHEAD: Final = 8

# From here on an instance has nothing to gain
SLOW_NS: Final = 100_000_000
# What is left of an execution when the next batch is ripe: one part of so many. It has to be read and handed out, and
# what is left over is what requests may miss it by
RIPE_PARTS: Final = 8
# How soon it is forgotten that there were more requests at a time
FORGOTTEN: Final = 1 / 64

# Of the line through the last executions: the part that the last one has in it
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


class _Load:
    """What one instance has.

    `last_ns` is how long its last execution took, `before_ns` the one before that, and `slowest_ns` about how long the
    slowest of the last ones took. `requests` are those in its works, and `there` about as many as there were at most in
    the last while, those in the queue among them.
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
    """The works that each instance has. `early` says that the scheduler's rules let work be formed ahead of time."""

    def __init__(self, early: bool) -> None:
        self._early = early
        self._loads: dict[Hashable, _Load] = {}

    def join(self, instance: Hashable) -> None:
        """An instance serves from now on; it has nothing."""
        self._loads[instance] = _Load()

    def leave(self, instance: Hashable) -> None:
        """An instance gets no more work."""
        self._loads.pop(instance, None)

    def handed_out(self, instance: Hashable, work: Work, queued: int = 0) -> None:
        """An instance has got work, while so many wait. Raises KeyError if it does not serve."""
        load = self._loads[instance]
        load.works += 1
        load.requests += len(work.requests)
        load.there = max(load.requests + queued, load.there - load.there * FORGOTTEN)

    def handed_back(self, instance: Hashable, work: Work) -> None:
        """The work last handed out did not get there."""
        load = self._loads.get(instance)
        if load is not None:
            load.works -= 1
            load.requests -= len(work.requests)

    def done(self, instance: Hashable, work: Work) -> None:
        """An instance has executed work, whose times are set."""
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

        The third is how long after it has begun to execute what it has a closed one may be any, 0 for never. The fourth
        is how many requests a work shall have at most, 0 for as many as may be.
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
        """The instances that have nothing."""
        return [instance for instance, load in self._loads.items() if not load.works]

    def __len__(self) -> int:
        """How many instances serve."""
        return len(self._loads)
