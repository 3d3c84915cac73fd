"""The rate limiter: instances that ask for resources run when these are free, and take turns by priority.

Resources are names with a count, on each device or shared by all (`global`). An instance holds the resources of its
configuration while it executes. It gives them back then, when its stub dies, and when it is unloaded.
`--rate-limit-resource` sets the amount of a resource; without the flag it is the most that any instance asks for. So
without flags instances that ask for the same resource run one at a time.

The order. An instance of priority n (0 is 1) gets 1/n of the executions of one with priority 1, as long as both have
work. Each has a *tag*: its executions so far, times its priority. The one whose tag will be lowest after the execution
goes first; among equals the one with the better priority, and then the one that has waited longest. So of priorities 1
and 2 the first has two executions before the other has one. An instance that had no work, or is new, begins at the tag
of the last one that was let in, so it starts level with the others. Upstream compares numbers of executions since the
start: there a model that is loaded a day later runs alone until it has caught up.

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

# Compiled by mypyc.
from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from operator import itemgetter

from stubserve.errors import invalid

# Name, whether all devices share it, how much
Demand = tuple[str, bool, int]
# The name of a resource, and its device; None for a resource that all devices share
Key = tuple[str, "int | None"]

IDLE, WAITING, HOLDING = range(3)


class Resource:
    """One resource: on one device, or shared. `free` is below zero if more is given out than there is now."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.total = 0
        self.free = 0
        # The instances that ask for it, each with its amount
        self.askers: dict[Limited, int] = {}
        # The lines that wait for the resource, and how many instances are in them
        self.lines: list[Line] = []
        self.waiting = 0
        # The tag of the instance that was let in last
        self.tag = 0


class Line:
    """Instances that wait for the same, the next first: (tag after it, priority, number, instance). Some have left."""

    def __init__(self, needs: tuple[tuple[Resource, int], ...]) -> None:
        self.needs = needs
        self.heap: list[tuple[int, int, int, Limited]] = []


class Limited:
    """An instance that asks for resources. `let_in` is called when it gets resources that it had to wait for."""

    def __init__(self, instance: Hashable, let_in: Callable[[Limited], None], priority: int) -> None:
        self.instance = instance
        self.let_in = let_in
        self.priority = priority or 1
        self.needs: tuple[tuple[Resource, int], ...] = ()
        self.line: Line | None = None
        self.state = IDLE
        # What it has had, and the tag at which its present run began
        self.tag = 0
        self.since = 0
        # Whether the instance has begun to execute since it got its resources
        self.ran = False
        # The place of the instance in its line
        self.number = 0

    @property
    def holds(self) -> bool:
        return self.state == HOLDING


