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

Costs: work per tensor and reader, independent of how many turns there have been. Each turn counts down what every step
still waits for, so nothing is looked for. Turns are forgotten when everybody has had them, all but the first, which
lasts as long as the flow and is the only one of most; so a stream of any length takes the memory of what is under way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Generic, TypeVar

from stubserve.errors import ServeError
from stubserve.schedulers.ensemble.plan import EnsemblePlan, Made, Step, Taken

T = TypeVar("T")

_in_order = attrgetter("index")


class StepRun(Generic[T]):
    """A step that is to run with these inputs, by the names that its model knows; absent ones are missing."""

    __slots__ = ("inputs", "step", "turn")

    def __init__(self, step: Step, turn: int, inputs: dict[str, T]) -> None:
        self.step = step
        self.turn = turn
        self.inputs = inputs


class _Turn(Generic[T]):
    """One turn of all tensors.

    `values` are those that are there, None where they are absent; one that is used once goes when it is taken. `waits`
    is for how many tensors each step still waits, by its index, and in the last place the caller; one that waits for
    none has had them. `uses` is how often the values are still to be taken.
    """

    __slots__ = ("uses", "values", "waits")

    def __init__(self, needs: Sequence[int]) -> None:
        self.values: dict[str, T | None] = {}
        self.waits = list(needs)
        self.uses = 0


class EnsembleFlow(Generic[T]):
    """The flow of one request; `requested` are the outputs that its caller wants, None for all.

    `runs` is what is to run now, `responses` what is to be answered now; see `take_runs` and `take_responses`.
    """

    __slots__ = (
        "_answers",
        "_first",
        "_returned",
        "_route",
        "_turns",
        "_under_way",
        "answered",
        "error",
        "responses",
        "runs",
    )

    def __init__(self, plan: EnsemblePlan, requested: Collection[str] | None = None) -> None:
        self._route = route = plan.route(requested)
        self._first: _Turn[T] = _Turn(route.needs)
        # Those behind the first, by number
        self._turns: dict[int, _Turn[T]] = {}
        # How often each step has answered, by its index
        self._answers = [0] * len(plan.steps)
        # How many runs have begun and not ended
        self._under_way = 0
        # What runs and responses had taken that came to nothing
        self._returned: list[T] = []
        self.runs: list[StepRun[T]] = []
        self.responses: list[dict[str, T]] = []
        # How many responses there have been
        self.answered = 0
        self.error: ServeError | None = None

    @property
    def steps(self) -> Sequence[Step]:
        """All that may have to run."""
        return self._route.steps

    @property
    def given(self) -> Sequence[Made]:
        """The tensors of the caller that somebody reads."""
        return self._route.given

    def has_begun(self, step: Step) -> bool:
        """Whether a step has run, or is about to, at least once."""
        return not self._first.waits[step.index]

    def made_by(self, step: Step) -> Sequence[Made]:
        """The tensors of a step that somebody reads."""
        return self._route.made[step.index]

    def asked_of(self, step: Step) -> list[str]:
        """The names of the outputs that a step is to be asked for; the list is the plan's."""
        return self._route.asked[step.index]

    def readers_of(self, step: Step) -> Collection[Step]:
        """The steps that read what this one makes."""
        return self._route.followers.get(step, ())

    def begin(self, inputs: Mapping[str, T]) -> None:
        """The caller's tensors, by name. An optional one that is missing is absent."""
        self._write(0, self._route.given, inputs)

    def answer(self, run: StepRun[T], outputs: Mapping[str, T]) -> None:
        """A response to a run: tensors by the names that the step's model knows. One that is not mapped is ignored."""
        index = run.step.index
        number = self._answers[index]
        self._answers[index] = number + 1
        self._write(number, self._route.made[index], outputs)

    def end(self, run: StepRun[T]) -> None:
        """The run has had its last response."""
        self._under_way -= 1

    def fail(self, error: ServeError) -> None:
        """Something went wrong, in a step or outside. The first error counts."""
        if self.error is None:
            self.error = error
            self._return_runs()

    def take_runs(self) -> list[StepRun[T]]:
        """What is to run now; each run is under way until it has ended."""
        runs, self.runs = self.runs, []
        return runs

    def take_responses(self) -> list[dict[str, T]]:
        """What is to be answered now: the outputs of each response in the order of the configuration."""
        responses, self.responses = self.responses, []
        return responses

    @property
    def over(self) -> bool:
        """Whether nothing is under way, so that nothing can follow."""
        return not self._under_way

    def close(self) -> Iterator[tuple[T, int]]:
        """Gives back each tensor that was given and not taken by all, with the number of holds on it. Ends the flow."""
        turns, self._turns = [self._first, *self._turns.values()], {}
        self._first = _Turn(self._route.needs)
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
        """How many of a tensor's uses nobody has had in this turn."""
        route = self._route
        holds = 1 if tensor in route.outputs and turn.waits[-1] else 0
        for step in route.steps:
            if turn.waits[step.index]:
                holds += sum(one == tensor for one in step.inputs.values())
        return holds

    def _write(self, number: int, made: Sequence[Made], given: Mapping[str, T]) -> None:
        """One turn of what one writer makes, and what it completes."""
        turn: _Turn[T] | None = self._turns.get(number) if number else self._first
        if turn is None:
            turn = self._turns[number] = _Turn(self._route.needs)
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
            self.runs.append(StepRun(step, number, self._take(turn, self._route.takes[step.index])))
        self._under_way += len(complete)
        if self.error is not None:
            self._return_runs()
        if number and not turn.uses:
            del self._turns[number]

    def _respond(self, turn: _Turn[T]) -> None:
        outputs = self._take(turn, self._route.takes[-1])
        if self.error is None:
            self.responses.append(outputs)
            self.answered += 1
        else:
            self._returned += outputs.values()

    def _return_runs(self) -> None:
        for run in self.take_runs():
            self._under_way -= 1
            self._returned += run.inputs.values()

    @staticmethod
    def _take(turn: _Turn[T], takes: Sequence[Taken]) -> dict[str, T]:
        """What one reader gets, by the names that it knows; absent tensors are missing."""
        values = turn.values
        turn.uses -= len(takes)
        taken: dict[str, T] = {}
        for name, tensor, alone in takes:
            value = values.pop(tensor) if alone else values[tensor]
            if value is not None:
                taken[name] = value
        return taken
