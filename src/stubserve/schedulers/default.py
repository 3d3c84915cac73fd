"""The scheduler of models without `dynamic_batching`: every request runs alone, first come first served."""

from __future__ import annotations

from stubserve.inference.request import Request
from stubserve.inference.work import Work
from stubserve.schedulers.base import Decision
from stubserve.schedulers.fifo_queue import FifoQueue, cancellation
from stubserve.schedulers.policy_queue import PolicyQueue, PriorityLevels
from stubserve.schedulers.queueing import QueueingScheduler


class DefaultScheduler(QueueingScheduler):
    """Runs one request at a time, so all work is closed.

    As upstream: nothing is batched even where max_batch_size would allow it, no timeout, and no limit but the one that
    is the server's (`--max-queue-size`; 0 for none).
    """

    __slots__ = ("_bounded",)

    def __init__(self, max_queue_size: int = 0) -> None:
        self._bounded: PolicyQueue | None = None
        if max_queue_size:
            self._bounded = PolicyQueue(PriorityLevels().bounded(max_queue_size))
        super().__init__(FifoQueue() if self._bounded is None else self._bounded)

    def enqueue(self, request: Request, now_ns: int) -> None:
        """As the interface. Raises ServeError UNAVAILABLE if the queue is full."""
        request.queue_start_ns = now_ns
        if request.cancelled:
            self._cancelled.append(request)
        else:
            self._queue.push(request)

    def poll(self, now_ns: int) -> Decision:
        decision = Decision()
        if self._cancelled:
            decision.answer = [(request, cancellation(request)) for request in self._cancelled]
            self._cancelled.clear()
        if self._bounded is not None:
            decision.answer += self._bounded.expire(now_ns)
        idle, queue = self._idle, self._queue
        while idle and queue:
            decision.run.append((self._take_room(), Work(queue.take(1))))
        return decision

    @property
    def plain(self) -> bool:
        return True
