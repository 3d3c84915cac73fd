"""What schedulers with a queue have in common: who waits, which instances are idle, who is gone."""

from __future__ import annotations

from collections import OrderedDict

from stubserve.inference.request import Request
from stubserve.schedulers.base import Instance, Scheduler
from stubserve.schedulers.fifo_queue import FifoQueue
from stubserve.schedulers.policy_queue import PolicyQueue


class QueueingScheduler(Scheduler):
    """A scheduler with one queue, served by whichever instance has been idle longest."""

    __slots__ = ("_cancelled", "_idle", "_queue")

    def __init__(self, queue: FifoQueue | PolicyQueue) -> None:
        self._queue = queue
        # Cancelled while they waited, or before; the next poll answers them
        self._cancelled: list[Request] = []
        # Used as an ordered set, the longest idle first
        self._idle: OrderedDict[Instance, None] = OrderedDict()

    def cancel(self, request: Request) -> None:
        request.cancelled = True
        if self._queue.remove(request):
            self._cancelled.append(request)

    def instance_idle(self, instance: Instance) -> None:
        self._idle[instance] = None

    def instance_gone(self, instance: Instance) -> None:
        self._idle.pop(instance, None)

    def drain(self) -> list[Request]:
        drained = self._queue.take(len(self._queue)) + self._cancelled
        self._cancelled.clear()
        return drained

    @property
    def queued(self) -> int:
        return len(self._queue) + len(self._cancelled)
