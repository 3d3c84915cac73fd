"""A dispatcher whose instances may ask for resources (`schedulers.rate_limiter`).

An instance that asks for some is not said to be idle when it is: it is *parked*. When there are requests, its resources
are asked for; only when it has them the scheduler is told of it, and forms a batch of all that has come by then. If it
has none for it after all (its requests were cancelled, or wait for a batch to fill), the instance gives its resources
back and is parked again. So no model keeps resources for nothing, and a batch is never formed before it can run.

What was handed out keeps its resources until it has been executed, also when its instance is retired meanwhile; when
the stub dies they are free at once. Nothing is handed out ahead of time (`depth`): that would be beyond the limit.
Instances that ask for nothing are dispatched as ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Sequence

from stubserve.inference.work import Work
from stubserve.schedulers.base import Scheduler
from stubserve.schedulers.rate_limiter import Demand, Limited, RateLimiter
from stubserve.serving.alarm import Alarm
from stubserve.serving.dispatcher import Answers, Dispatcher, Executor


class LimitedDispatcher(Dispatcher):
    """A `Dispatcher` with a rate limiter. Lives on the event loop."""

    def __init__(
        self,
        model: str,
        scheduler: Scheduler,
        answers: Answers,
        limiter: RateLimiter,
        clock: Callable[[], int] = time.monotonic_ns,
        alarm: Callable[[Callable[[], None]], Alarm] = Alarm,
    ) -> None:
        super().__init__(model, scheduler, answers, clock, alarm)
        self._limiter = limiter
        # Instances that ask for resources
        self._limited: dict[Executor, Limited] = {}
        # Those that could execute something, by what they ask for, the longest idle first
        self._parked: dict[tuple[object, int], dict[Limited, None]] = {}
        # While it is being decided who executes what: whether to decide once more
        self._deciding = False
        self._decide_again = False

    # Who is limited

    def limit(self, instance: Executor, demands: Sequence[Demand], device: int, priority: int) -> None:
        """An instance asks for resources, which have been checked."""
        if any(count for _, _, count in demands):
            limited = self._limited[instance] = Limited(instance, self._let_in, priority)
            self._limiter.add(limited, demands, device)

    def forget(self, instance: Executor) -> None:
        """An instance is gone for good."""
        limited = self._limited.pop(instance, None)
        if limited is not None:
            self._unpark(limited)
            self._limiter.remove(limited)
            self._limiter.settle()

    def in_the_way(self, instance: Hashable) -> tuple[str, Sequence[Hashable]]:
        """The resource that an instance waits for, and the instances of which one has to give back first, if any."""
        limited = self._limited.get(instance)  # type: ignore[call-overload]  # instances are all that there is
        return ("", ()) if limited is None else self._limiter.in_the_way(limited)

    # Instances

    def leave(self, instance: Executor, finishing: bool = False) -> None:
        limited = self._limited.get(instance)
        executes = finishing and self._depth.works(instance) > 0
        super().leave(instance, finishing)
        if limited is not None:
            self._unpark(limited)
            if not executes:
                self._limiter.finish(limited)
                self._limiter.settle()

    def work_done(self, instance: Executor, works: Iterable[Work]) -> None:
        limited = self._limited.get(instance)
        if limited is None:
            super().work_done(instance, works)
            return
        serves = self._depth.serves(instance)
        try:
            for work in works:
                if self.has_slots:
                    self._scheduler.work_done(instance, work)
                self._depth.done(instance, work)
        except Exception:
            self._recover()
        if self._depth.works(instance):
            return
        self._limiter.finish(limited)
        if serves and instance.takes_work:
            self._park(limited)
        if self._deciding or not self._rests:
            self.poll()
        elif self._scheduler.queued:
            offered = self._acquire()
            if offered:
                self._decide(offered)
        self._limiter.settle()

    def close(self) -> None:
        super().close()
        for instance in list(self._limited):
            self.forget(instance)

    def _offer(self, instance: Executor, works: int = 1, closed: int = 0, ripe_after_ns: int = 0) -> None:
        limited = self._limited.get(instance)
        if limited is None:
            super()._offer(instance, works, closed, ripe_after_ns)
            return
        # It is there, with its slots if it has any, but cannot be given anything.
        self._scheduler.instance_idle(instance)
        self._scheduler.instance_idle(instance, 0)
        self._park(limited)

    # What to do now

    def poll(self) -> None:
        if self._deciding:
            self._decide_again = True
            return
        self._decide([])

    def _let_in(self, limited: Limited) -> None:
        """An instance that had to wait has its resources."""
        if self._deciding or limited not in self._parked.get((limited.line, limited.priority), ()):
            self._limiter.give_back(limited)
            self._decide_again = True
            return
        self._decide([limited])

    def _decide(self, offered: list[Limited]) -> None:
        """Runs what can run now; `offered` have their resources already."""
        self._deciding = True
        try:
            offered = offered or self._acquire()
            while True:
                self._decide_again = False
                for limited in offered:
                    self._scheduler.instance_idle(limited.instance)
                super().poll()
                if not self._taken(offered) and not self._decide_again:
                    return
                offered = self._acquire()
                if not offered and not self._decide_again:
                    return
        finally:
            self._deciding = False
            self._limiter.settle()

    def _acquire(self) -> list[Limited]:
        """Parked instances that have their resources now; the others wait for them."""
        if not self._scheduler.queued:
            return []
        acquire = self._limiter.acquire
        found = []
        for alike in self._parked.values():
            for limited in alike:
                if acquire(limited):
                    found.append(limited)
                if not self.has_slots:
                    break  # one is as good as the other; with slots each has requests of its own
        return found

    def _park(self, limited: Limited) -> None:
        self._parked.setdefault((limited.line, limited.priority), {})[limited] = None

    def _unpark(self, limited: Limited) -> None:
        kind = (limited.line, limited.priority)
        alike = self._parked.get(kind)
        if alike is not None:
            alike.pop(limited, None)
            if not alike:
                del self._parked[kind]

    def _taken(self, offered: Sequence[Limited]) -> bool:
        """Whether any has got work; those that have not give their resources back."""
        taken = False
        for limited in offered:
            if self._depth.works(limited.instance):
                self._unpark(limited)
                taken = True
            else:
                self._scheduler.instance_idle(limited.instance, 0)
                self._limiter.give_back(limited)
        return taken
