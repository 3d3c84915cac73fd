"""How an ensemble keeps its steps from making more work than later steps can do: gates, and pauses.

**Gates** bound how many requests of one step may be under way (`max_inflight_requests`). The limit is one for all
requests to the ensemble, as upstream has it. Upstream stops the thread with the previous answer, and releases it after
five minutes in any case. Here the step waits in a queue, and the step before it is told to pause. Work under way never
waits for a gate that it has passed, and a flow has no circles, so a gate always opens.

**Pauses.** A step that answers many times is paused while the reader of the ensemble is behind, while a step that reads
its outputs waits at a gate, and while such a step has many requests under way. It resumes when none of that is so. A
step waits only for later steps, so no two wait for each other.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping

from stubserve.inference.request import Request
from stubserve.schedulers.ensemble.flow import StepRun
from stubserve.schedulers.ensemble.plan import Step
from stubserve.serving.ensemble_steps import FlowTensor

# The most requests of one run to one step before the step that makes more work for it is paused
_MANY = 64

Run = StepRun[FlowTensor]


class Gate:
    """The gate of one step, for `limit` requests at a time."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._inside = 0
        # The waiting runs, the first to pass first, with the runs of their requests
        self.waiting: OrderedDict[Run, RunsAtGates] = OrderedDict()

    def enter(self, run: Run, runs: RunsAtGates) -> bool:
        """Whether a run may pass now; if not it waits, and `runs` is told when it has passed."""
        if self._inside < self._limit:
            self._inside += 1
            return True
        self.waiting[run] = runs
        return False

    def leave(self) -> None:
        """A run inside is over; the next takes its place."""
        if self.waiting:
            run, runs = self.waiting.popitem(last=False)
            runs.passed(run)
        else:
            self._inside -= 1


class RunsAtGates:
    """The runs of one ensemble request at `gates`: iterates over the waiting runs."""

    __slots__ = ("_gates", "_inside", "_waiting")

    def __init__(self, gates: Mapping[Step, Gate]) -> None:
        self._gates = gates
        self._waiting: dict[Run, Callable[[Run], None]] = {}
        self._inside: Counter[Step] = Counter()

    def enter(self, run: Run, go: Callable[[Run], None]) -> bool:
        """Whether a run may pass now; if not it waits, and `go` is called with it once it has passed."""
        if self._gates[run.step].enter(run, self):
            self._inside[run.step] += 1
            return True
        self._waiting[run] = go
        return False

    def passed(self, run: Run) -> None:
        """A run that has waited has passed its gate."""
        self._inside[run.step] += 1
        self._waiting.pop(run)(run)

    def leave(self, step: Step) -> None:
        self._inside[step] -= 1
        self._gates[step].leave()

    def leave_all(self) -> None:
        """All runs inside are over, or are no longer known."""
        for step in list(self._inside.elements()):
            self.leave(step)

    def give_up(self) -> list[Run]:
        waiting, self._waiting = self._waiting, {}
        for run in waiting:
            del self._gates[run.step].waiting[run]
        return list(waiting)

    def wait_before(self, step: Step) -> bool:
        """Whether any run waits at the gate of a step."""
        return any(run.step is step for run in self._waiting)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._waiting)


class StepPauses:
    """The pauses of one run; the responses of the run go to the reader of `request`.

    `readers` are the steps that read a step's outputs. `at_gates` are the runs at gates, if the ensemble has gates.
    """

    def __init__(
        self, request: Request, readers: Mapping[Step, Collection[Step]], at_gates: RunsAtGates | None
    ) -> None:
        self._request = request
        self._readers = readers
        self._at_gates = at_gates
        # Requests of each step that are under way or wait
        self._load: Counter[Step] = Counter()
        self._paused: dict[Request, Step] = {}

    def begun(self, step: Step) -> None:
        self._load[step] += 1

    def ended(self, step: Step) -> None:
        self._load[step] -= 1
        if self._paused:
            self.go_on()

    def keep(self, request: Request, step: Step) -> None:
        """Pauses a request of this step that has just answered and is not over, if needed."""
        if self._is_ahead(step):
            request.pause()
            self._paused[request] = step
            self.go_on()

    def forget(self, request: Request) -> None:
        self._paused.pop(request, None)

    def go_on(self) -> None:
        """Resumes requests that need not wait any longer."""
        stream = self._request.stream
        if stream is not None and stream.paused:
            if self.go_on not in stream.owed:
                self._request.when_read(self.go_on)
            return
        for request, step in list(self._paused.items()):
            if not self._is_ahead(step) and self._paused.pop(request, None) is not None:
                request.resume()

    def _is_ahead(self, step: Step) -> bool:
        stream = self._request.stream
        if stream is not None and stream.paused:
            return True
        at_gates = self._at_gates
        return any(
            self._load[reader] >= _MANY or (at_gates is not None and at_gates.wait_before(reader))
            for reader in self._readers.get(step, ())
        )
