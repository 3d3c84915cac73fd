"""A group: models that are served together, by each replica of one application of Ray Serve."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Group:
    """What can be said of a group of models.

    `repository` is a folder or a cloud address that all nodes reach. `models` are its models that belong to the group;
    none means all. `calls` are models of other groups that they call (BLS, ensembles), and `calls_at` is the front that
    is asked for these. `replicas` is a number, or `{min: 1, max: 8}`: then Ray follows the demand (`demand`). `cpus`,
    `gpus` and `resources` are what Ray reserves for each replica. `flags` are further ones of `stubserve serve`.
    `drain_s` is how long, in seconds, a replica that leaves waits for its sequences to end. `front` is the name of the
    application with the fronts.
    """

    repository: str
    models: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    calls_at: str = "http://127.0.0.1:8000"
    replicas: Any = 1
    cpus: float = 1.0
    gpus: float = 0.0
    resources: dict[str, float] = field(default_factory=dict)
    flags: str = ""
    drain_s: float = 30.0
    upscale_delay_s: float = 5.0
    downscale_delay_s: float = 60.0
    front: str = "front"

    @property
    def least(self) -> int:
        return int(self.replicas["min"] if isinstance(self.replicas, dict) else self.replicas)

    @property
    def most(self) -> int:
        return int(self.replicas["max"] if isinstance(self.replicas, dict) else self.replicas)

    @property
    def words(self) -> list[str]:
        """The group's part of the command line of `stubserve serve`. A replica loads the models of one with `calls`."""
        chosen = [] if self.calls else [f"--load-model={model}" for model in self.models] or ["--load-model=*"]
        return [self.repository, "--model-control-mode=explicit", *chosen, *shlex.split(self.flags)]


def group_of(said: dict[str, Any]) -> Group:
    """The group of these arguments. Raises ValueError for one that is unknown, missing or wrong."""
    there_are = sorted(part.name for part in dataclasses.fields(Group))
    if unknown := sorted(said.keys() - set(there_are)):
        raise ValueError(f"stubserve.ray_serve:models has no argument {unknown[0]!r}, only {', '.join(there_are)}")
    if not said.get("repository"):
        raise ValueError("stubserve.ray_serve:models: name the folder of models: `args: { repository: /srv/models }`")
    group = Group(**said)
    if group.calls and (not group.models or set(group.calls) & set(group.models)):
        raise ValueError("stubserve.ray_serve:models: `calls` are models of other groups, and `models` names its own")
    try:
        if not 1 <= group.least <= group.most:
            raise ValueError(group.replicas)
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"stubserve.ray_serve:models: `replicas` is {group.replicas!r}, not a number from 1, nor {{min: 1, max: 8}}"
        ) from None
    return group
