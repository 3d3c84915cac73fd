"""The dynamic batcher: requests that arrive close together run together.

A batch is formed at the moment an instance can take it (see `depth`), so it holds all that has arrived by then. The
number of requests, from the front of the queue and never skipping one, is upstream's (sizes are sums of
`Request.batch_size`):

1. Add up requests until the queue ends, the sum would exceed max_batch_size, or a request may not share the batch
   (see `Grouping` in `inference.work`). The last sum on the way that is a preferred size is the *best*. If there is
   none by the time the sum would exceed the largest preferred size, the sum before that counts as best.
2. While no request has waited for max_queue_delay, and always if that is 0, send the best if there is one.
3. Else send everything added up if something other than the queue's end stopped it, if it has reached the largest
   preferred size, or if the delay is over or 0.
4. Else wait for more, until the delay is over.

So with a delay of 0 nothing ever waits while an instance is idle. An overdue queue goes out in batches up to
max_batch_size whatever the preferred sizes. A request larger than every preferred size runs alone.

With no delay, and no preferred size but the largest, an instance that serves alone may want batches with fewer requests
than are queued (see `depth`). Such a batch counts as stopped by something other than the queue's end.

One difference from Triton 2.51 is on purpose. With a delay and preferred sizes Triton goes on filling a batch that it
has already handed over, and sends one request more than preferred: 5 for `preferred_batch_size: [4]`. Here it is 4.

Costs. With neither priorities nor queue policies, a request is touched once on the way in and about once on the way
out. A batch that waits for its delay is not looked through again until it may have become complete: a queue of n
requests costs O(1) per poll, not O(n). With priorities or policies each poll looks at the requests of at most one
batch per idle instance.
"""

# Compiled by mypyc.
from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Collection
from itertools import islice

from stubserve.inference.request import Request
from stubserve.inference.work import Decision, Grouping, Instance, Work
from stubserve.schedulers.base import Scheduler, cancellation
from stubserve.schedulers.delay import SchedulerDelay
from stubserve.schedulers.policy_queue import PolicyQueue, PriorityLevels


