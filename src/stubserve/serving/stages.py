"""The stages that a request passes at a model version, in one list that is made with the model.

    stage       where it is                              what it does with a request
    admission   `inference.call`, with the signature     checks it, before it comes here
    cache       `response_cache.stage.CacheStage`        answers it, or lets it wait for the answer to an equal one
    queue       `serving.dispatcher.Dispatcher`          has the scheduler say when it runs, and in which batch
    limiter     `rate_limiter.dispatcher`                is the queue where instances share resources
    instance    `instances.instance.Instance`            puts the batch into the ring of its stub

The list (`AnsweringModel.stages`) is in the order in which they are passed. Each stage knows the next one, and nothing
of the list changes later. Most models have the queue alone; an ensemble begins a run instead (`ensembles.model`).
What a stub reports of requests goes from `instances.work` to the queue, which passes answers on by the `Delivery`.
"""

# Compiled by mypyc.
from __future__ import annotations

import asyncio

from stubserve.inference.request import Request


class Stage:
    """One stage, up to the queue. Lives on the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._poll_is_due = False

    def enqueue(self, request: Request) -> None:
        """Takes a request that is to run; the next `poll` runs it. Raises ServeError, after counting the refusal."""
        raise NotImplementedError

    def take_place(self, request: Request) -> None:
        """Takes a request that waits for a step in front of this one, and does not run. Raises as `enqueue`."""
        raise NotImplementedError

    def leave_place(self, request: Request) -> bool:
        """Ends such a place (`Scheduler.leave_place`)."""
        raise NotImplementedError

    def poll(self) -> None:
        """Runs what can run now, and is not due any more. Raises nothing."""
        raise NotImplementedError

    def poll_soon(self) -> None:
        """Polls once for all requests of this turn of the event loop, so that they can share a batch."""
        if not self._poll_is_due:
            self._poll_is_due = True
            self._loop.call_soon(self.poll)

    def cancel(self, request: Request) -> None:
        """The client of a request is gone, and the request is marked as cancelled; it may be anywhere."""
        raise NotImplementedError

    def leader_of(self, request: Request) -> Request:
        """The running request that this one waits for, or this one itself."""
        return request
