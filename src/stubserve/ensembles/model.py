"""One loaded version of an ensemble: a `ServedModel` that has no instances, only members.

A request is admitted as for any model, and becomes a run (`ensembles.run`) with the next poll. The run finds the
members in the registry when it begins, and keeps them from being taken down until it is over. So a request meets one
version of each member, and a reload of a member costs no request. The ensemble remembers the members it was loaded with
(`members`), so that model control sees when it must be loaded again.

An ensemble is ready when all its members are; it is down when one of them is missing, or is down.

Statistics are upstream's: a request waits in no queue of the ensemble, its compute times are the sums of its steps'
times, and it counts as one execution, of its own batch size.
"""

# Compiled by mypyc.
from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from stubserve.ensembles.backpressure import Gate
from stubserve.ensembles.plan import EnsemblePlan, Step
from stubserve.ensembles.run import EnsembleRun
from stubserve.ensembles.steps import Prospect
from stubserve.errors import ServeError, unavailable
from stubserve.inference.request import OTHER_FAILURE, REJECTED, SUCCESS, Request, Response
from stubserve.inference.served_model import BlockingCall, InstanceFacts, ModelFinder, ServedModel, Waiter
from stubserve.inference.statistics import ModelStatistics
from stubserve.instances.deadlock import FutureWaiter
from stubserve.schedulers.policy_queue import PolicyQueue, PriorityLevels
from stubserve.serving.answering import AnsweringModel, StageMaker
from stubserve.serving.delivery import Delivery
from stubserve.serving.stages import Stage

log = logging.getLogger("stubserve.model")


class EnsembleModel(AnsweringModel):
    """A `ServedModel` of members. Lives on the event loop.

    `members` are the models that its configuration was checked against, by (name, version as `find` takes it).
    `max_queue_size` is the server's limit for waiting requests: the followers of others, since runs begin at once.
    """

    def __init__(
        self,
        name: str,
        version: int,
        config: Any,
        models: ModelFinder,
        members: Mapping[tuple[str, str], ServedModel],
        clock: Callable[[], int] = time.monotonic_ns,
        max_queue_size: int = 0,
        front: Sequence[StageMaker] = (),
    ) -> None:
        super().__init__(name, version, config, clock)
        self.members = members
        self.plan = EnsemblePlan(config)
        limit = config.ensemble_scheduling.max_inflight_requests
        self.gates: Mapping[Step, Gate] = {step: Gate(limit) for step in self.plan.steps} if limit else {}
        self._models = models
        self.entangled = _entangled(self.plan, members)
        self._keys = [(step.model, "" if step.version == -1 else str(step.version)) for step in self.plan.steps]
        self.statistics = ModelStatistics()
        self.delivery = Delivery(self.signature, self.statistics)
        self._runs = _Runs(self, max_queue_size)
        self._coming = FutureWaiter(name, self._coming_calls)
        self._lay(front, self._runs)

    @property
    def queued(self) -> int:
        """Requests that have not begun; waiting steps count with their own models."""
        return len(self._runs.waiting)

    # Calls from the runs

    def member(self, step: Step) -> ServedModel:
        """The model of a step. Raises ServeError."""
        return self._models.find(*self._keys[step.index])

    def find_members(self, steps: Sequence[Step]) -> tuple[dict[int, ServedModel], bool]:
        """The models of steps, by step index, and whether the ensemble's identity is made of other models.

        Raises ServeError. An ensemble has an identity only if a shared cache keeps its answers.
        """
        found = {step.index: self.member(step) for step in steps}
        if not self.identity:
            return found, False
        return found, any(self.members.get(self._keys[index]) is not model for index, model in found.items())

    def respond(self, request: Request, response: Response) -> None:
        self.delivery.respond(request, response)

    def succeeded(self, run: EnsembleRun) -> None:
        request = run.request
        del self._runs.under_way[request]
        now = self.clock()
        request.outcome = SUCCESS
        try:
            request.compute_end_ns = now
            self.statistics.record_batch((request,), took_ns=(run.input_ns, run.infer_ns, run.output_ns))
            # For an outer ensemble, and for summaries: times that differ by these durations.
            request.compute_infer_end_ns = now - run.output_ns
            request.compute_input_end_ns = request.compute_infer_end_ns - run.infer_ns
            request.compute_start_ns = request.compute_input_end_ns - run.input_ns
            if self.latencies is not None:
                self.latencies.on_batch((request,))
        except Exception:
            log.exception("a request to ensemble '%s' could not be counted", self.name)

    def failed(self, run: EnsembleRun, error: ServeError, outcome: str) -> None:
        del self._runs.under_way[run.request]
        self.delivery.fail((run.request,), error, outcome)

    # Readiness

    def down(self) -> bool:
        try:
            return self._runs.closed or any(self.member(step).down() for step in self.plan.steps)
        except ServeError:
            return True

    def why_not_ready(self) -> str:
        """Empty if every member is ready, else the reason of the first that is not."""
        for step in self.plan.steps:
            try:
                reason = self.member(step).why_not_ready()
            except ServeError as error:
                reason = error.message
            if reason:
                return _of_member(step, reason)
        return ""

    def checks_readiness(self) -> bool:
        """Whether a member's model decides about its own readiness."""
        try:
            return any(self.member(step).checks_readiness() for step in self.plan.steps)
        except ServeError:
            return False

    async def _ask_whether_ready(self) -> str:
        members = {self._keys[step.index]: (step, self.member(step)) for step in self.plan.steps}
        answers = await asyncio.gather(*(model.check_ready() for _, model in members.values()))
        reasons = zip(members.values(), answers, strict=True)
        return next((_of_member(step, why) for (step, _), why in reasons if why), "")

    # Its members

    @property
    def needs(self) -> Collection[str]:
        """The names of its members."""
        return tuple(dict.fromkeys(step.model for step in self.plan.steps))

    def has_same_members(self) -> bool:
        """Whether its members are still those that it was loaded with."""
        try:
            return all(self._models.find(*key) is model for key, model in self.members.items())
        except ServeError:
            return False

    def waiters_for(self, request: Request | None) -> Sequence[Waiter]:
        """The run of the request, or one that is to come. An ensemble takes all requests, and waits for members."""
        run = None if request is None else self._runs.under_way.get(self._leader_of(request))
        return (self._coming if run is None else run,)

    def _coming_calls(self) -> Sequence[BlockingCall]:
        """The calls that a request which has not begun will wait for."""
        calls = []
        for step in self.plan.steps:
            try:
                calls.append(Prospect(self.member(step)))
            except ServeError:
                return ()  # it will fail at once
        return calls

    def instance_facts(self) -> Sequence[InstanceFacts]:
        """None: the instances are its members'."""
        return ()

    # The end

    async def drained(self, patience_s: float = 0.0) -> bool:
        """Waits until nothing is under way. It has no batches: its members' patience ends hanging ones."""
        await self.delivery.drained()
        return True

    async def stop(self, timeout_s: float) -> None:
        self._runs.close()

    def unavailable(self) -> ServeError:
        return unavailable(f"ensemble '{self.name}' version {self.version} is not served any more")


