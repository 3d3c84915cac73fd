"""The scheduler of models without `dynamic_batching`: every request runs alone, first come first served."""

from __future__ import annotations

from collections import OrderedDict

from stubserve.inference.request import Request
from stubserve.schedulers.base import Decision, Instance, Scheduler
from stubserve.schedulers.fifo_queue import FifoQueue, cancellation


class DefaultScheduler(Scheduler):
    """Hands one request at a time to whichever instance has been idle longest.

    As upstream: nothing is batched even where max_batch_size would allow it, no limit, no timeout.
    """

    __slots__ = ("_cancelled", "_idle", "_queue")

    def __init__(self) -> None:
        self._queue = FifoQueue()
        self._cancelled: list[Request] = []
        # Used as an ordered set, the longest idle first
        self._idle: OrderedDict[Instance, None] = OrderedDict()

    def enqueue(self, request: Request, now_ns: int) -> None:
        request.queue_start_ns = now_ns
        if request.cancelled:
            self._cancelled.append(request)
        else:
            self._queue.push(request)

    def cancel(self, request: Request) -> None:
        request.cancelled = True
        if self._queue.remove(request):
            self._cancelled.append(request)

    def instance_idle(self, instance: Instance) -> None:
        self._idle[instance] = None

    def instance_gone(self, instance: Instance) -> None:
        self._idle.pop(instance, None)

    def poll(self, now_ns: int) -> Decision:
        decision = Decision()
        if self._cancelled:
            decision.answer = [(request, cancellation(request)) for request in self._cancelled]
            self._cancelled.clear()
        idle, queue = self._idle, self._queue
        while idle and queue:
            decision.run.append((idle.popitem(last=False)[0], queue.take(1)))
        return decision

    def drain(self) -> list[Request]:
        drained = self._cancelled + self._queue.take(len(self._queue))
        self._cancelled.clear()
        return drained

    @property
    def plain(self) -> bool:
        return True

    @property
    def queued(self) -> int:
        return len(self._queue) + len(self._cancelled)
