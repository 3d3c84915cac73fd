"""How an ensemble keeps its steps from making more work than others can do: gates, and pauses.

**Gates** bound how many requests of one step may be under way (`max_inflight_requests`). The limit is one for all
requests to the ensemble, as upstream has it. Where upstream stops the thread that brings the answer before, and lets it
go after five minutes whatever happens, here the step waits in a queue, and whoever makes more work for it is told to
pause. What is under way never waits for the gate that it has passed, and a flow has no circles, so a gate always opens.

**Pauses.** A step that answers many times is paused while the reader of the ensemble is behind, while a step that reads
what it makes waits at its gate, and while such a step has many requests under way. It goes on when none of that is so.
Nobody waits for another that waits for it: a step waits for later ones only.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial

from stubserve.inference.request import Request
from stubserve.schedulers.ensemble.flow import StepRun
from stubserve.schedulers.ensemble.plan import Step
from stubserve.serving.ensemble_steps import FlowTensor

# How many requests of one run to one step may be under way before the step that makes more work for it is paused
_MANY = 64

Run = StepRun[FlowTensor]


class Gate:
    """The gate of one step, for `limit` requests at a time."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._inside = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def enter(self, go: Callable[[], None]) -> bool:
        """Whether one more may go now; if not, `go` is called once it is inside."""
        if self._inside < self._limit:
            self._inside += 1
            return True
        self._waiting.append(go)
        return False

    def give_up(self, go: Callable[[], None]) -> None:
        """A run that waits does not want to go any more."""
        self._waiting.remove(go)

    def leave(self) -> None:
        """One has been answered; the next goes in its place."""
        if self._waiting:
            self._waiting.popleft()()
        else:
            self._inside -= 1


class RunsAtGates:
    """The runs of steps that one request to the ensemble has at `gates`: iterates over those that wait."""

    __slots__ = ("_count", "_gates", "_inside", "_waiting")

    def __init__(self, gates: Mapping[Step, Gate]) -> None:
        self._gates = gates
        # With what their gates know them by
        self._waiting: dict[Run, Callable[[], None]] = {}
        self._count: Counter[Step] = Counter()
        # How many are inside
        self._inside: Counter[Step] = Counter()

    def enter(self, run: Run, go: Callable[[Run], None]) -> bool:
        """Whether one may go now; if not it waits, and `go` is called with it once it is inside."""
        known_by = partial(self._go, run, go)
        if self._gates[run.step].enter(known_by):
            self._inside[run.step] += 1
            return True
        self._waiting[run] = known_by
        self._count[run.step] += 1
        return False

    def leave(self, step: Step) -> None:
        """One that was inside is over."""
        self._inside[step] -= 1
        self._gates[step].leave()

    def leave_all(self) -> None:
        """All that are inside are over, or nobody knows of them any more."""
        for step in list(self._inside.elements()):
            self.leave(step)

    def give_up(self) -> list[Run]:
        """None of those that wait goes any more; returns them."""
        waiting, self._waiting = self._waiting, {}
        for run, known_by in waiting.items():
            self._gates[run.step].give_up(known_by)
        self._count.clear()
        return list(waiting)

    def before(self, step: Step) -> int:
        """How many wait at the gate of a step."""
        return self._count[step]

    def __iter__(self) -> Iterator[Run]:
        return iter(self._waiting)

    def _go(self, run: Run, go: Callable[[Run], None]) -> None:
        del self._waiting[run]
        self._count[run.step] -= 1
        self._inside[run.step] += 1
        go(run)


class StepPauses:
    """The pauses of one run; the responses of the run go to the reader of `request`.

    `readers` tells which steps read what a step makes. `at_gates` is what waits at gates, if there are any.
    """

    def __init__(
        self, request: Request, readers: Callable[[Step], Collection[Step]], at_gates: RunsAtGates | None
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
        """Pauses a request of this step, which has just answered and is not over, if that is called for."""
        if self._is_ahead(step):
            request.pause()
            self._paused[request] = step
            self.go_on()

    def forget(self, request: Request) -> None:
        """A request is over."""
        self._paused.pop(request, None)

    def go_on(self) -> None:
        """Resumes what need not wait any longer."""
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
            self._load[reader] >= _MANY or (at_gates is not None and at_gates.before(reader))
            for reader in self._readers(step)
        )