class _Runs(Stage):
    """The last stage of an ensemble: each request becomes a run with the next poll."""

    def __init__(self, model: EnsembleModel, max_queue_size: int) -> None:
        super().__init__()
        self._model = model
        self.waiting: list[Request] = []
        self.under_way: dict[Request, EnsembleRun] = {}
        self.closed = False
        # Requests that wait for the cache, or for an equal request
        self._places = PolicyQueue(PriorityLevels().bounded(max_queue_size))
        self._has_places = False

    def enqueue(self, request: Request) -> None:
        if self.closed:
            refusal = self._model.unavailable()
            self._model.delivery.refused(request, refusal)
            raise refusal
        request.queue_start_ns = self._model.clock()
        self.waiting.append(request)

    def take_place(self, request: Request) -> None:
        try:
            if self.closed:
                raise self._model.unavailable()
            self._has_places = True
            self._places.take_place(request)
        except ServeError as refusal:
            self._model.delivery.refused(request, refusal)
            raise

    def leave_place(self, request: Request) -> bool:
        return self._places.remove(request)

    def cancel(self, request: Request) -> None:
        """No further step begins, and the steps under way are cancelled."""
        run = self.under_way.get(request)
        if run is not None:
            run.cancel()

    def poll(self) -> None:
        """Begins the runs of the queued requests."""
        self._poll_is_due = False
        model = self._model
        if self._has_places:
            for request, refusal in self._places.expire(model.clock()):
                model.delivery.fail((request,), refusal, REJECTED)
        waiting, self.waiting = self.waiting, []
        for request in waiting:
            request.compute_start_ns = model.clock()
            run = self.under_way[request] = EnsembleRun(model, request)
            if request.cancelled:
                run.cancel()
            else:
                run.begin()

    def close(self) -> None:
        """Takes no request from now on; requests under way end when the members have finished with them."""
        self.closed = True
        waiting, self.waiting = self.waiting, []
        self._model.delivery.fail(waiting, self._model.unavailable(), OTHER_FAILURE)
        for run in list(self.under_way.values()):
            run.give_up(self._model.unavailable())


def _entangled(plan: EnsemblePlan, members: Mapping[tuple[str, str], ServedModel]) -> Collection[Step]:
    """The steps whose models also make later steps, at any depth."""
    parts: dict[str, set[str]] = {}
    for (name, _), model in members.items():
        todo: list[Any] = [model]
        found = parts.setdefault(name, set())
        while todo:
            one = todo.pop()
            found.add(one.key)
            todo += getattr(one, "members", {}).values()
    followers = plan.route(None).followers
    entangled = set()
    for step in followers:
        later = list(followers[step])
        for one in later:
            later += [further for further in followers[one] if further not in later]
        if any(parts.get(step.model, {step.model}) & parts.get(one.model, {one.model}) for one in later):
            entangled.add(step)
    return entangled


def _of_member(step: Step, reason: str) -> str:
    return f"its member '{step.model}' is not ready: {reason}"