class DynamicBatcher(Scheduler):
    """Runs requests in batches, on whichever instance has been idle longest.

    `max_batch_size` 0 or 1 makes batches of one request. No preferred size means [max_batch_size]. `hold_until` keeps
    all requests back until that many wait, once (`schedulers.delay`).
    """

    def __init__(
        self,
        max_batch_size: int,
        preferred_batch_sizes: Collection[int] = (),
        max_queue_delay_us: int = 0,
        grouping: Grouping | None = None,
        priorities: PriorityLevels | None = None,
        hold_until: int = 0,
    ) -> None:
        # The waiting requests of a queue without rules, as an ordered set. Leaving from the middle costs no more than
        # from the front. In a dict, deleted entries would make every look at the front slower.
        self._waiting: OrderedDict[Request, None] = OrderedDict()
        self._policies = None if priorities is None or priorities.plain else PolicyQueue(priorities)
        self._queue: OrderedDict[Request, None] | PolicyQueue = self._waiting
        if self._policies is not None:
            self._queue = self._policies
        # Cancelled before or while they waited; the next poll answers them
        self._cancelled: list[Request] = []
        # The longest idle first: how many works each may have, and how many closed works besides
        self._idle: OrderedDict[Instance, tuple[int, int]] = OrderedDict()
        self._max_batch_size = max(1, max_batch_size)
        self._preferred = frozenset(preferred_batch_sizes) - {0} or frozenset([self._max_batch_size])
        self._preferred_ascending = sorted(self._preferred)
        self._max_preferred = self._preferred_ascending[-1]
        self._delay_ns = max_queue_delay_us * 1000
        self._grouping = None if grouping is None or grouping.trivial or self._max_batch_size == 1 else grouping
        self._hold = SchedulerDelay(hold_until) if hold_until else None
        # Whether the configuration leaves the number of requests in a batch open, and the number that the instance then
        # wants; 0 for no limit
        self._any_size = not max_queue_delay_us and self._preferred == {self._max_batch_size}
        self._most = 0
        # While the whole queue waits for more (until_ns is not 0): its size, the size at which the queue must be
        # checked again before its time is over, if any, and the key that all of it shares
        self._quiet_until_ns = 0
        self._quiet_size = 0
        self._quiet_until_size = 0
        self._quiet_key: dict[str, object] | None = None
        # Whether no later request could have joined the last batch that was looked for
        self._closed = False
        # For an instance that may have closed work: after what time, and at what time, the work may be any; 0 for
        # never, and for not known yet
        self._ripe_after_ns = 0
        self._ripe_at_ns = 0

    def enqueue(self, request: Request, now_ns: int) -> None:
        """As the interface. Raises ServeError UNAVAILABLE if the queue of the request's priority is full."""
        request.queue_start_ns = now_ns
        if request.cancelled:
            self._cancelled.append(request)
            return
        if self._policies is None:
            self._waiting[request] = None
        else:
            self._policies.push(request)
        if self._quiet_until_ns:
            self._quiet_size += request.batch_size or 1
            if self._quiet_size >= self._quiet_until_size or (
                self._grouping is not None and self._grouping.key(request) != self._quiet_key
            ):
                self._quiet_until_ns = 0

    def set_apart(self, request: Request) -> None:
        if self._max_batch_size > 1:
            self._grouping = self._grouping or Grouping()
            request.grouping_key = {"": object()}  # equal to no other

    def instance_idle(
        self, instance: Instance, works: int = 1, closed: int = 0, ripe_after_ns: int = 0, most: int = 0
    ) -> None:
        if works or closed:
            self._idle[instance] = (works, closed)
        else:
            self._idle.pop(instance, None)
        # Only an instance that serves alone is offered closed work and halves.
        self._ripe_after_ns = ripe_after_ns
        self._ripe_at_ns = 0
        self._most = most if self._any_size else 0

    def instance_gone(self, instance: Instance) -> None:
        self._idle.pop(instance, None)

    def cancel(self, request: Request) -> None:
        request.cancelled = True
        if self._policies is not None:
            if not self._policies.remove(request):
                return
        elif request in self._waiting:
            del self._waiting[request]
        else:
            return
        self._cancelled.append(request)
        self._quiet_until_ns = 0

    def take_place(self, request: Request) -> None:
        if self._policies is not None:
            self._policies.take_place(request)

    def leave_place(self, request: Request) -> bool:
        return self._policies is None or self._policies.remove(request)

    def poll(self, now_ns: int) -> Decision:
        decision = Decision()
        if self._cancelled:
            decision.answer = [(request, cancellation(request)) for request in self._cancelled]
            self._cancelled.clear()
        policies, queue, idle = self._policies, self._queue, self._idle
        if policies is not None:
            decision.answer += policies.expire(now_ns)
            self._quiet_until_ns = 0
        if self._ripe_after_ns and not self._ripe_at_ns and idle and not next(iter(idle.values()))[0]:
            # The instance has been executing since it was offered.
            self._ripe_at_ns = now_ns + self._ripe_after_ns
        if self._hold is not None and not self._hold.holds(len(queue), 0, now_ns):
            self._hold = None
        while idle and queue and self._hold is None:
            instance, (works, closed) = next(iter(idle.items()))
            closed_only = not works
            if closed_only and self._ripe_at_ns:
                closed_only = now_ns < self._ripe_at_ns
            if closed_only and not self._may_be_closed():
                decision.wake_at_ns = self._ripe_at_ns or None
                break
            count = 0 if self._quiet_until_ns > now_ns else self._count_of_next_batch(now_ns)
            if not count:
                decision.wake_at_ns = self._quiet_until_ns
                break
            if closed_only and not self._closed:
                decision.wake_at_ns = self._ripe_at_ns or None
                break
            if policies is not None:
                requests = policies.take(count)
            else:
                requests = list(islice(self._waiting, count))
                if count == len(self._waiting):
                    self._waiting.clear()
                else:
                    for request in requests:
                        del self._waiting[request]
            decision.run.append((instance, Work(requests)))
            if works:
                works -= 1
            else:
                closed -= 1
            if works or closed:
                idle[instance] = (works, closed)
            else:
                del idle[instance]
            if self._ripe_after_ns:
                self._ripe_at_ns = now_ns + self._ripe_after_ns
        if self._hold is not None:
            decision.wake_by(self._hold.until_ns)
        if policies is not None:
            decision.wake_by(policies.next_deadline_ns())
        return decision

    def drain(self) -> list[Request]:
        self._quiet_until_ns = 0
        drained = self._cancelled
        self._cancelled = []
        if self._policies is not None:
            return self._policies.take(len(self._policies)) + drained + self._policies.take_displaced()
        drained = [*self._waiting, *drained]
        self._waiting.clear()
        return drained

    @property
    def queued(self) -> int:
        return len(self._queue) + len(self._cancelled)

    @property
    def plain(self) -> bool:
        return self._policies is None or self._policies.priorities.in_order

    def _may_be_closed(self) -> bool:
        """Whether to look for a closed batch at the front of a queue that is not empty.

        If requests must be compared, the look costs more than it gains while all requests are alike.
        """
        waiting, grouping = self._waiting, self._grouping
        if self._policies is not None or len(waiting) >= self._max_preferred or 0 < self._most <= len(waiting):
            return True
        first = next(iter(waiting))
        if grouping is None:
            return first.batch_size > 1
        return len(waiting) > 1 and grouping.key(first) != grouping.key(next(reversed(waiting)))

    def _count_of_next_batch(self, now_ns: int) -> int:
        """How many requests of a queue that is not empty run now; 0 if they wait until `_quiet_until_ns`.

        Sets `_closed` unless a future request could change that number.
        """
        if self._max_batch_size == self._max_preferred == 1:
            self._closed = True
            return 1
        delay_ns, grouping, key = self._delay_ns, self._grouping, None
        count = total = best = 0
        oldest_ns = now_ns
        stopped = False
        for request in self._queue:
            size = request.batch_size or 1
            if count:
                if count == self._most:
                    break
                if total + size > self._max_preferred:
                    best = best or count
                    if not delay_ns:
                        stopped = True  # nothing that follows could change the decision
                        break
                if total + size > self._max_batch_size or (grouping is not None and grouping.key(request) != key):
                    stopped = True
                    break
            elif grouping is not None:
                key = grouping.key(request)
            count += 1
            total += size
            if total in self._preferred:
                best = count
            if request.queue_start_ns < oldest_ns:
                oldest_ns = request.queue_start_ns
        self._quiet_until_ns = 0
        self._closed = stopped or total >= self._max_batch_size or count == self._most
        overdue = delay_ns != 0 and now_ns - oldest_ns >= delay_ns
        if best and not overdue:
            return best
        if stopped or total >= self._max_preferred or overdue or not delay_ns:
            return count
        self._quiet_until_ns = oldest_ns + delay_ns
        self._quiet_size = total
        self._quiet_until_size = self._preferred_ascending[bisect_right(self._preferred_ascending, total)]
        self._quiet_key = key
        return 0
