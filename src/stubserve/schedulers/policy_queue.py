"""The queue of models with priorities, timeouts or limits: `dynamic_batching { default_queue_policy ... }`.

A level holds the requests of one priority in two first-in-first-out lines: those within their timeout, and those that
ran out of it under the action DELAY. Level 1 is served first. In a level the delayed requests come last, in the order
in which their times ran out.

Guarantees:
- A request is in at most one line. A pushed request is taken, removed, or returned by `expire`, exactly once.
- `push`, `remove` and `take` cost O(1) per request, whatever the size of the queue. Deadlines are in a heap: adding one
  that is not earlier than all others (the case without overrides) takes one comparison, and `next_deadline_ns` looks at
  the top.
- A request that does not run for now, because it waits for the cache or for the answer to an equal request, has a
  place beside the lines (`take_place`): it counts for the limit and for shares as if it were in line.
- The heap does not keep a served request alive for long. Dead entries stay in it, as a heap gives up only its top
  cheaply, but it is rebuilt as soon as more than half of it is dead (amortised O(1) as well).

Upstream looks for expired requests only when it happens to walk the queue, and at least every 500 ms. Here the
deadline is part of `Decision.wake_at_ns`, so an expired request is answered when it expires.
"""

# Compiled by mypyc.
from __future__ import annotations

import heapq
import itertools
from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stubserve.errors import ServeError, overloaded, unavailable
from stubserve.inference.request import Request
from stubserve.schedulers.fair_shares import FairShares

FULL = "Exceeds maximum queue size"
GAVE_WAY = "Exceeds maximum queue size: the place went to a client that has fewer requests waiting (--fair-queues)"

# A heap smaller than this is not worth rebuilding.
_SMALL_HEAP = 64


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """One `ModelQueuePolicy`; 0 stands for no timeout and no limit.

    With `allow_timeout_override` a request's own timeout counts if it is shorter than the default. Without a default
    it has no effect (checked with Triton 2.51).
    """

    delay_expired: bool = False
    default_timeout_us: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0

    @classmethod
    def from_config(cls, policy: Any) -> QueuePolicy:
        return cls(
            policy.timeout_action == policy.DELAY,
            policy.default_timeout_microseconds,
            policy.allow_timeout_override,
            policy.max_queue_size,
        )


@dataclass(frozen=True, slots=True)
class PriorityLevels:
    """How many priority levels there are, 1 the highest, and the policy of each.

    With `count` 0 everything waits in the single level 0. `policies` names the levels that differ from `policy`.
    """

    count: int = 0
    default: int = 0
    policy: QueuePolicy = field(default_factory=QueuePolicy)
    policies: Mapping[int, QueuePolicy] = field(default_factory=dict)

    @classmethod
    def from_config(cls, batching: Any) -> PriorityLevels:
        return cls(
            batching.priority_levels,
            batching.default_priority_level,
            QueuePolicy.from_config(batching.default_queue_policy),
            {level: QueuePolicy.from_config(policy) for level, policy in batching.priority_queue_policy.items()},
        )

    def level_of(self, priority: int) -> int:
        """The level a request of that priority waits in; an unknown priority, or none (0), means the default level."""
        return priority if 1 <= priority <= self.count else self.default

    def policy_of(self, level: int) -> QueuePolicy:
        return self.policies.get(level, self.policy)

    def bounded(self, max_queue_size: int) -> PriorityLevels:
        """These levels, with this limit for the levels without a limit."""

        def limited(policy: QueuePolicy) -> QueuePolicy:
            return policy if policy.max_queue_size else replace(policy, max_queue_size=max_queue_size)

        policies = {level: limited(policy) for level, policy in self.policies.items()}
        return replace(self, policy=limited(self.policy), policies=policies)

    @property
    def in_order(self) -> bool:
        """Whether requests leave in the order of their arrival, and none for its age. Limits are allowed."""
        policies = (self.policy, *self.policies.values())
        return self.count <= 1 and not any(policy.default_timeout_us for policy in policies)

    @property
    def plain(self) -> bool:
        """Whether requests leave in the order of their arrival, without a limit: then no such queue is needed."""
        nothing = QueuePolicy()
        return self.count <= 1 and self.policy == nothing and all(p == nothing for p in self.policies.values())


class _Level:
    """The requests of one priority."""

    def __init__(self, number: int, policy: QueuePolicy) -> None:
        self.number = number
        self.policy = policy
        # Each request with the deadline that it still has, 0 for none
        self.unexpired: OrderedDict[Request, int] = OrderedDict()
        self.delayed: OrderedDict[Request, int] = OrderedDict()
        # Requests that have a place and are in no line
        self.beside: dict[Request, None] = {}
        # The shares of the clients, from when the level is full until it is half empty
        self.shares: FairShares | None = None

    def has_left(self, request: Request) -> None:
        if self.shares is not None:
            self.shares.remove(request)
            if len(self) <= self.policy.max_queue_size // 2:
                self.shares = None

    def __len__(self) -> int:
        return len(self.unexpired) + len(self.delayed) + len(self.beside)

    def __lt__(self, other: _Level) -> bool:
        return self.number < other.number


