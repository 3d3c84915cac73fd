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
        # The longest idle first: how many works each may have, and how many closed ones besides
        self._idle: OrderedDict[Instance, tuple[int, int]] = OrderedDict()

    def cancel(self, request: Request) -> None:
        request.cancelled = True
        if self._queue.remove(request):
            self._cancelled.append(request)

    def take_place(self, request: Request) -> None:
        if isinstance(self._queue, PolicyQueue):
            self._queue.take_place(request)

    def leave_place(self, request: Request) -> bool:
        return not isinstance(self._queue, PolicyQueue) or self._queue.remove(request)

    def instance_idle(
        self, instance: Instance, works: int = 1, closed: int = 0, ripe_after_ns: int = 0, most: int = 0
    ) -> None:
        if works or closed:
            self._idle[instance] = (works, closed)
        else:
            self._idle.pop(instance, None)

    def instance_gone(self, instance: Instance) -> None:
        self._idle.pop(instance, None)

    def _take_room(self) -> Instance:
        """Gives the next work to the instance that has been idle longest."""
        instance, (works, closed) = self._idle.popitem(last=False)
        if works:
            works -= 1
        else:
            closed -= 1
        if works or closed:
            self._idle[instance] = (works, closed)
            self._idle.move_to_end(instance, last=False)
        return instance

    def drain(self) -> list[Request]:
        drained = self._queue.take(len(self._queue)) + self._cancelled
        self._cancelled.clear()
        if isinstance(self._queue, PolicyQueue):
            drained += self._queue.take_displaced()
        return drained

    @property
    def queued(self) -> int:
        return len(self._queue) + len(self._cancelled)
