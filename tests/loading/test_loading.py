"""Starting versions with fake stubs: which are made, which serve, and that none is left when something fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stubserve.errors import ServeError, internal
from stubserve.instances.instance import InstanceState
from stubserve.loading.loader import InstanceUpdate, Loader
from stubserve.memory.server_memory import Memory
from stubserve.repository.candidate import find_candidate
from stubserve.repository.folder import locate
from stubserve.repository.registry import Registry
from stubserve.serving.instance_model import InstanceModel
from stubserve.settings.groups import InstanceSettings, LatencySettings, RepositorySettings
from tests.loading.fakes import in_time, log_lines, services, until

IO = 'input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }'


class FakeStub:
    """A process that is not one: what it is asked is recorded, and `launcher` says what comes of it."""

    def __init__(self, launcher: FakeLauncher, name: str) -> None:
        self.name = name
        self.handshake = self
        self.stub = self
        self.seats = {0: self}
        self.stopping = False
        self.death: str | None = None
        self.on_end: Any = None
        self.on_death: Any = None
        self.pid = len(launcher.stubs) + 1
        self.work = SimpleNamespace(owner=None, is_empty=True, batches=0, streams=0, full=False, stop=lambda: None)
        self.checks_readiness = False
        self.streams = 0
        self.serves_after_completion = launcher.serves_after_completion
        self.initialized = ""
        self.stopped = False
        self._launcher = launcher

    async def imported(self) -> bool:
        await self._launcher.pass_through("import", self.name)
        return self._launcher.completed is not None

    async def complete(self, model: str, config: str) -> str:
        await self._launcher.pass_through("complete", self.name)
        assert self._launcher.completed is not None
        return json.dumps({**json.loads(config), **self._launcher.completed})

    def stop_soon(self) -> None:
        self.death = "stopped"

    async def kill(self) -> None:
        self.death = "killed"

    async def stop(self, timeout_s: float) -> bool:
        self.stopped = True
        self.death = "stopped"
        return True


class FakeLauncher:
    """Makes fake stubs. A stage whose name, or whose name and instance, is a key of `gates` waits for that future."""

    def __init__(self) -> None:
        self.stubs: list[FakeStub] = []
        self.gates: dict[str, asyncio.Future[None]] = {}
        self.reached: list[str] = []
        # What auto_complete_config returns beside what it is given; None for a model without it
        self.completed: dict[str, Any] | None = None
        self.instances_per_stub: dict[str, int] = {}
        self.serves_after_completion = False

    def boot(self, instance: str) -> FakeStub:
        stub = FakeStub(self, instance)
        self.stubs.append(stub)
        return stub

    async def initialize(self, stub: FakeStub, spec: Any, config: Any, config_json: str) -> FakeStub:
        await self.pass_through("initialize", spec.name)
        stub.initialized = spec.name
        return stub

    async def pass_through(self, stage: str, instance: str) -> None:
        self.reached.append(f"{stage} {instance}")
        for key in (stage, f"{stage} {instance}"):
            if key in self.gates:
                await self.gates[key]

    def gate(self, key: str, error: Exception | None = None) -> asyncio.Future[None]:
        gate = self.gates[key] = asyncio.get_running_loop().create_future()
        if error is not None:
            gate.set_exception(error)
        return gate

    @property
    def alive(self) -> list[str]:
        """The instances that have a stub which is not dead."""
        return [stub.initialized for stub in self.stubs if stub.death is None]


class World:
    """A loader of fake stubs, and the disk that it loads from."""

    def __init__(self, repository: Path, memory: Memory, completes: bool, latencies: LatencySettings | None) -> None:
        self.repository = repository
        self.launcher = FakeLauncher()
        self.services = services(Registry())
        self.loader = Loader(InstanceSettings(), memory, completes, latencies, lambda *_: self.launcher)  # type: ignore[arg-type,return-value]

    def begin(self, config: str, version: int = 1) -> asyncio.Future[InstanceModel]:
        self.write(config, version)
        return asyncio.ensure_future(self.loader.start(self.candidate(), version, self.services))

    def write(self, config: str, version: int = 1) -> None:
        folder = self.repository / "m"
        (folder / str(version)).mkdir(parents=True, exist_ok=True)
        (folder / str(version) / "model.py").touch()
        (folder / "config.pbtxt").write_text(config)

    def candidate(self) -> Any:
        return find_candidate(locate((self.repository,), "m"), RepositorySettings((self.repository,)), None, None)


@pytest.fixture(scope="module")
def memory() -> Memory:
    return Memory(1 << 24)


@pytest.fixture
def run(repository: Path, memory: Memory) -> Callable[..., None]:
    def run_scenario(
        scenario: Callable[[World], Awaitable[None]], completes: bool = True, latencies: LatencySettings | None = None
    ) -> None:
        async def whole() -> None:
            await scenario(World(repository, memory, completes, latencies))

        asyncio.run(whole())

    return run_scenario


async def refusal(load: asyncio.Future[Any]) -> str:
    with pytest.raises(ServeError) as caught:
        await in_time(load)
    return caught.value.message


def commit(update: InstanceUpdate) -> list[asyncio.Task[None]]:
    return update.model.change_instances(update.instances, update.config, 5.0)


def config(count: int = 1, more: str = "") -> str:
    return f'backend: "python" {IO} instance_group {{ count: {count} kind: KIND_CPU }} {more}'


def test_a_stub_that_has_only_imported_becomes_the_first_instance(run: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        model = await in_time(world.begin(config(3)))
        assert world.launcher.alive == ["m_0_0", "m_0_1", "m_0_2"]
        assert len(world.launcher.stubs) == 3
        assert [instance.state for instance in model.instances] == [InstanceState.READY] * 3
        assert world.launcher.stubs[0].initialized == "m_0_0"

    run(scenario)


def test_a_stub_that_has_completed_the_configuration_serves_nobody(run: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        world.launcher.completed = {"max_batch_size": 4}
        model = await in_time(world.begin(config(2)))
        first, *rest = world.launcher.stubs
        assert (first.death, [stub.initialized for stub in rest]) == ("killed", ["m_0_0", "m_0_1"])
        assert model.config.max_batch_size == 4

    run(scenario)


def test_a_stub_may_serve_after_it_has_completed_the_configuration(run: Callable[..., None]) -> None:
    """That of a backend which says so; it is the first instance then."""

    async def scenario(world: World) -> None:
        world.launcher.completed = {"max_batch_size": 4}
        world.launcher.serves_after_completion = True
        model = await in_time(world.begin(config(2)))
        assert [stub.initialized for stub in world.launcher.stubs] == ["m_0_0", "m_0_1"]
        assert len(world.launcher.alive) == 2
        assert model.config.max_batch_size == 4

    run(scenario)


def test_without_auto_complete_every_stub_only_serves(run: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        world.launcher.completed = {"max_batch_size": 4}
        model = await in_time(world.begin(config()))
        assert (world.launcher.alive, model.config.max_batch_size) == (["m_0_0"], 0)
        assert not any(reached.startswith("complete") for reached in world.launcher.reached)

    run(scenario, completes=False)


@pytest.mark.parametrize("stage", ["import", "complete", "initialize", "initialize m_0_1"])
@pytest.mark.parametrize("completes", [True, False])
@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize("how", ["fails", "unexpected", "cancelled"])
def test_nothing_is_left_of_a_load_that_ends_early(
    run: Callable[..., None], stage: str, completes: bool, goes_on: bool, how: str
) -> None:
    if stage == "complete" and not completes:
        return

    async def scenario(world: World) -> None:
        world.launcher.completed = {} if completes else None
        world.launcher.serves_after_completion = goes_on
        gate = world.launcher.gate(stage)
        load = world.begin(config(3))
        await until(lambda: any(reached.startswith(stage) for reached in world.launcher.reached))
        if how == "cancelled":
            load.cancel()
            await asyncio.wait([load])
            assert load.cancelled()
        else:
            gate.set_exception(internal("broken") if how == "fails" else KeyError("broken"))
            with pytest.raises(ServeError if how == "fails" else KeyError, match="broken"):
                await in_time(load)
        assert world.launcher.alive == []

    run(scenario)


def test_the_others_are_not_waited_for_when_one_instance_fails(run: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        world.launcher.gate("initialize m_0_2")
        failing = world.launcher.gate("initialize m_0_1")
        load = world.begin(config(3))
        await until(lambda: "initialize m_0_2" in world.launcher.reached)
        failing.set_exception(internal("broken"))
        assert await refusal(load) == "broken"
        assert world.launcher.alive == []

    run(scenario)


def test_a_load_that_is_given_up_before_its_instances_have_begun(run: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        load = world.begin(config(2))
        begin_with = InstanceModel.begin_with

        def begin_and_give_up(model: InstanceModel, instances: Any) -> None:
            begin_with(model, instances)
            load.cancel()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(InstanceModel, "begin_with", begin_and_give_up)
            await asyncio.wait([load])
        assert (load.cancelled(), world.launcher.alive) == (True, [])

    run(scenario)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (config(more="max_batch_size: 1 ").replace("dims: 1", "dims: 0", 1), "dimension must be integer >= 1"),
        (config().replace('name: "Y"', 'name: "Y" label_filename: "gone"'), "failed to open text file for read"),
    ],
)
def test_the_first_stub_goes_where_the_configuration_is_wrong(run: Callable[..., None], text: str, error: str) -> None:
    async def scenario(world: World) -> None:
        assert error in await refusal(world.begin(text))
        assert (len(world.launcher.stubs), world.launcher.alive) == (1, [])

    run(scenario)


def test_what_is_told_first_of_what_is_missing(run: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        text = (
            'default_model_filename: "model.txt" instance_group { kind: KIND_GPU } '
            'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "/nowhere" } }'
        )
        for wrong, right, error in (
            ('backend: "nosuch"', 'backend: "python"', "unable to find backend library"),
            ("KIND_GPU", "KIND_CPU", "no GPUs are available"),
            ('"model.txt"', '"model.py"', "Model name must end with '.py'"),
            ("/nowhere", "", "Failed to get the canonical path for /nowhere."),
        ):
            if wrong.startswith("backend"):
                text = f"{wrong} {IO} {text}"
            assert error in await refusal(world.begin(text))
            text = text.replace(wrong, right)
        await in_time(world.begin(text))

    run(scenario)


def test_a_file_that_is_missing_is_told_in_upstreams_words(run: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        world.write(config())
        (world.repository / "m" / "1" / "model.py").unlink()
        with log_lines() as lines:
            await in_time(world.loader.start(world.candidate(), 1, world.services))
        words = "Failed to preinitialize Python stub: Python model file not found in"
        assert lines == [f"{words} '{world.repository}/m/1/model.py'"]

    run(scenario)


@pytest.mark.parametrize(
    ("latencies", "family", "bounds", "warned"),
    [
        (None, "nv_nosuch", None, True),
        (LatencySettings(), "nv_nosuch", None, True),
        (LatencySettings(histogram_latencies=True), "nv_nosuch", [100.0, 500.0, 2000.0, 5000.0], True),
        (LatencySettings(histogram_latencies=True), "nv_inference_first_response_histogram_ms", [2.5], False),
    ],
)
def test_what_is_measured(
    run: Callable[..., None], latencies: LatencySettings | None, family: str, bounds: list[float] | None, warned: bool
) -> None:
    control = f'metric_identifier {{ family: "{family}" }} histogram_options {{ buckets: [ 2.5 ] }}'

    async def scenario(world: World) -> None:
        with log_lines() as lines:
            model = await in_time(world.begin(config(more=f"model_metrics {{ metric_control {{ {control} }} }}")))
        told = [line for line in lines if f"Metric family '{family}' in 'metric_identifier' is not a" in line]
        assert len(told) == int(warned)
        histogram = None if model.latencies is None else model.latencies.first_response
        assert (None if histogram is None else list(histogram.bounds)) == bounds

    run(scenario, latencies=latencies)


# Other instances


def test_instances_that_fit_stay_and_those_that_are_missing_are_started(run: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        model = await in_time(world.begin(config(1)))
        (first,) = model.instances
        world.write(config(3))
        update = await in_time(world.loader.update(model, world.candidate(), world.services))
        assert update.instances[0] is first
        assert world.launcher.alive == ["m_0_0", "m_0_1", "m_0_2"]
        assert model.instances == [first]
        leaving = commit(update)
        assert (len(model.instances), leaving) == (3, [])
        world.write(config(1, "version_policy { all {} }"))
        leaving = commit(await in_time(world.loader.update(model, world.candidate(), world.services)))
        await in_time(asyncio.wait(leaving))
        assert (world.launcher.alive, len(leaving)) == (["m_0_2"], 2)

    run(scenario)


@pytest.mark.parametrize("how", ["fails", "cancelled"])
def test_an_update_that_ends_early_leaves_what_serves(run: Callable[..., None], how: str) -> None:
    async def scenario(world: World) -> None:
        model = await in_time(world.begin(config(1)))
        gate = world.launcher.gate("initialize m_0_2")
        world.write(config(3))
        update = asyncio.ensure_future(world.loader.update(model, world.candidate(), world.services))
        await until(lambda: "initialize m_0_2" in world.launcher.reached)
        if how == "fails":
            gate.set_exception(internal("broken"))
            assert await refusal(update) == "broken"
        else:
            update.cancel()
            await asyncio.wait([update])
        assert (world.launcher.alive, len(model.instances), model.down()) == (["m_0_0"], 1, False)

    run(scenario)


def test_an_update_that_is_taken_back_ends_what_it_has_started(run: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        model = await in_time(world.begin(config(1)))
        world.write(config(2))
        update = await in_time(world.loader.update(model, world.candidate(), world.services))
        for instance in update.started:
            update.model.retire(instance, 5.0)
        await until(lambda: world.launcher.alive == ["m_0_0"])
        assert len(model.instances) == 1

    run(scenario)
