"""What stands for models and their processes, so that every order of events can be had: nothing here starts any."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stubserve.instances.instance import Instance
from stubserve.instances.services import Services
from stubserve.loading.loader import InstanceUpdate
from stubserve.observability.custom_metrics import MetricRegistry
from stubserve.observability.logs import LogSettings
from stubserve.repository.candidate import Candidate, find_candidate
from stubserve.repository.folder import locate
from stubserve.repository.registry import Registry
from stubserve.serving.instance_model import InstanceModel
from stubserve.settings.groups import LoggingSettings, RepositorySettings

TIMEOUT_S = 30.0


class FakeModel(InstanceModel):
    """A served version with nothing behind it. It is busy until `idle` is set, and tells how it was ended."""

    def __init__(self, name: str = "m", version: int = 1) -> None:
        self.name = name
        self.version = version
        self.load_seconds = 0.0
        self.idle = asyncio.Event()
        self.idle.set()
        self.stopped_within: list[float] = []
        # Whether a batch does not end, and how long that was waited for
        self.hangs = False
        self.patience_s = 0.0
        self.stop_error: Exception | None = None
        # What its instances became
        self.configs: list[Any] = []
        self.retired: list[object] = []
        self.change_error: Exception | None = None
        self.is_down = False
        self.surplus: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        return f"<FakeModel {self.name} {self.version}>"

    def down(self) -> bool:
        return self.is_down

    def why_not_ready(self) -> str:
        return ""

    async def drained(self, patience_s: float = 0.0) -> bool:
        self.patience_s = patience_s
        await self.idle.wait()
        return not self.hangs

    async def stop(self, timeout_s: float) -> None:
        self.stopped_within.append(timeout_s)
        if self.stop_error is not None:
            raise self.stop_error

    def change_instances(
        self, instances: list[Instance], config: Any, stop_timeout_s: float
    ) -> list[asyncio.Task[None]]:
        if self.change_error is not None:
            raise self.change_error
        self.configs.append(config)
        return self.surplus

    def retire(self, instance: Instance, stop_timeout_s: float) -> asyncio.Task[None]:
        self.retired.append(instance)
        return asyncio.ensure_future(asyncio.sleep(0))


class Start:
    """A version that is being started, or gets other instances (then `model` is the one); the test says how it ends."""

    def __init__(self, candidate: Candidate, version: int, services: Services, model: InstanceModel | None) -> None:
        self.candidate = candidate
        self.version = version
        self.services = services
        self.model = model
        self.outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def succeed(self) -> FakeModel:
        """Its end, with a model: the new one, or the one that has been updated."""
        if isinstance(self.model, FakeModel):
            started: Any = object()
            self.outcome.set_result(InstanceUpdate(self.model, [], [started], self.candidate.config))
            return self.model
        model = FakeModel(self.candidate.folder.name, self.version)
        self.outcome.set_result(model)
        return model

    def fail(self, error: Exception) -> None:
        self.outcome.set_exception(error)


class FakeStarter:
    """Starts what tests want started; `next` is what is to be started next."""

    def __init__(self) -> None:
        self._starts: asyncio.Queue[Start] = asyncio.Queue()

    @property
    def waiting(self) -> int:
        """How many starts nobody has taken."""
        return self._starts.qsize()

    async def next(self) -> Start:
        return await asyncio.wait_for(self._starts.get(), TIMEOUT_S)

    async def several(self, count: int) -> dict[int, Start]:
        """The next starts by version."""
        starts = [await self.next() for _ in range(count)]
        return {start.version: start for start in starts}

    async def start(self, candidate: Candidate, version: int, services: Services) -> FakeModel:
        model: FakeModel = await self._outcome(Start(candidate, version, services, None))
        return model

    async def update(self, model: InstanceModel, candidate: Candidate, services: Services) -> InstanceUpdate:
        update: InstanceUpdate = await self._outcome(Start(candidate, model.version, services, model))
        return update

    async def _outcome(self, start: Start) -> Any:
        self._starts.put_nowait(start)
        return await start.outcome


class Disk:
    """A repository with models of which only folders and configurations matter."""

    def __init__(self, repository: Path) -> None:
        self.repository = repository

    def write(self, name: str = "m", versions: tuple[int, ...] = (1,), count: int = 1, policy: str = "all {}") -> None:
        folder = self.repository / name
        folder.mkdir(exist_ok=True)
        for version in versions:
            (folder / str(version)).mkdir(parents=True, exist_ok=True)
        (folder / "config.pbtxt").write_text(
            f'backend: "python" version_policy {{ {policy} }} instance_group {{ count: {count} }}'
        )

    def touch(self, name: str = "m") -> None:
        """Changes what every version may read."""
        notes = self.repository / name / "notes"
        notes.write_text(notes.read_text() + "x" if notes.exists() else "x")

    def take_away(self) -> None:
        self.repository.rename(self.repository.with_suffix(".away"))

    def bring_back(self) -> None:
        self.repository.with_suffix(".away").rename(self.repository)

    def candidate(self, name: str = "m", override: str | None = None) -> Candidate:
        return find_candidate(locate((self.repository,), name), RepositorySettings((self.repository,)), override, None)


def services(registry: Registry) -> Services:
    return Services(registry, LogSettings(LoggingSettings()), MetricRegistry({}))


def states(registry: Registry, name: str = "m") -> dict[int, tuple[str, str]]:
    """State and reason of each version of a model."""
    entry = registry.models.get(name)
    return {} if entry is None else {one.version: (one.state.value, one.reason) for one in entry.versions.values()}


async def in_time(awaited: Any) -> Any:
    """What it gives; a test that would wait for ever fails."""
    return await asyncio.wait_for(awaited, TIMEOUT_S)


async def until(condition: Any) -> None:
    """Waits for what threads and other tasks lead to."""
    deadline = asyncio.get_running_loop().time() + TIMEOUT_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.001)


@contextmanager
def log_lines() -> Iterator[list[str]]:
    """What the repository's code logs, whatever other tests have done to the loggers."""
    lines: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger = logging.getLogger("stubserve.repository")
    collector, level = Collector(), logger.level
    logger.addHandler(collector)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(collector)
        logger.setLevel(level)