class PolicyQueue:
    """The requests that wait under policies. Iteration is in service order and must not overlap with a change."""

    def __init__(self, priorities: PriorityLevels) -> None:
        self.priorities = priorities
        # Levels come into being with their first request: priority_levels may be any 64-bit number.
        self._levels: dict[int, _Level] = {}
        self._order: list[_Level] = []
        self._size = 0
        # (deadline, serial, request, level); the serial keeps requests from being compared
        self._deadlines: list[tuple[int, int, Request, _Level]] = []
        self._live_deadlines = 0
        self._serial = itertools.count()
        # Requests that had to give way, until `expire` returns them
        self._displaced: list[Request] = []

    def push(self, request: Request) -> None:
        """Queues a request as of its `queue_start_ns`. Raises ServeError UNAVAILABLE if its level is full."""
        level = self._level_with_room(request)
        policy = level.policy
        timeout_us = policy.default_timeout_us
        if policy.allow_timeout_override and 0 < request.options.timeout_us < timeout_us:
            timeout_us = request.options.timeout_us
        deadline_ns = 0
        if timeout_us:
            deadline_ns = request.queue_start_ns + timeout_us * 1000
            heapq.heappush(self._deadlines, (deadline_ns, next(self._serial), request, level))
            self._live_deadlines += 1
        level.unexpired[request] = deadline_ns
        if level.shares is not None:
            level.shares.add(request)
        self._size += 1

    def take_place(self, request: Request) -> None:
        """Gives a request a place in which it is not served. Raises ServeError UNAVAILABLE if its level is full."""
        level = self._level_with_room(request)
        level.beside[request] = None
        if level.shares is not None:
            level.shares.add(request)

    def remove(self, request: Request) -> bool:
        """Removes a request from a line or from its place beside the lines; False if it has none."""
        level = self._levels.get(self.priorities.level_of(request.options.priority))
        if level is None:
            return False
        if request in level.beside:
            del level.beside[request]
        elif request in level.unexpired:
            self._forget_deadline(level.unexpired.pop(request))
            self._size -= 1
        elif request in level.delayed:
            del level.delayed[request]
            self._size -= 1
        else:
            return False
        level.has_left(request)
        return True

    def take(self, count: int) -> list[Request]:
        taken: list[Request] = []
        for level in self._order:
            for line in (level.unexpired, level.delayed):
                while line and len(taken) < count:
                    request, deadline_ns = line.popitem(last=False)
                    self._forget_deadline(deadline_ns)
                    taken.append(request)
                    level.has_left(request)
            if len(taken) == count:
                break
        self._size -= len(taken)
        return taken

    def expire(self, now_ns: int) -> list[tuple[Request, ServeError]]:
        """Moves expired requests behind their level, or removes and returns them, as the level's policy demands.

        Also returns the requests that had to give way.
        """
        rejected = [(request, overloaded(request.id_prefix + GAVE_WAY)) for request in self.take_displaced()]
        heap = self._deadlines
        while heap and heap[0][0] <= now_ns:
            deadline_ns, _, request, level = heapq.heappop(heap)
            if level.unexpired.get(request) != deadline_ns:
                continue  # the request left long ago
            del level.unexpired[request]
            self._live_deadlines -= 1
            if level.policy.delay_expired:
                level.delayed[request] = 0
            else:
                self._size -= 1
                level.has_left(request)
                rejected.append((request, unavailable("Request timeout expired")))
        return rejected

    def take_displaced(self) -> list[Request]:
        """Removes and returns the requests that had to give way, in place of `expire`."""
        displaced, self._displaced = self._displaced, []
        return displaced

    def next_deadline_ns(self) -> int | None:
        """The earliest time at which `expire` has work."""
        heap = self._deadlines
        while heap and heap[0][3].unexpired.get(heap[0][2]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def __iter__(self) -> Iterator[Request]:
        for level in self._order:
            yield from level.unexpired
            yield from level.delayed

    def __len__(self) -> int:
        return self._size

    def _level_with_room(self, newcomer: Request) -> _Level:
        """The level in which a request is to get a place. Raises ServeError UNAVAILABLE if there is none."""
        level = self._level(newcomer)
        limit = level.policy.max_queue_size
        if limit and len(level) >= limit:
            self._make_room(level, newcomer)
        return level

    def _make_room(self, level: _Level, newcomer: Request) -> None:
        """Removes a request from a full level. Raises ServeError if that is the newcomer."""
        gives_way: Request | None = None
        if newcomer.client is not None:
            if level.shares is None:
                level.shares = FairShares([*level.unexpired, *level.delayed, *level.beside])
            gives_way = level.shares.gives_way(newcomer)
        if gives_way is None:
            raise overloaded(newcomer.id_prefix + FULL)
        self.remove(gives_way)
        self._displaced.append(gives_way)

    def _level(self, request: Request) -> _Level:
        number = self.priorities.level_of(request.options.priority)
        level = self._levels.get(number)
        if level is None:
            level = self._levels[number] = _Level(number, self.priorities.policy_of(number))
            insort(self._order, level)
        return level

    def _forget_deadline(self, deadline_ns: int) -> None:
        """Counts a deadline of a request that is gone, and removes such entries once they are the majority."""
        if not deadline_ns:
            return
        self._live_deadlines -= 1
        heap = self._deadlines
        if len(heap) > _SMALL_HEAP and len(heap) > 2 * self._live_deadlines:
            self._deadlines = [entry for entry in heap if entry[3].unexpired.get(entry[2]) == entry[0]]
            heapq.heapify(self._deadlines)