class RateLimiter:
    """All resources of a server. `given` are the amounts that the operator set, by (name, device or None for all).

    The caller of an instance that has its resources (`acquire` was true, or it was let in) calls `runs` for each work,
    and `finish` after the execution, or `give_back` if there was nothing to execute; then `start_waiting`.
    """

    def __init__(self, given: Mapping[Key, int] | None = None) -> None:
        self._given = dict(given or {})
        self._resources: dict[Key, Resource] = {}
        self._lines: dict[tuple[tuple[Resource, int], ...], Line] = {}
        self._number = 0
        # Resources that may have become free, and whether an instance is being let in at the moment
        self._touched: dict[Resource, None] = {}
        self._starting = False

    # Loading and unloading

    def check(self, demands: Iterable[tuple[Sequence[Demand], int]]) -> None:
        """Raises ServeError INVALID_ARG if an instance, given as (demands, device), could never run."""
        asked: dict[Key, int] = {key: max(resource.askers.values()) for key, resource in self._resources.items()}
        for wanted, at in demands:
            for name, shared, count in wanted:
                if count:
                    key = (name, None if shared else at)
                    asked[key] = max(count, asked.get(key, 0))
        shared_names = {name for name, device in asked if device is None}
        for (name, device), count in asked.items():
            limit = self._limit(name, device)
            if limit is not None and limit < count:
                raise invalid(
                    f'Resource count for "{name}" is limited to {limit} which will prevent scheduling of one or more '
                    f"model instances, the minimum required count is {count}"
                )
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
            resource = self._resources.get(key)
            if resource is None:
                resource = self._resources[key] = Resource(key)
            resource.askers[limited] = count
            self._resize(resource)
            found.append((resource, count))
        limited.needs = tuple(sorted(found, key=lambda need: repr(need[0].key)))
        line = self._lines.get(limited.needs)
        if line is None:
            line = self._lines[limited.needs] = Line(limited.needs)
            for resource, _ in limited.needs:
                resource.lines.append(line)
        limited.line = line
        limited.tag = max([resource.tag for resource, _ in limited.needs], default=0)

    def remove(self, limited: Limited) -> None:
        """An instance is gone; its resources are free."""
        if limited.line is None:
            return
        self.finish(limited)
        limited.line = None
        needs, limited.needs = limited.needs, ()
        for resource, _ in needs:
            del resource.askers[limited]
            if resource.askers:
                self._resize(resource)
        gone = [resource for resource, _ in needs if not resource.askers]
        for resource in gone:
            del self._resources[resource.key]
            self._touched.pop(resource, None)
        if gone:
            for key, line in list(self._lines.items()):
                if any(resource in gone for resource, _ in key):
                    del self._lines[key]
                    for resource, _ in key:
                        resource.lines.remove(line)

    # Executing

    def acquire(self, limited: Limited) -> bool:
        """Whether an instance with work has its resources now; if not, it is let in later."""
        if limited.state:
            return False
        tag = limited.tag
        free = first = True
        for resource, count in limited.needs:
            if resource.tag > tag:
                tag = resource.tag
            if resource.free < count:
                free = False
            if resource.waiting:
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
        heapq.heappush(line.heap, (tag + limited.priority, limited.priority, self._number, limited))
        for resource, _ in limited.needs:
            resource.waiting += 1
            if free:  # it may go before the waiting ones
                self._touched[resource] = None
        return False

    def may_go_on(self, limited: Limited) -> bool:
        """Whether an instance has its resources and no other waits for any of them."""
        if limited.state != HOLDING:
            return False
        return all(not resource.waiting and resource.free >= 0 for resource, _ in limited.needs)

    def runs(self, limited: Limited) -> None:
        """An instance that has its resources is given work; the first time, the work for which it got them."""
        if not limited.ran:
            limited.ran = True
            return
        tag = limited.tag
        for resource, _ in limited.needs:
            if resource.tag > tag:
                tag = resource.tag
        self._count(limited, tag)

    def finish(self, limited: Limited) -> None:
        """An instance has executed, or no longer waits."""
        state, limited.state = limited.state, IDLE
        if state == IDLE:
            return
        for resource, count in limited.needs:
            if state == HOLDING:
                resource.free += count
            else:
                resource.waiting -= 1
            if resource.waiting:
                self._touched[resource] = None

    def give_back(self, limited: Limited) -> None:
        """An instance had nothing to execute, so nothing is counted."""
        if limited.state == HOLDING and not limited.ran:
            limited.tag = limited.since
        self.finish(limited)

    def start_waiting(self) -> None:
        """Starts all instances that wait and can run now."""
        if self._starting:
            return
        self._starting = True
        try:
            while self._touched:
                limited = self._next()
                if limited is not None:
                    limited.let_in(limited)
        finally:
            self._starting = False

    def blockers(self, limited: Limited) -> tuple[str, list[Hashable]]:
        """The first resource that an instance lacks, and the instances that hold some of it; empty if it lacks none.

        At least one of these has to give back. Looks at all instances that ask for the resource.
        """
        if not limited.holds:
            for resource, count in limited.needs:
                if resource.free < count:
                    return resource.key[0], [other.instance for other in resource.askers if other.holds]
        return "", []

    @property
    def usage(self) -> dict[Key, tuple[int, int]]:
        """By resource: how much is held, and how much there is."""
        return {key: (resource.total - resource.free, resource.total) for key, resource in self._resources.items()}

    def _take(self, limited: Limited) -> None:
        limited.state = HOLDING
        limited.ran = False
        for resource, count in limited.needs:
            resource.free -= count
        self._count(limited, limited.since)

    @staticmethod
    def _count(limited: Limited, tag: int) -> None:
        """Counts an execution of an instance, from a tag on."""
        limited.since = tag
        limited.tag = tag + limited.priority
        for resource, _ in limited.needs:
            resource.tag = tag

    def _next(self) -> Limited | None:
        """The next instance to let in; None if there is none, and then nothing is left to check."""
        for resource in list(self._touched):
            if resource.free <= 0 or not resource.waiting:
                del self._touched[resource]
        if not self._touched:
            return None
        lines = {line: None for resource in self._touched for line in resource.lines}
        # Instances that wait for another of these resources are only asked which resources they keep from the others.
        around = {line: None for one in lines for resource, _ in one.needs for line in resource.lines}
        heads = [head for line in around if (head := self._head(line)) is not None]
        if len(heads) > 1:
            heads.sort(key=itemgetter(0, 1, 2))
        kept: set[Resource] = set()
        for _, _, _, limited in heads:
            line = limited.line
            assert line is not None
            goes = line in lines
            for resource, count in limited.needs:
                if resource.free < count or resource in kept:
                    goes = False
            if goes:
                heapq.heappop(line.heap)
                for resource, _ in limited.needs:
                    resource.waiting -= 1
                    # Resources that it kept from those behind it, and does not need itself, are free for them.
                    self._touched[resource] = None
                self._take(limited)
                return limited
            kept.update([resource for resource, _ in limited.needs])
        self._touched.clear()
        return None

    def _head(self, line: Line) -> tuple[int, int, int, Limited] | None:
        heap = line.heap
        while heap:
            _, _, number, limited = heap[0]
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

    def _resize(self, resource: Resource) -> None:
        limit = self._limit(*resource.key)
        total = max(resource.askers.values()) if limit is None else limit
        resource.free += total - resource.total
        if total > resource.total and resource.waiting:
            self._touched[resource] = None
        resource.total = total
