"""Groups of models: the models of a group are served together, in each replica of one deployment."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Group:
    """What can be said of a group of models.

    `models` are its names; none means all models of the repository. Models that call one another (BLS, ensembles)
    belong in one group. `replicas` is a number, or `{min: 1, max: 8}`: then Ray follows the demand (`demand`). `cpus`,
    `gpus` and `resources` are what Ray reserves for each replica. `flags` are further ones of `stubserve serve`.
    `drain_s` is how long, in seconds, a replica that leaves waits for its sequences to end.
    """

    name: str = "all"
    models: list[str] = field(default_factory=list)
    replicas: Any = 1
    cpus: float = 1.0
    gpus: float = 0.0
    resources: dict[str, float] = field(default_factory=dict)
    flags: str = ""
    drain_s: float = 30.0
    upscale_delay_s: float = 5.0
    downscale_delay_s: float = 60.0

    @property
    def least(self) -> int:
        return int(self.replicas["min"] if isinstance(self.replicas, dict) else self.replicas)

    @property
    def most(self) -> int:
        return int(self.replicas["max"] if isinstance(self.replicas, dict) else self.replicas)

    @property
    def words(self) -> list[str]:
        """The group's part of the command line of `stubserve serve`."""
        chosen = [f"--load-model={model}" for model in self.models] or ["--load-model=*"]
        return ["--model-control-mode=explicit", *chosen, *shlex.split(self.flags)]


def groups_of(common: dict[str, Any], named: dict[str, dict[str, Any]] | None) -> list[Group]:
    """The groups: `named` ones, which take from `common` what they do not say. Raises ValueError."""
    if named is None:
        return [_group({**common, "name": "all"})]
    groups = [_group({**common, **said, "name": name}) for name, said in named.items()]
    owner: dict[str, str] = {}
    for group in groups:
        if not group.models:
            raise ValueError(f"stubserve.ray_serve: group {group.name!r} names no models")
        for model in group.models:
            if owner.setdefault(model, group.name) != group.name:
                raise ValueError(
                    f"stubserve.ray_serve: model {model!r} is in two groups, {owner[model]!r} and {group.name!r}"
                )
    return groups


def _group(said: dict[str, Any]) -> Group:
    there_are = {part.name for part in dataclasses.fields(Group)}
    if unknown := sorted(said.keys() - there_are):
        names = ", ".join(sorted(there_are - {"name"}))
        raise ValueError(f"stubserve.ray_serve has no argument {unknown[0]!r}; of a group can be said: {names}")
    group = Group(**said)
    try:
        if not 1 <= group.least <= group.most:
            raise ValueError(group.replicas)
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"stubserve.ray_serve: `replicas` of group {group.name!r} is {group.replicas!r}; it is a number from 1, or "
            "{min: 1, max: 8}"
        ) from None
    return group
