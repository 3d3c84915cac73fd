"""An ensemble's configuration, computed once: its steps, and the readers of each tensor.

An ensemble is a flow of data between named tensors. A tensor is written once, by the ensemble's caller or by one step,
and read by any number of steps. The outputs of the ensemble also go to the caller.
"""

# Compiled by mypyc.
from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

# How many routes an ensemble remembers, by requested outputs
_ROUTES = 64


@dataclass(frozen=True, slots=True)
class Step:
    """One step: a request to version `version` of `model` (-1 for its newest).

    `inputs` maps the names of the model's inputs to tensors of the ensemble, `outputs` the names of its outputs. Equal
    steps at two places in the ensemble differ in `index`.
    """

    index: int
    model: str
    version: int
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]

    def __hash__(self) -> int:
        return self.index


class Made(NamedTuple):
    """A tensor that its writer makes under the name `name`, with the steps that read it.

    `uses` is how often each of its turns is used: once for every input of a step that it is mapped to and, if it is a
    `requested` output, once by the caller.
    """

    name: str
    tensor: str
    uses: int
    readers: tuple[Step, ...]
    requested: bool


class Taken(NamedTuple):
    """A tensor that its reader knows by `name`; `alone` if each of its turns is used only once."""

    name: str
    tensor: str
    alone: bool


@dataclass(frozen=True, slots=True)
class Route:
    """The steps that must run for a set of requested outputs. All of it is shared, and not to be changed.

    `given` are the tensors of the caller, `made` those of each step, by its index; tensors without readers are in
    neither. `takes` are the inputs of each step, by its index, with the caller's outputs in the last place. `asked` are
    the names of the outputs to request from a step. `needs` is how many different tensors each step waits for, with the
    caller in the last place. `steps` are the steps that run, `followers` the readers of a step's outputs.
    """

    outputs: tuple[str, ...]
    steps: tuple[Step, ...]
    followers: Mapping[Step, tuple[Step, ...]]
    given: tuple[Made, ...]
    made: tuple[tuple[Made, ...], ...]
    takes: tuple[tuple[Taken, ...], ...]
    asked: tuple[list[str], ...]
    needs: tuple[int, ...]


class EnsemblePlan:
    """The plan of an ensemble with a valid `config` (a protobuf ModelConfig)."""

    def __init__(self, config: Any) -> None:
        self.name: str = config.name
        # A configuration may declare one twice
        self.inputs = tuple(dict.fromkeys(tensor.name for tensor in config.input))
        self.outputs = tuple(dict.fromkeys(tensor.name for tensor in config.output))
        self.steps = tuple(
            # Maps have no order. Sorted, every run of an ensemble is like the next.
            Step(index, step.model_name, step.model_version, _sorted(step.input_map), _sorted(step.output_map))
            for index, step in enumerate(config.ensemble_scheduling.step)
        )
        self._full = self._route(self.outputs)
        self._routes = {self.outputs: self._full}

    def route(self, requested: Collection[str] | None) -> Route:
        """The steps that make the requested outputs, None for all; steps without needed outputs are left out."""
        if requested is None:
            return self._full
        key = tuple(requested)
        route = self._routes.get(key)
        if route is None:
            outputs = tuple(name for name in self.outputs if name in requested)
            route = self._routes.get(outputs) or self._route(outputs)
            if len(self._routes) < _ROUTES:
                self._routes[key] = route
        return route

    def _route(self, outputs: tuple[str, ...]) -> Route:
        writers = {tensor: step for step in self.steps for tensor in step.outputs.values()}
        needed: set[Step] = set()
        todo = list(outputs)
        while todo:
            step = writers.get(todo.pop())
            if step is not None and step not in needed:
                needed.add(step)
                todo.extend(step.inputs.values())
        steps = tuple(step for step in self.steps if step in needed)
        readers: dict[str, tuple[Step, ...]] = {}
        for step in steps:
            for tensor in dict.fromkeys(step.inputs.values()):
                readers[tensor] = (*readers.get(tensor, ()), step)
        uses = Counter(outputs)
        for step in steps:
            uses.update(step.inputs.values())

        def made(names: Iterable[tuple[str, str]]) -> tuple[Made, ...]:
            return tuple(
                Made(name, tensor, uses[tensor], readers.get(tensor, ()), tensor in outputs)
                for name, tensor in names
                if uses[tensor]
            )

        def taken(names: Iterable[tuple[str, str]]) -> tuple[Taken, ...]:
            return tuple(Taken(name, tensor, uses[tensor] == 1) for name, tensor in names)

        by_step = tuple(made(step.outputs.items()) if step in needed else () for step in self.steps)
        return Route(
            outputs=outputs,
            steps=steps,
            followers={
                step: tuple(dict.fromkeys(reader for one in by_step[step.index] for reader in one.readers))
                for step in steps
            },
            given=made((name, name) for name in self.inputs),
            made=by_step,
            takes=(*(taken(step.inputs.items()) for step in self.steps), taken((name, name) for name in outputs)),
            asked=tuple([one.name for one in ones] for ones in by_step),
            needs=(*(len(set(step.inputs.values())) for step in self.steps), len(outputs)),
        )

    def __repr__(self) -> str:
        return f"<EnsemblePlan {self.name!r}: {[step.model for step in self.steps]}>"


def _sorted(names: Mapping[str, str]) -> dict[str, str]:
    return {name: names[name] for name in sorted(names)}
