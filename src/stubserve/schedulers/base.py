"""What every scheduler is to its owner: the interface, and the answer that all of them give."""

from __future__ import annotations

import abc
from collections.abc import Sequence

from stubserve.errors import Code, ServeError
from stubserve.inference.request import Request, Response
from stubserve.inference.work import Decision, Instance, Work


class Scheduler(abc.ABC):
    """A scheduler of one model version.

    A request that `enqueue` took ends exactly once: in the work of a `Decision.run`, in `Decision.answer`, or in
    `drain`.

    What becomes of work is told in this order: `response_complete` for each request that has had its final response,
    `reschedule` for each that is to be executed again, `work_done` for the work, and then, if the instance may have
    more, `instance_idle`. Final responses of senders may come later, when the work is long done. An owner that loses an
    instance hears `instance_gone` and nothing further about its work.
    """

    # Whether `response_complete` and `work_done` are to be called: a scheduler without slots does without, and no
    # request pays for it.
    has_slots = False

    @abc.abstractmethod
    def enqueue(self, request: Request, now_ns: int) -> None:
        """Queues a request and sets its `queue_start_ns`. Raises ServeError if the queue does not take it."""

    def reschedule(self, request: Request, now_ns: int) -> bool:
        """Takes a request back that has just executed, to execute it again; False where the model has no such thing.

        The request then ends as after `enqueue`.
        """
        return False

    @abc.abstractmethod
    def cancel(self, request: Request) -> None:
        """Marks a request whose client is gone; if it is still queued the next `poll` answers it with CANCELLED."""

    def take_place(self, request: Request) -> None:  # noqa: B027  # for queues with limits
        """A request waits for the answer to an equal one: it counts for the queue's limits, and does not run.

        Raises ServeError as `enqueue`. It ends with `leave_place`, or as a request that is queued does.
        """

    def leave_place(self, request: Request) -> bool:
        """Such a request waits no more. False where it has ended already: its place went to another, or its client has
        gone."""
        return True

    def response_complete(self, request: Request, response: Response) -> None:  # noqa: B027  # for schedulers with slots
        """A request that ran has had its final response, which has not gone out yet: outputs may be taken from it."""

    def work_done(self, instance: Instance, work: Work) -> None:  # noqa: B027  # for schedulers with slots
        """An instance has executed this work: its slots are free, but for those of rescheduled requests."""

    @abc.abstractmethod
    def instance_idle(
        self, instance: Instance, works: int = 1, closed: int = 0, ripe_after_ns: int = 0, most: int = 0
    ) -> None:
        """An instance can be given so many more works: it is idle, or may have some ahead of time (see `depth`).

        Besides these it may have `closed` ones: work that no request which is still to come could join. Where
        `ripe_after_ns` is given that may be any work, so long after the instance was given `works`, or after the next
        poll if those are none. `most`, if it is not 0, is how many requests a work shall have where that is the
        scheduler's choice: with so many it is closed. What was said of the instance before counts no more.

        A scheduler that is not `plain` is told of one work and no closed ones, or of none at all: the instance is there
        and keeps its slots, but can be given nothing for now.
        """

    @abc.abstractmethod
    def instance_gone(self, instance: Instance) -> None:
        """An instance takes no more work, whether it was idle or busy."""

    @abc.abstractmethod
    def poll(self, now_ns: int) -> Decision:
        """What to do now."""

    @abc.abstractmethod
    def drain(self) -> Sequence[Request]:
        """Removes and returns everything that is queued, in service order; for when no instance is left."""

    @property
    @abc.abstractmethod
    def plain(self) -> bool:
        """Whether requests run as they came and never expire: then work may be formed a moment too early."""

    @property
    @abc.abstractmethod
    def queued(self) -> int:
        """Requests that wait, cancelled ones that no `poll` has answered yet among them."""


def cancellation(request: Request) -> ServeError:
    """The answer to a request that was cancelled while it waited. Upstream sends the same code with an empty text."""
    return ServeError(Code.CANCELLED, f"{request.id_prefix}Request was cancelled while it waited in the queue")
