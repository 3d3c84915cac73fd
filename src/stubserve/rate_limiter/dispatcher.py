"""A dispatcher whose instances may ask for resources (`rate_limiter.limiter`).

An idle instance that asks for resources is not reported as idle: it is *parked*. When there are requests, its resources
are acquired. Only then the scheduler is told of it, and forms a batch of all requests so far. If the scheduler has no
batch after all (requests were cancelled, or wait for a batch to fill), the instance gives its resources back and is
parked again. So no model keeps resources for nothing, and a batch is never formed before it can run.

Work that was handed out keeps its resources until it has been executed, also when its instance is retired meanwhile;
when the stub dies they are free at once. Instances without demands are dispatched as usual.

**Ahead of time.** While no other instance waits for its resources, an instance keeps them from one execution to the
next. It may then have work ahead of time (`depth`), each counted as an execution of its own. As soon as another waits,
it gets nothing more: open offers are withdrawn, and it gives its resources back after its present work. That is at most
a millisecond of work, because only quick instances get work ahead here: a slower one would keep the other waiting for
longer than it could gain.

**Circles.** A model that holds a resource while it waits for another model (BLS) may wait for one that needs the same
resource. Upstream both wait for ever. Here that is a circle like any other (`instances.deadlock`): the caller waits for
the called instance, and that one for an instance that holds the missing resource.

The search assumes that one of the holders is enough. If two of them would have to go on, a circle may be missed; no
request is refused that could run.
"""

# Compiled by mypyc.
from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from stubserve.inference.request import Request
from stubserve.inference.served_model import BlockingCall, Waiter
from stubserve.inference.work import Work
from stubserve.instances.instance import Instance
from stubserve.instances.work import Results
from stubserve.rate_limiter.limiter import Limited, RateLimiter
from stubserve.schedulers.base import Scheduler
from stubserve.serving.alarm import Alarm
from stubserve.serving.delivery import Delivery
from stubserve.serving.dispatcher import Dispatcher


class ResourceWait:
    """The `Waiter` of an instance that lacks a resource: it waits for the `holders` of that resource."""

    request: Request | None = None

    def __init__(self, waiter: Waiter, resource: str, holders: Sequence[Waiter]) -> None:
        self.name = f"{waiter.name} (which needs the resource '{resource}')"
        self._waiter = waiter
        self._holders = holders

    def has(self, request: Request) -> bool:
        return self._waiter.has(request)

    def waits_for(self) -> Sequence[BlockingCall]:
        return (self,)

    @property
    def model(self) -> ResourceWait:
        return self

    def waiters_for(self, request: Request | None) -> Sequence[Waiter]:
        return self._holders


