"""One request on its way through an ensemble: a state machine over tensors that it never looks at.

Rules, as upstream has them:

- A tensor has *turns*. What the caller gives is turn 0 of the inputs. Each response of a step adds one turn to every
  output of the step, so a decoupled step that answers three times makes turns 0, 1 and 2.
- A step runs once for each turn of which all its inputs are there.
- A response that lacks an output leaves that turn *absent*. A step that reads it runs without that input (the model
  says whether it may be missing); an output of the ensemble is left out of its response.
- The ensemble responds once for each turn of which all requested outputs are there.
- After the first failure no further step begins. The failure is told when the steps under way have ended.

Memory. Whoever gives a tensor to the flow holds it once for each of its `uses`: once for every input of a step that it
is mapped to, once for the caller where it is a requested output. A run takes one of these holds with each of its
inputs, a response one with each of its outputs. `close` gives back what nobody took: turns that never met, and what
a failure left behind. A tensor without uses is not taken at all.

Costs: work per tensor and reader, independent of how many turns there have been. Turns are forgotten when everybody
has had them, so a stream of any length takes the memory of what is under way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from stubserve.errors import ServeError
from stubserve.schedulers.ensemble.plan import EnsemblePlan, Step

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class StepRun(Generic[T]):
    """A step that is to run with these inputs, by the names that its model knows; absent ones are missing."""

    step: Step
    turn: int
    inputs: dict[str, T]


@dataclass(slots=True)
class _Turn(Generic[T]):
    """One turn of a tensor: its value, None if it is absent, and how many have yet to take it."""

    value: T | None
    uses: int


class EnsembleFlow(Generic[T]):
    """The flow of one request; `requested` are the outputs that its caller wants, None for all."""

    def __init__(self, plan: EnsemblePlan, requested: Collection[str] | None = None) -> None:
        self._plan = plan
        self._route = plan.route(requested)
        self._turns: dict[str, dict[int, _Turn[T]]] = {}
        # How many turns each tensor has had
        self._counts: dict[str, int] = {}
        self._under_way: set[StepRun[T]] = set()
        self._runs: list[StepRun[T]] = []
        self._responses: list[dict[str, T]] = []
        self.responses = 0
        self.error: ServeError | None = None

    def uses(self, tensor: str) -> int:
        """How many take each turn of an ensemble's tensor; 0 if it is not to be given."""
        return self._route.uses.get(tensor, 0)

    @property
    def steps(self) -> Collection[Step]:
        """All that may have to run."""
        return self._route.steps

    def readers_of(self, step: Step) -> Collection[Step]:
        """The steps that read what this one makes."""
        return self._route.followers.get(step, ())

    def begin(self, inputs: Mapping[str, T]) -> None:
        """The caller's tensors, by name. An optional one that is missing is absent."""
        for name in self._plan.inputs:
            if self.uses(name):
                self._add(name, inputs.get(name))
        self._look(self._plan.inputs)

    def answer(self, run: StepRun[T], outputs: Mapping[str, T]) -> None:
        """A response to a run: tensors by the names that the step's model knows. One that is not mapped is ignored."""
        written = []
        for name, tensor in run.step.outputs.items():
            if self.uses(tensor):
                self._add(tensor, outputs.get(name))
                written.append(tensor)
        if self.error is None:
            self._look(written)

    def end(self, run: StepRun[T]) -> None:
        """The run has had its last response."""
        self._under_way.remove(run)

    def fail(self, error: ServeError) -> None:
        """Something went wrong, in a step or outside. The first error counts."""
        if self.error is None:
            self.error = error
            for run in self._runs:
                self._under_way.remove(run)
                for name, value in run.inputs.items():
                    self._give_back(run.step.inputs[name], run.turn, value)
            self._runs = []

    def take_runs(self) -> list[StepRun[T]]:
        """What is to run now; each run is under way until it has ended."""
        runs, self._runs = self._runs, []
        return runs

    def take_responses(self) -> list[dict[str, T]]:
        """What is to be answered now: the outputs of each response in the order of the configuration."""
        responses, self._responses = self._responses, []
        return responses

    @property
    def over(self) -> bool:
        """Whether nothing is under way, so that nothing can follow."""
        return not self._under_way

    def close(self) -> Iterator[tuple[T, int]]:
        """Gives back each tensor that was given and not taken by all, with the number of holds on it. Ends the flow."""
        turns, self._turns = self._turns, {}
        for by_turn in turns.values():
            for turn in by_turn.values():
                if turn.value is not None:
                    yield turn.value, turn.uses
        for outputs in self.take_responses():
            for value in outputs.values():
                yield value, 1

    def _add(self, tensor: str, value: T | None) -> None:
        number = self._counts.get(tensor, 0)
        self._counts[tensor] = number + 1
        self._turns.setdefault(tensor, {})[number] = _Turn(value, self.uses(tensor))

    def _look(self, written: Collection[str]) -> None:
        """Finds what the newest turn of these tensors completes."""
        complete: dict[Step, int] = {}
        for tensor in written:
            if tensor not in self._counts:
                continue
            turn = self._counts[tensor] - 1
            for step in self._route.readers.get(tensor, ()):
                if self._is_there(step.inputs.values(), turn):
                    complete[step] = turn
        for step in sorted(complete, key=lambda step: step.index):
            self._run(step, complete[step])
        for tensor in written:
            if tensor in self._route.outputs:
                turn = self._counts[tensor] - 1
                if self._is_there(self._route.outputs, turn):
                    self._respond(turn)
                    break

    def _is_there(self, tensors: Collection[str], turn: int) -> bool:
        return all(turn in self._turns.get(tensor, ()) for tensor in tensors)

    def _run(self, step: Step, turn: int) -> None:
        taken = {name: self._take(tensor, turn) for name, tensor in step.inputs.items()}
        run = StepRun(step, turn, {name: value for name, value in taken.items() if value is not None})
        self._under_way.add(run)
        self._runs.append(run)

    def _respond(self, turn: int) -> None:
        outputs = {tensor: self._take(tensor, turn) for tensor in self._route.outputs}
        self._responses.append({tensor: value for tensor, value in outputs.items() if value is not None})
        self.responses += 1

    def _take(self, tensor: str, number: int) -> T | None:
        by_turn = self._turns[tensor]
        turn = by_turn[number]
        turn.uses -= 1
        if not turn.uses:
            del by_turn[number]
        return turn.value

    def _give_back(self, tensor: str, number: int, value: T) -> None:
        self._turns[tensor].setdefault(number, _Turn(value, 0)).uses += 1
