"""What an ensemble's configuration says, worked out once: its steps, and who reads which tensor.

An ensemble is a flow of data between named tensors. A tensor is written once, by the ensemble's caller or by one step,
and read by any number of steps; those that are outputs of the ensemble go to the caller as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

# How many of them an ensemble remembers, by what is requested
_ROUTES = 64


@dataclass(frozen=True, slots=True)
class Step:
    """One step: a request to version `version` of `model` (-1 for its newest).

    `inputs` maps the names of the model's inputs to tensors of the ensemble, `outputs` those of its outputs. Equal
    steps of two places in the ensemble differ in `index`.
    """

    index: int
    model: str
    version: int
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]

    def __hash__(self) -> int:
        return self.index


@dataclass(frozen=True, slots=True)
class Route:
    """What has to run for a set of requested outputs.

    `readers` are the steps that read a tensor, in the order of the configuration. `uses` says how often a tensor is
    used: once for every input of a step that it is mapped to and, for a requested output, once by the caller. A tensor
    that is not in it is made for nobody. `steps` are those that run, `followers` those that read what a step makes.
    """

    outputs: tuple[str, ...]
    steps: tuple[Step, ...]
    followers: Mapping[Step, tuple[Step, ...]]
    readers: Mapping[str, tuple[Step, ...]]
    uses: Mapping[str, int]


class EnsemblePlan:
    """The plan of an ensemble whose `config` (a protobuf ModelConfig) has been found valid."""

    def __init__(self, config: Any) -> None:
        self.name: str = config.name
        self.inputs = tuple(tensor.name for tensor in config.input)
        self.outputs = tuple(tensor.name for tensor in config.output)
        self.steps = tuple(
            # Maps come in no order of their own; sorted, every run of an ensemble is like the next.
            Step(index, step.model_name, step.model_version, _sorted(step.input_map), _sorted(step.output_map))
            for index, step in enumerate(config.ensemble_scheduling.step)
        )
        self._full = self._route(self.outputs)
        self._routes = {self.outputs: self._full}

    def route(self, requested: Collection[str] | None) -> Route:
        """What has to run to make the requested outputs, None for all; a step whose outputs nobody needs does not."""
        if requested is None:
            return self._full
        outputs = tuple(name for name in self.outputs if name in requested)
        route = self._routes.get(outputs)
        if route is None:
            route = self._route(outputs)
            if len(self._routes) < _ROUTES:
                self._routes[outputs] = route
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
        readers: dict[str, tuple[Step, ...]] = {}
        for step in self.steps:
            if step in needed:
                for tensor in dict.fromkeys(step.inputs.values()):
                    readers[tensor] = (*readers.get(tensor, ()), step)
        uses = Counter(outputs)
        for step in needed:
            uses.update(step.inputs.values())
        followers = {
            step: tuple(dict.fromkeys(reader for tensor in step.outputs.values() for reader in readers.get(tensor, ())))
            for step in needed
        }
        return Route(outputs, tuple(step for step in self.steps if step in needed), followers, readers, uses)

    def __repr__(self) -> str:
        return f"<EnsemblePlan {self.name!r}: {[step.model for step in self.steps]}>"


def _sorted(names: Mapping[str, str]) -> dict[str, str]:
    return {name: names[name] for name in sorted(names)}
