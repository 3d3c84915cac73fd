"""The interface of every scheduler to its owner, and the answer that all of them give."""

# Compiled by mypyc.
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

    The owner reports the end of work in this order: `response_complete` for each request that has had its final
    response, `reschedule` for each that is to be executed again, `work_done` for the work, and then, if the instance
    may have more, `instance_idle`. Final responses of senders may come later, when the work is long done. After the
    loss of an instance the owner calls `instance_gone`, and reports nothing further about its work.
    """

    # Whether the owner calls `response_complete` and `work_done`: requests of a scheduler without slots save these
    # calls.
    has_slots = False

    @abc.abstractmethod
    def enqueue(self, request: Request, now_ns: int) -> None:
        """Queues a request and sets its `queue_start_ns`. Raises ServeError if the queue does not take it."""

    def reschedule(self, request: Request, now_ns: int) -> bool:
        """Takes back a request that has just executed, to execute it again; False if the model has no rescheduling.

        The request then ends as after `enqueue`.
        """
        return False

    def set_apart(self, request: Request) -> None:  # noqa: B027  # for schedulers that form batches
        """A request, before it is queued, is to share no batch. Sequences do not allow that: each has its place."""

    @abc.abstractmethod
    def cancel(self, request: Request) -> None:
        """Marks a request of a client that is gone. If it is queued, the next `poll` answers it with CANCELLED."""

    def take_place(self, request: Request) -> None:  # noqa: B027  # for queues with limits
        """A request waits for the cache, or for the answer to an equal one: it counts for limits, and does not run.

        Raises ServeError as `enqueue`. The place ends with `leave_place`, or as a queued request does.
        """

    def leave_place(self, request: Request) -> bool:
        """Ends such a place. False if it has ended already: it went to another request, or the client has gone."""
        return True

    def response_complete(self, request: Request, response: Response) -> None:  # noqa: B027  # for schedulers with slots
        """The final response of a request that ran, before it goes out: the scheduler may take outputs from it."""

    def work_done(self, instance: Instance, work: Work) -> None:  # noqa: B027  # for schedulers with slots
        """An instance has executed this work: its slots are free, except those of rescheduled requests."""

    @abc.abstractmethod
    def instance_idle(
        self, instance: Instance, works: int = 1, closed: int = 0, ripe_after_ns: int = 0, most: int = 0
    ) -> None:
        """An instance can be given `works` more works: it is idle, or may have some ahead of time (see `depth`).

        Besides, it may have `closed` works, which no future request could join. `ripe_after_ns` turns these into any
        work, that long after the instance was given `works`, or after the next poll if `works` is 0. `most`, if not 0,
        is how many requests a work shall have if the scheduler may choose: a work of that size is closed. Each call
        replaces the one before.

        A scheduler that is not `plain` gets one work and no closed ones, or none at all: then the instance keeps its
        slots, but can be given nothing for now.
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
        """Whether requests run in the order of arrival and never expire: then work may be formed a moment too early."""

    @property
    @abc.abstractmethod
    def queued(self) -> int:
        """Requests that wait, including cancelled ones that no `poll` has answered yet."""


def cancellation(request: Request) -> ServeError:
    """The answer to a request that was cancelled while it waited. Upstream sends the same code with an empty text."""
    return ServeError(Code.CANCELLED, f"{request.id_prefix}Request was cancelled while it waited in the queue")
