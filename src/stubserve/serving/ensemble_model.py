"""One loaded version of an ensemble: a `ServedModel` that has no instances, only members.

A request is admitted as for any model, and becomes a run (`ensemble_run`) with the next poll. The run finds the members
in the registry when it begins, and keeps them from being taken down until it is over. So a request meets one version of
each member, and a reload of a member costs no request. The ensemble remembers the members it was loaded with
(`members`), so that model control sees when it must be loaded again.

An ensemble is ready when all its members are; it is down when one of them is missing, or is down.

Statistics are upstream's: a request waits in no queue of the ensemble, its compute times are the sums of its steps'
times, and it counts as one execution, of its own batch size.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from stubserve.errors import ServeError, unavailable
from stubserve.inference.request import OTHER_FAILURE, REJECTED, SUCCESS, Request, Response
from stubserve.inference.served_model import BlockingCall, InstanceFacts, ModelFinder, ServedModel, Waiter
from stubserve.inference.statistics import ModelStatistics
from stubserve.instances.waiting import Coming
from stubserve.response_cache.store import ResponseCache
from stubserve.schedulers.ensemble.plan import EnsemblePlan, Step
from stubserve.schedulers.policy_queue import PolicyQueue, PriorityLevels
from stubserve.serving.answering import AnsweringModel
from stubserve.serving.delivery import Delivery
from stubserve.serving.ensemble_backpressure import Gate
from stubserve.serving.ensemble_run import EnsembleRun
from stubserve.serving.ensemble_steps import Prospect

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
    ) -> None:
        super().__init__(name, version, config, clock)
        self.members = members
        self.plan = EnsemblePlan(config)
        limit = config.ensemble_scheduling.max_inflight_requests
        self.gates: Mapping[Step, Gate] = {step: Gate(limit) for step in self.plan.steps} if limit else {}
        self._models = models
        self.entangled = _entangled(self.plan, members)
        self._keys = [(step.model, "" if step.version == -1 else str(step.version)) for step in self.plan.steps]
        self._loop = asyncio.get_running_loop()
        self.statistics = ModelStatistics()
        self._delivery = Delivery(self.signature, self.statistics)
        self._waiting: list[Request] = []
        # The places of requests that wait for the cache or for an equal request: only with a cache
        self._places: PolicyQueue | None = None
        self._max_queue_size = max_queue_size
        self._runs: dict[Request, EnsembleRun] = {}
        self._coming = Coming(name, self._coming_calls)
        self._poll_is_due = False
        self.poll = self._run = self._begin_runs
        self._poll_soon = self._begin_runs_soon
        self._closed = False

    # Requests

    def _begin_runs_soon(self) -> None:
        if not self._poll_is_due:
            self._poll_is_due = True
            self._loop.call_soon(self._begin_runs)

    def _queue(self, request: Request, runs: bool = True) -> None:
        try:
            if self._closed:
                raise self._unavailable()
            if not runs and self._places is not None:
                self._places.take_place(request)
                return
        except ServeError:
            request.outcome = REJECTED
            self.statistics.record_failure(request)
            raise
        request.queue_start_ns = self._clock()
        self._waiting.append(request)

    def use_cache(self, cache: ResponseCache, identity: bytes) -> None:
        self._places = PolicyQueue(PriorityLevels().bounded(self._max_queue_size))
        self._leave_place = self._places.remove
        super().use_cache(cache, identity)

    def _begin_runs(self) -> None:
        """Begins the runs of the queued requests: its `poll`, if no cache answers first. Raises nothing."""
        self._poll_is_due = False
        if self._places is not None:
            for request, refusal in self._places.expire(self._clock()):
                self._delivery.fail((request,), refusal, REJECTED)
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            request.compute_start_ns = self._clock()
            run = self._runs[request] = EnsembleRun(self, request)
            if request.cancelled:
                run.cancel()
            else:
                run.begin()

    def cancel(self, request: Request) -> None:
        """The client of a submitted request is gone: no further step begins, and the steps under way are cancelled."""
        request.cancelled = True
        request.resume()
        if self._cache is not None:
            self._cache.cancel(request)
        run = self._runs.get(request)
        if run is not None:
            run.cancel()

    @property
    def queued(self) -> int:
        """Requests that have not begun; waiting steps count with their own models."""
        return len(self._waiting)

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
        self._delivery.respond(request, response)

    def succeeded(self, run: EnsembleRun) -> None:
        request = run.request
        del self._runs[request]
        now = self._clock()
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
        del self._runs[run.request]
        self._delivery.fail((run.request,), error, outcome)

    # Readiness

    def down(self) -> bool:
        try:
            return self._closed or any(self.member(step).down() for step in self.plan.steps)
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

    def stands(self) -> bool:
        """Whether its members are still those that it was loaded with."""
        try:
            return all(self._models.find(*key) is model for key, model in self.members.items())
        except ServeError:
            return False

    def takers(self, request: Request | None) -> Sequence[Waiter]:
        """Its run, or one that is to come: an ensemble takes every request itself, and then waits for its members."""
        if request is not None and self._cache is not None:
            request = self._cache.leader_of(request)
        run = None if request is None else self._runs.get(request)
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
        await self._delivery.drained()
        return True

    async def stop(self, timeout_s: float) -> None:
        """Takes no request from now on; requests under way end when the members have finished with them."""
        self._closed = True
        waiting, self._waiting = self._waiting, []
        self._delivery.fail(waiting, self._unavailable(), OTHER_FAILURE)
        for run in list(self._runs.values()):
            run.give_up(self._unavailable())

    def _unavailable(self) -> ServeError:
        return unavailable(f"ensemble '{self.name}' version {self.version} is not served any more")


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
