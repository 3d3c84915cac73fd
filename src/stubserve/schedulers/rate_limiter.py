"""The rate limiter: instances that ask for resources run when these are free, and take turns by priority.

Resources are names with a count, on each device or shared by all (`global`). An instance holds the resources of its
configuration while it executes. It gives them back then, when its stub dies, and when it is unloaded.
`--rate-limit-resource` sets the amount of a resource; without the flag it is the most that any instance asks for. So
without flags instances that ask for the same resource run one at a time.

The order. An instance of priority n (0 is 1) gets 1/n of the executions of one with priority 1, as long as both have
work. Each has a *tag*: its executions so far, times its priority. The lowest tag goes first, and among equals the
instance that has waited longest. An instance that had no work, or is new, begins at the tag of the last one that was
let in, so it starts level with the others. Upstream compares numbers of executions since the start: there a model that
is loaded a day later runs alone until it has caught up.

Guarantees:

- no instance starves: while its resources are not all free, it keeps those that it waits for from all behind it;
- no instance waits for a resource that it does not need: instances without resources never come here, and those with
  others are served in the meantime. Upstream tries only the first of all that wait;
- a resource is never given out beyond its amount. If the amount falls, because a model was unloaded, running instances
  keep their resources.

An instance that is never without work for long may hold its resources for several executions, as long as no other waits
for any of them (`may_go_on`). Each execution counts (`runs`), as if it had given them back in between.

Costs. If no instance waits, a request takes and gives back counts of its resources. Waiting instances stand in *lines*,
one for each set of needs, which are heaps by tag. To find the next costs O(log n) in the length of its line, and is
repeated only for lines that share the resources that have become free.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping, Sequence

from stubserve.errors import ServeError, invalid
from stubserve.schedulers.resources import HOLDING, IDLE, WAITING, Demand, Limited, Line, Pool

# Modes, as the flag spells them
OFF, EXECUTION_COUNT = "off", "execution_count"


class RateLimiter:
    """All resources of a server. `given` are the amounts that the operator set, by (name, device or None for all).

    The caller of an instance that has its resources (`acquire` was true, or it was let in) calls `runs` for each work,
    and `finish` after the execution, or `give_back` if there was nothing to execute; then `settle`.
    """

    def __init__(self, given: Mapping[tuple[str, int | None], int] | None = None) -> None:
        self._given = dict(given or {})
        self._pools: dict[tuple[str, int | None], Pool] = {}
        self._lines: dict[tuple[tuple[Pool, int], ...], Line] = {}
        self._number = 0
        # Resources that may have become free, and whether an instance is being let in at the moment
        self._touched: dict[Pool, None] = {}
        self._settling = False

    # Loading and unloading

    def check(self, demands: Iterable[tuple[Sequence[Demand], int]]) -> None:
        """Raises ServeError INVALID_ARG if an instance, given as (demands, device), could never run."""
        asked: dict[tuple[str, int | None], int] = {key: max(pool.askers.values()) for key, pool in self._pools.items()}
        for wanted, at in demands:
            for name, shared, count in wanted:
                if count:
                    key = (name, None if shared else at)
                    asked[key] = max(count, asked.get(key, 0))
        shared_names = {name for name, device in asked if device is None}
        for (name, device), count in asked.items():
            limit = self._limit(name, device)
            if limit is not None and limit < count:
                raise _too_little(name, limit, count)
        for name, device in asked:
            if device is not None and name in shared_names:
                raise invalid(
                    f'Resource "{name}" is present as both global and device-specific resource in the model '
                    "configuration."
                )

    def add(self, limited: Limited, demands: Sequence[Demand], device: int) -> None:
        """An instance joins. Its demands have been checked."""
        # As upstream, the last of two demands for the same resource counts.
        needs = {(name, None if shared else device): count for name, shared, count in demands}
        found = []
        for key, count in needs.items():
            if not count:
                continue
            pool = self._pools.get(key)
            if pool is None:
                pool = self._pools[key] = Pool(key)
            pool.askers[limited] = count
            self._resize(pool)
            found.append((pool, count))
        limited.needs = tuple(sorted(found, key=lambda need: repr(need[0].key)))
        line = self._lines.get(limited.needs)
        if line is None:
            line = self._lines[limited.needs] = Line(limited.needs)
            for pool, _ in limited.needs:
                pool.lines.append(line)
        limited.line = line
        limited.tag = max([pool.tag for pool, _ in limited.needs], default=0)

    def remove(self, limited: Limited) -> None:
        """An instance is gone; its resources are free."""
        if limited.line is None:
            return
        self.finish(limited)
        limited.line = None
        needs, limited.needs = limited.needs, ()
        for pool, _ in needs:
            del pool.askers[limited]
            if pool.askers:
                self._resize(pool)
        gone = [pool for pool, _ in needs if not pool.askers]
        for pool in gone:
            del self._pools[pool.key]
            self._touched.pop(pool, None)
        if gone:
            for key, line in list(self._lines.items()):
                if any(pool in gone for pool, _ in key):
                    del self._lines[key]
                    for pool, _ in key:
                        pool.lines.remove(line)

    # Executing

    def acquire(self, limited: Limited) -> bool:
        """Whether an instance with work has its resources now; if not, it is let in later."""
        if limited.state:
            return False
        tag = limited.tag
        free = first = True
        for pool, count in limited.needs:
            if pool.tag > tag:
                tag = pool.tag
            if pool.free < count:
                free = False
            if pool.waiting:
                first = False
        limited.since = tag
        if free and first:
            self._take(limited)
            return True
        line = limited.line
        if line is None:
            return False
        limited.state = WAITING
        self._number += 1
        limited.number = self._number
        heapq.heappush(line.heap, (tag, self._number, limited))
        for pool, _ in limited.needs:
            pool.waiting += 1
            if free:  # it may go before the waiting ones
                self._touched[pool] = None
        return False

    def may_go_on(self, limited: Limited) -> bool:
        """Whether an instance has its resources and no other waits for any of them."""
        if limited.state != HOLDING:
            return False
        return all(not pool.waiting and pool.free >= 0 for pool, _ in limited.needs)

    def runs(self, limited: Limited) -> None:
        """An instance that has its resources is given work; the first time, the work for which it got them."""
        if not limited.ran:
            limited.ran = True
            return
        tag = limited.tag
        for pool, _ in limited.needs:
            if pool.tag > tag:
                tag = pool.tag
        self._count(limited, tag)

    def finish(self, limited: Limited) -> None:
        """An instance has executed, or no longer waits."""
        state, limited.state = limited.state, IDLE
        if state == IDLE:
            return
        for pool, count in limited.needs:
            if state == HOLDING:
                pool.free += count
            else:
                pool.waiting -= 1
            if pool.waiting:
                self._touched[pool] = None

    def give_back(self, limited: Limited) -> None:
        """An instance had nothing to execute, so nothing is counted."""
        if limited.state == HOLDING and not limited.ran:
            limited.tag = limited.since
        self.finish(limited)

    def settle(self) -> None:
        """Lets in all instances that can run now."""
        if self._settling:
            return
        self._settling = True
        try:
            while self._touched:
                limited = self._next()
                if limited is not None:
                    limited.let_in(limited)
        finally:
            self._settling = False

    def in_the_way(self, limited: Limited) -> tuple[str, list[Hashable]]:
        """The first resource that an instance lacks, and the instances that hold some of it; empty if it lacks none.

        At least one of these has to give back. Looks at all instances that ask for the resource.
        """
        if not limited.holds:
            for pool, count in limited.needs:
                if pool.free < count:
                    return pool.key[0], [other.instance for other in pool.askers if other.holds]
        return "", []

    @property
    def usage(self) -> dict[tuple[str, int | None], tuple[int, int]]:
        """By resource: how much is held, and how much there is."""
        return {key: (pool.total - pool.free, pool.total) for key, pool in self._pools.items()}

    def _take(self, limited: Limited) -> None:
        limited.state = HOLDING
        limited.ran = False
        for pool, count in limited.needs:
            pool.free -= count
        self._count(limited, limited.since)

    @staticmethod
    def _count(limited: Limited, tag: int) -> None:
        """Counts an execution of an instance, from a tag on."""
        limited.since = tag
        limited.tag = tag + limited.priority
        for pool, _ in limited.needs:
            pool.tag = tag

    def _next(self) -> Limited | None:
        """The next instance to let in; None if there is none, and then nothing is left to check."""
        for pool in list(self._touched):
            if pool.free <= 0 or not pool.waiting:
                del self._touched[pool]
        if not self._touched:
            return None
        lines = {line: None for pool in self._touched for line in pool.lines}
        # Instances that wait for another of these resources are only asked which resources they keep from the others.
        around = {line: None for one in lines for pool, _ in one.needs for line in pool.lines}
        heads = [head for line in around if (head := self._head(line)) is not None]
        if len(heads) > 1:
            heads.sort(key=_place)
        kept: set[Pool] = set()
        for _, _, limited in heads:
            line = limited.line
            assert line is not None
            goes = line in lines
            for pool, count in limited.needs:
                if pool.free < count or pool in kept:
                    goes = False
            if goes:
                heapq.heappop(line.heap)
                for pool, _ in limited.needs:
                    pool.waiting -= 1
                    # Resources that it kept from those behind it, and does not need itself, are free for them.
                    self._touched[pool] = None
                self._take(limited)
                return limited
            kept.update([pool for pool, _ in limited.needs])
        self._touched.clear()
        return None

    def _head(self, line: Line) -> tuple[int, int, Limited] | None:
        heap = line.heap
        while heap:
            _, number, limited = heap[0]
            if limited.state == WAITING and limited.number == number:
                return heap[0]
            heapq.heappop(heap)
        return None

    def _limit(self, name: str, device: int | None) -> int | None:
        """The operator's amount, 0 for a resource without one; None if the operator has set no amounts at all."""
        given = self._given
        if not given:
            return None
        if device is None:
            # For a resource that all devices share, the device does not matter.
            return max((count for (one, _), count in given.items() if one == name), default=0)
        return given.get((name, device), given.get((name, None), 0))

    def _resize(self, pool: Pool) -> None:
        limit = self._limit(*pool.key)
        total = max(pool.askers.values()) if limit is None else limit
        pool.free += total - pool.total
        if total > pool.total and pool.waiting:
            self._touched[pool] = None
        pool.total = total


def create_limiter(mode: str, given: Iterable[tuple[str, int, int | None]]) -> RateLimiter | None:
    """The limiter for the operator's mode, with (name, count, device or None for all) of resources."""
    if mode == OFF:
        return None
    return RateLimiter({(name, device): count for name, count, device in given})


def _place(head: tuple[int, int, Limited]) -> tuple[int, int]:
    return head[0], head[1]


def _too_little(name: str, limit: int, count: int) -> ServeError:
    return invalid(
        f'Resource count for "{name}" is limited to {limit} which will prevent scheduling of one or more model '
        f"instances, the minimum required count is {count}"
    )