class LimitedDispatcher(Dispatcher):
    """A `Dispatcher` with a rate limiter. Lives on the event loop."""

    def __init__(
        self,
        limiter: RateLimiter,
        model: str,
        scheduler: Scheduler,
        delivery: Delivery,
        clock: Callable[[], int] = time.monotonic_ns,
        alarm: Callable[[Callable[[], None]], Alarm] = Alarm,
        when_none_serves: Callable[[], None] = lambda: None,
        at_stub: Callable[[Request], bool] = lambda _: False,
        quarantine_s: float = 0.0,
    ) -> None:
        super().__init__(model, scheduler, delivery, clock, alarm, when_none_serves, at_stub, quarantine_s)
        self._limiter = limiter
        self._limited: dict[Instance, Limited] = {}
        # Instances that could execute work, by their demands, the longest idle first
        self._parked: dict[tuple[object, int], dict[Limited, None]] = {}
        # The instance that holds its resources and may get more work
        self._ahead: Limited | None = None
        # Instances that get no more work, and how much they still have
        self._finishing: dict[Limited, int] = {}
        # During a decision: whether to decide once more
        self._deciding = False
        self._decide_again = False

    # The instances that are limited

    def limit(self, instance: Instance) -> None:
        spec = instance.spec
        if any(count for _, _, count in spec.resources):
            limited = self._limited[instance] = Limited(instance, self._let_in, spec.priority)
            self._limiter.add(limited, spec.resources, spec.device_id)

    def forget(self, instance: Instance) -> None:
        limited = self._limited.pop(instance, None)
        if limited is not None:
            if self._ahead is limited:
                self._ahead = None
            self._finishing.pop(limited, None)
            self._unpark(limited)
            self._limiter.remove(limited)
            self._limiter.start_waiting()

    def waiter_of(self, instance: Instance) -> Waiter | None:
        """If the instance lacks a resource, the `Waiter` waits for the holders of that resource."""
        waiter, limited = instance.waiter, self._limited.get(instance)
        if waiter is None or limited is None:
            return waiter
        resource, holders = self._limiter.blockers(limited)
        waiters = [holder.waiter for holder in holders if isinstance(holder, Instance)]
        held_by = [one for one in waiters if one is not None]
        if not held_by or len(held_by) < len(waiters):
            return waiter
        return ResourceWait(waiter, resource, held_by)

    # Instances

    def leave(self, instance: Instance, finishing: bool = False) -> None:
        limited = self._limited.get(instance)
        works = self._depth.works(instance) if finishing else 0
        super().leave(instance, finishing)
        if limited is not None:
            if self._ahead is limited:
                self._ahead = None
            self._unpark(limited)
            if works:
                self._finishing[limited] = works
            elif not finishing or limited not in self._finishing:
                self._finishing.pop(limited, None)
                self._limiter.finish(limited)
                self._limiter.start_waiting()

    def work_done(self, instance: Instance, results: Results) -> None:
        limited = self._limited.get(instance)
        if limited is None:
            super().work_done(instance, results)
            return
        serves = self._depth.serves(instance)
        done = 0
        try:
            for work, _ in results:
                done += 1
                if self.has_slots:
                    self._scheduler.work_done(instance, work)
                self._depth.done(instance, work)
        except Exception:
            self._recover()
        if self._depth.works(instance):
            if serves and instance.takes_work and self._limiter.may_go_on(limited):
                self._say_room(limited)
                if self._deciding or not self._rests or self._scheduler.queued:
                    self.poll()
            return
        if self._finishing:
            left = self._finishing.pop(limited, done) - done
            if left > 0:
                self._finishing[limited] = left
                return
        if self._ahead is limited:
            self._withdraw()
        self._limiter.finish(limited)
        if serves and instance.takes_work:
            self._park(limited)
        if self._deciding or not self._rests:
            self.poll()
        elif self._scheduler.queued:
            offered = self._acquire()
            if offered:
                self._decide(offered)
        self._limiter.start_waiting()

    def close(self) -> None:
        super().close()
        for instance in list(self._limited):
            self.forget(instance)

    def _offer(
        self, instance: Instance, works: int = 1, closed: int = 0, ripe_after_ns: int = 0, most: int = 0
    ) -> None:
        limited = self._limited.get(instance)
        if limited is None:
            super()._offer(instance, works, closed, ripe_after_ns, most)
            return
        if self._depth.works(instance):  # it has refused the work that it was given ahead of time
            self._say_room(limited)
            return
        # The instance is there, with its slots if it has any, but cannot be given work.
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
        """An instance that waited has its resources."""
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
                if self._ahead is not None and not self._limiter.may_go_on(self._ahead):
                    self._withdraw()
                for limited in offered:
                    self._say_room(limited)
                super().poll()
                if not self._taken(offered) and not self._decide_again:
                    return
                offered = self._acquire()
                if not offered and not self._decide_again:
                    return
        finally:
            self._deciding = False
            self._limiter.start_waiting()

    def _acquire(self) -> list[Limited]:
        """Parked instances that have got their resources now; the others wait for them."""
        if not self._scheduler.queued:
            return []
        acquire = self._limiter.acquire
        found = []
        for alike in self._parked.values():
            for limited in alike:
                if acquire(limited):
                    found.append(limited)
                if not self.has_slots:
                    break  # one is as good as another; with slots each has requests of its own
        return found

    def _hand_out(self, run: Sequence[tuple[Instance, Work]], now_ns: int) -> None:
        for instance, _ in run:
            limited = self._limited.get(instance)
            if limited is not None:
                self._limiter.runs(limited)
        super()._hand_out(run, now_ns)

    def _say_room(self, limited: Limited) -> None:
        """Tells the scheduler how much work an instance that holds its resources may get."""
        instance = limited.instance
        works, closed, ripe_after_ns, _ = self._depth.room(instance)
        if ripe_after_ns or not self._limiter.may_go_on(limited):
            works, closed = (0 if self._depth.works(instance) else 1), 0
        elif works + closed > 1 or not works:
            self._ahead = limited
        self._scheduler.instance_idle(instance, works, closed)

    def _withdraw(self) -> None:
        """Withdraws the offers ahead of time that have not been taken."""
        assert self._ahead is not None
        self._scheduler.instance_idle(self._ahead.instance, 0)
        self._ahead = None

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
        """Whether any instance has got work; the others give their resources back."""
        taken = False
        for limited in offered:
            if self._depth.works(limited.instance):
                self._unpark(limited)
                taken = True
            else:
                if self._ahead is limited:
                    self._ahead = None
                self._scheduler.instance_idle(limited.instance, 0)
                self._limiter.give_back(limited)
        return taken
