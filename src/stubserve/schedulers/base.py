"""What every scheduler speaks: the decision it returns, and its interface."""

from __future__ import annotations

import abc
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from stubserve.errors import ServeError
from stubserve.inference.request import Request

# A scheduler only compares instances; what they are is their owner's business.
Instance = Hashable


@dataclass(slots=True)
class Decision:
    """What to do now.

    `run`: batches to hand to instances, in this order; each instance appears at most once and is busy until the owner
    reports it idle again. `answer`: requests that end here with this error (expired, cancelled). `wake_at_ns`: poll
    again at this time at the latest, None if only an event can change anything.
    """

    run: list[tuple[Instance, list[Request]]] = field(default_factory=list)
    answer: list[tuple[Request, ServeError]] = field(default_factory=list)
    wake_at_ns: int | None = None


class Scheduler(abc.ABC):
    """A scheduler of one model version.

    A request that `enqueue` took ends exactly once: in a batch of `Decision.run`, in `Decision.answer`, or in `drain`.
    """

    __slots__ = ()

    @abc.abstractmethod
    def enqueue(self, request: Request, now_ns: int) -> None:
        """Queues a request and sets its `queue_start_ns`. Raises ServeError if the queue does not take it."""

    def reschedule(self, request: Request, now_ns: int) -> bool:
        """Takes a request back that has just executed, to execute it again; False where the model has no such thing.

        To be called before the instance is reported idle. The request then ends as after `enqueue`.
        """
        return False

    @abc.abstractmethod
    def cancel(self, request: Request) -> None:
        """Marks a request whose client is gone; if it is still queued the next `poll` answers it with CANCELLED."""

    @abc.abstractmethod
    def instance_idle(self, instance: Instance) -> None:
        """An instance is ready for a batch."""

    @abc.abstractmethod
    def instance_gone(self, instance: Instance) -> None:
        """An instance takes no more batches, whether it was idle or busy."""

    @abc.abstractmethod
    def poll(self, now_ns: int) -> Decision:
        """What to do now."""

    @abc.abstractmethod
    def drain(self) -> Sequence[Request]:
        """Removes and returns everything that is queued, in service order; for when no instance is left."""

    @property
    @abc.abstractmethod
    def plain(self) -> bool:
        """Whether requests run as they came and never expire: then a batch may be formed a moment too early."""

    @property
    @abc.abstractmethod
    def queued(self) -> int:
        """Requests that wait, cancelled ones that no `poll` has answered yet among them."""
