"""How an ensemble keeps its steps from making more work than later steps can do: gates, and pauses.

**Gates** bound how many requests of one step may be under way (`max_inflight_requests`). The limit is one for all
requests to the ensemble, as upstream has it. Upstream stops the thread with the previous answer, and releases it after
five minutes in any case. Here the step waits in a queue, and the step before it is told to pause. A run keeps its place
at its gate until the runs that its answers have made possible have passed theirs. So a step cannot fill the memory with
results that wait for the next step. A place waits only for gates of later steps, and a flow has no circles, so a gate
always opens. For this reason a run does not wait for a step that still lacks the result of another one.

**Pauses.** A step that answers many times is paused while the reader of the ensemble is behind, while a step that reads
its outputs waits at a gate, and while such a step has many requests under way. It resumes when none of that is so. A
step waits only for later steps, so no two wait for each other. A step whose model also makes a later step does not
wait: it could have the only instance that this one needs. Where a later step waits for the paused model in any other
way (through a model that calls it, or another ensemble), the pause is lifted (`instances.deadlock`).
"""

# Compiled by mypyc.
from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

from stubserve.ensembles.flow import StepRun
from stubserve.ensembles.plan import Step
from stubserve.ensembles.steps import FlowTensor
from stubserve.inference.request import Request
from stubserve.inference.served_model import BlockingCall, ServedModel
from stubserve.instances.deadlock import Pause, find_deadlock

# The most requests of one run to one step before the step that makes more work for it is paused
_MANY = 64

Run = StepRun[FlowTensor]


