"""What a keeper keeps of the instances that share its stub."""

from __future__ import annotations

import asyncio
import gc
import weakref
from types import SimpleNamespace
from typing import Any

from stubserve.instances.death import RestartPolicy
from stubserve.instances.instance import Instance
from stubserve.instances.keeper import Keeper
from stubserve.instances.stub_requests import UnansweredRequests
from stubserve.model_config.complete import instances_of
from stubserve.model_config.parse import parse_text


class FakeSeat:
    """A seat in a stub without a process."""

    def __init__(self, stub: Any, name: str) -> None:
        self.stub = stub
        self.name = name
        self.pid = 1
        self.death: str | None = None
        self.on_death = None
        self.work = SimpleNamespace(batches=0, executed=1, is_empty=True)

    async def stop(self, timeout_s: float) -> bool:
        self.death = "it has been finalized"
        self.stub.on_end(self.death, [(self, UnansweredRequests([], [], []))])
        return True


def test_nothing_of_an_instance_that_has_left() -> None:
    config: Any = parse_text('name: "m" instance_group { count: 2 kind: KIND_CPU }', "config.pbtxt")
    specs = instances_of(config)
    stub: Any = SimpleNamespace(pid=1, death=None, seats={}, takes_seats=True)

    async def launch(instances: Any, shared: Any) -> Any:
        return stub, [FakeSeat(stub, instance.name) for instance in instances]

    async def scenario() -> None:
        owner: Any = SimpleNamespace(reports=None, on_ready=lambda instance: None)
        keeper = Keeper(launch, owner, RestartPolicy(1), 2)
        await Instance(specs[0], keeper).start()
        other = Instance(specs[1], keeper)
        await other.start()
        seat = weakref.ref(other.seat)
        await other.stop(1)
        del other
        gc.collect()
        assert seat() is None
        assert len(keeper.instances) == 1

    asyncio.run(scenario())
