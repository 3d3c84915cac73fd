"""One request on its way through an ensemble: a state machine over tensors that it never looks at.

Rules, as upstream has them:

- A tensor has *turns*. The caller's inputs are turn 0. Each response of a step adds one turn to every output of the
  step, so a decoupled step that answers three times makes turns 0, 1 and 2.
- A step runs once for each turn that has all its inputs.
- A response that lacks an output leaves that turn *absent*. A step that reads it runs without that input (the model
  decides whether it may be missing); an output of the ensemble is left out of its response.
- The ensemble responds once for each turn that has all requested outputs.
- After the first failure no further step begins. The failure is reported when the steps under way have ended.

Memory. The giver of a tensor holds it once for each of its `uses`: once for every input of a step that it is mapped to,
and once for the caller if it is a requested output. A run takes one of these holds with each of its inputs, a response
one with each of its outputs. `close` gives back the holds that were not taken: turns that never met, and the rest after
a failure. A tensor without uses is not taken at all.

Costs: work per tensor and reader, independent of the number of turns. Each turn counts down the tensors that every step
still waits for, so nothing is searched. A turn is forgotten when all readers have had it, except the first, which lasts
as long as the flow (most flows have no other). So a stream of any length takes only the memory of what is under way.
"""

# Compiled by mypyc.
from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Generic, TypeVar

from stubserve.ensembles.plan import EnsemblePlan, Made, Step, Taken
from stubserve.errors import ServeError

T = TypeVar("T")

_in_order = attrgetter("index")


class StepRun(Generic[T]):
    """A step to be run with these inputs, by the names that its model knows; absent ones are missing."""

    __slots__ = ("inputs", "step", "turn")

    def __init__(self, step: Step, turn: int, inputs: dict[str, T]) -> None:
        self.step = step
        self.turn = turn
        self.inputs = inputs


class _Turn(Generic[T]):
    """One turn of all tensors.

    `values` are the tensors that have come, None for absent ones; a value that is used once goes when it is taken.
    `waits` counts the tensors that each step still waits for, by its index, with the caller in the last place; a reader
    with 0 has taken its tensors. `uses` is how often the values are still to be taken.
    """

    __slots__ = ("uses", "values", "waits")

    def __init__(self, needs: Sequence[int]) -> None:
        self.values: dict[str, T | None] = {}
        self.waits = list(needs)
        self.uses = 0


class EnsembleFlow(Generic[T]):
    """The flow of one request; `requested` are the outputs that its caller wants, None for all.

    `route` says which steps may have to run, and which tensors each of them reads and makes. `runs` are to be run now,
    `responses` to be answered now; see `take_runs` and `take_responses`.
    """

    def __init__(self, plan: EnsemblePlan, requested: Collection[str] | None = None) -> None:
        self.route = route = plan.route(requested)
        self._first: _Turn[T] = _Turn(route.needs)
        # All turns but the first, by number
        self._turns: dict[int, _Turn[T]] = {}
        # How often each step has answered, by its index
        self._answers = [0] * len(plan.steps)
        self._under_way = 0
        # Tensors of runs and responses that were never used
        self._returned: list[T] = []
        self.runs: list[StepRun[T]] = []
        self.responses: list[dict[str, T]] = []
        self.error: ServeError | None = None

    def has_begun(self, step: Step) -> bool:
        """Whether a step has run, or is about to, at least once."""
        return not self._first.waits[step.index]

    def begin(self, inputs: Mapping[str, T]) -> None:
        """The caller's tensors, by name. An optional one that is missing is absent."""
        self._write(0, self.route.given, inputs)

    def answer(self, run: StepRun[T], outputs: Mapping[str, T]) -> None:
        """A response to a run: tensors by the names that the step's model knows. One that is not mapped is ignored."""
        index = run.step.index
        number = self._answers[index]
        self._answers[index] = number + 1
        self._write(number, self.route.made[index], outputs)

    def end(self, run: StepRun[T]) -> None:
        self._under_way -= 1

    def fail(self, error: ServeError) -> None:
        """A failure in a step or outside. The first error counts."""
        if self.error is None:
            self.error = error
            self._return_runs()

    def take_runs(self) -> list[StepRun[T]]:
        """The runs to start now; each is under way until it has ended."""
        runs, self.runs = self.runs, []
        return runs

    def take_responses(self) -> list[dict[str, T]]:
        """The responses to send now: the outputs of each in the order of the configuration."""
        responses, self.responses = self.responses, []
        return responses

    @property
    def over(self) -> bool:
        """Whether nothing is under way, so that nothing can follow."""
        return not self._under_way

    def close(self) -> Iterator[tuple[T, int]]:
        """Gives back each tensor with holds that were not taken, and their number. Ends the flow."""
        turns, self._turns = [self._first, *self._turns.values()], {}
        self._first = _Turn(self.route.needs)
        for turn in turns:
            for tensor, value in turn.values.items():
                holds = self._untaken(tensor, turn)
                if value is not None and holds:
                    yield value, holds
        for outputs in self.take_responses():
            self._returned += outputs.values()
        for value in self._returned:
            yield value, 1

    def _untaken(self, tensor: str, turn: _Turn[T]) -> int:
        """How many of a tensor's uses have not been taken in this turn."""
        route = self.route
        holds = 1 if tensor in route.outputs and turn.waits[-1] else 0
        for step in route.steps:
            if turn.waits[step.index]:
                holds += sum(one == tensor for one in step.inputs.values())
        return holds

    def _write(self, number: int, made: Sequence[Made], given: Mapping[str, T]) -> None:
        """Adds one writer's tensors to a turn, and starts what is then complete."""
        turn: _Turn[T] | None = self._turns.get(number) if number else self._first
        if turn is None:
            turn = self._turns[number] = _Turn(self.route.needs)
        values, waits = turn.values, turn.waits
        complete: list[Step] = []
        for name, tensor, uses, readers, requested in made:
            values[tensor] = given.get(name)
            turn.uses += uses
            for step in readers:
                index = step.index
                waits[index] = left = waits[index] - 1
                if not left:
                    complete.append(step)
            if requested:
                waits[-1] = left = waits[-1] - 1
                if not left:
                    self._respond(turn)
        if len(complete) > 1:
            complete.sort(key=_in_order)
        for step in complete:
            self.runs.append(StepRun(step, number, self._take(turn, self.route.takes[step.index])))
        self._under_way += len(complete)
        if self.error is not None:
            self._return_runs()
        if number and not turn.uses:
            del self._turns[number]

    def _respond(self, turn: _Turn[T]) -> None:
        outputs = self._take(turn, self.route.takes[-1])
        if self.error is None:
            self.responses.append(outputs)
        else:
            self._returned += outputs.values()

    def _return_runs(self) -> None:
        for run in self.take_runs():
            self._under_way -= 1
            self._returned += run.inputs.values()

    @staticmethod
    def _take(turn: _Turn[T], takes: Sequence[Taken]) -> dict[str, T]:
        """The tensors of one reader, by the names that it knows; absent tensors are missing."""
        values = turn.values
        turn.uses -= len(takes)
        taken: dict[str, T] = {}
        for name, tensor, alone in takes:
            value = values.pop(tensor) if alone else values[tensor]
            if value is not None:
                taken[name] = value
        return taken