class Gate:
    """The gate of one step, for `limit` requests at a time."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._inside = 0
        self._opening = False
        # The waiting runs, the first to pass first, with the runs of their requests
        self.waiting: OrderedDict[Run, RunsAtGates] = OrderedDict()

    def enter(self, run: Run, runs: RunsAtGates) -> bool:
        """Whether a run may pass now; if not it waits, and `runs` is told when it has passed."""
        if self._inside < self._limit and not self.waiting:
            self._inside += 1
            return True
        self.waiting[run] = runs
        return False

    def leave(self) -> None:
        """A place is free; the next takes it. One that fails at once is not the caller of the one after it."""
        self._inside -= 1
        if self._opening:
            return
        self._opening = True
        while self.waiting and self._inside < self._limit:
            run, runs = self.waiting.popitem(last=False)
            self._inside += 1
            runs.passed(run)
        self._opening = False


class RunsAtGates:
    """The runs of one ensemble request at `gates`: iterates over the waiting runs."""

    __slots__ = ("_causes", "_gates", "_inside", "_over", "_waiting")

    def __init__(self, gates: Mapping[Step, Gate]) -> None:
        self._gates = gates
        self._waiting: dict[Run, Callable[[Run], None]] = {}
        self._inside: set[Run] = set()
        # For each run that has not passed, the run that made it possible; and those of the latter runs that have ended
        self._causes: dict[Run, Run] = {}
        self._over: set[Run] = set()

    def follow(self, cause: Run, runs: Iterable[Run]) -> None:
        """An answer to a run has made these possible."""
        self._causes.update(dict.fromkeys(runs, cause))

    def enter(self, run: Run, go: Callable[[Run], None]) -> bool:
        """Whether a run may pass now; if not it waits, and `go` is called with it once it has passed."""
        if self._gates[run.step].enter(run, self):
            self._has_passed(run)
            return True
        self._waiting[run] = go
        return False

    def passed(self, run: Run) -> None:
        """A run that has waited has passed its gate."""
        go = self._waiting.pop(run)
        self._has_passed(run)
        go(run)

    def _has_passed(self, run: Run) -> None:
        self._inside.add(run)
        cause = self._causes.pop(run, None)
        if cause in self._over and cause not in self._causes.values():
            self._free(cause)

    def leave(self, run: Run) -> None:
        """A run has ended. It keeps its place until its followers have passed."""
        if run in self._causes.values():
            self._over.add(run)
        else:
            self._free(run)

    def _free(self, run: Run) -> None:
        self._over.discard(run)
        self._inside.remove(run)
        self._gates[run.step].leave()

    def leave_all(self) -> None:
        """All runs inside are over, or are no longer known."""
        for run in list(self._inside):
            self._free(run)

    def give_up(self) -> list[Run]:
        """No further run is to pass: those that wait."""
        waiting, self._waiting = self._waiting, {}
        for run in waiting:
            del self._gates[run.step].waiting[run]
        self._causes.clear()
        for run in list(self._over):
            self._free(run)
        return list(waiting)

    def wait_before(self, step: Step) -> bool:
        """Whether any run waits at the gate of a step."""
        return any(run.step is step for run in self._waiting)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._waiting)


class StepPauses:
    """The pauses of one run; the responses of the run go to the reader of `request`.

    `members` are the models of the steps, by step index. `readers` are the steps that read a step's outputs, for steps
    that may wait for them. `at_gates` are the runs at gates, if the ensemble has gates.
    """

    def __init__(
        self,
        request: Request,
        members: Mapping[int, ServedModel],
        readers: Mapping[Step, Collection[Step]],
        at_gates: RunsAtGates | None,
    ) -> None:
        self._request = request
        self._members = members
        self._readers = readers
        self._at_gates = at_gates
        # Requests of each step that are under way or wait
        self._load: Counter[Step] = Counter()
        self._paused: dict[Request, Step] = {}
        # Requests that wait for no later step any more
        self._lifted: set[Request] = set()

    def begun(self, step: Step) -> None:
        self._load[step] += 1

    def ended(self, step: Step) -> None:
        self._load[step] -= 1
        if self._paused:
            self.go_on()

    def keep(self, request: Request, step: Step) -> None:
        """Pauses a request of this step that has just answered and is not over, if needed."""
        if not self._is_ahead(request, step):
            return
        request.pause()
        self._paused[request] = step
        request.streamed().behind = self._behind
        self.go_on()
        for wait in self._behind(request):
            waiters = self._members[step.index].waiters_for(request)
            if any(find_deadlock(waiter, wait.model, wait.request) is not None for waiter in waiters):
                self._lift(request)

    def forget(self, request: Request) -> None:
        self._paused.pop(request, None)
        self._lifted.discard(request)

    def go_on(self) -> None:
        """Resumes requests that need not wait any longer."""
        stream = self._request.stream
        if stream is not None and stream.paused:
            if self.go_on not in stream.owed:
                self._request.when_read(self.go_on)
            return
        for request, step in list(self._paused.items()):
            if not self._is_ahead(request, step) and self._paused.pop(request, None) is not None:
                request.resume()

    def _lift(self, request: Request) -> None:
        self._lifted.add(request)
        self.go_on()

    def _behind(self, request: Request) -> Sequence[BlockingCall]:
        """What a paused request waits for; nothing that is known while a client is behind."""
        stream = self._request.stream
        if stream is not None and stream.paused:
            known: Sequence[BlockingCall] = stream.behind(self._request)
            return known
        step = self._paused.get(request)
        if step is None or request in self._lifted:
            return ()
        later = {*self._full(step), *(run.step for run in self._at_gates or ())}
        return [Pause(self._members[one.index], partial(self._lift, request)) for one in later]

    def _is_ahead(self, request: Request, step: Step) -> bool:
        stream = self._request.stream
        if stream is not None and stream.paused:
            return True
        return request not in self._lifted and any(True for _ in self._full(step))

    def _full(self, step: Step) -> Iterator[Step]:
        """The readers of a step that have enough to do."""
        at_gates = self._at_gates
        for reader in self._readers.get(step, ()):
            if self._load[reader] >= _MANY or (at_gates is not None and at_gates.wait_before(reader)):
                yield reader
