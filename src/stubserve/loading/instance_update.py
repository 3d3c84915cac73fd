"""Changing the instances of a version that serves: which stay, which are new, and the step from the old to the new.

As upstream, an instance stays where the new configuration has one of the same kind, device and other properties, and
keeps its name, whatever its group is called now. Where fewer are wanted the last stay; upstream keeps those that were
ready last. What is new is started beside them, out of sight of the scheduler, so a start that fails changes nothing.
Then all takes one step of the event loop: the new ones join, and those that are left over get no more batches, finish
what they have, finalize and go. Requests that are queued, statistics and the order of answers belong to the version and
do not notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stubserve.instances.instance import Instance, InstanceState
from stubserve.model_config.complete import InstanceSpec
from stubserve.serving.instance_model import InstanceModel


def assign(instances: Sequence[Instance], specs: Sequence[InstanceSpec]) -> list[Instance | InstanceSpec]:
    """For each of `specs` an instance that may stay for it, else itself. Instances that are not ready do not stay."""
    spare: dict[Any, list[Instance]] = {}
    for instance in instances:
        if instance.state is InstanceState.READY:
            spare.setdefault(instance.spec.traits, []).append(instance)
    return [spare[spec.traits].pop() if spare.get(spec.traits) else spec for spec in specs]


@dataclass(frozen=True, eq=False)
class InstanceUpdate:
    """What `model` is to be served by: `instances`, of which `started` are new and ready. `config` says the same."""

    model: InstanceModel
    instances: list[Instance]
    started: list[Instance]
    config: Any

    def commit(self, stop_timeout_s: float) -> list[asyncio.Task[None]]:
        """Lets it be so. Instances that go finish what they have, and then have `stop_timeout_s` to finalize.

        The tasks are done when those of them are gone that a load waits for.
        """
        return self.model.change_instances(self.instances, self.config, stop_timeout_s)

    def undo(self, stop_timeout_s: float) -> None:
        """Leaves everything as it was; the new instances end."""
        for instance in self.started:
            self.model.retire(instance, stop_timeout_s)
