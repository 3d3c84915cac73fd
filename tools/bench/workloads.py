"""What is measured: each workload takes one server and gives figures, each with its unit and its better direction."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from . import payloads, perf_analyzer, repository, wrk
from .payloads import Payload
from .processes import ProcessTree
from .servers import Program, Server
from .wrk import Load

IDLE_S = 5


@dataclass(frozen=True)
class Metric:
    """The name of a figure with its unit, and whether more of it is better (None: neither, it only explains)."""

    name: str
    more_is_better: bool | None


RATE = Metric("requests/s", True)
P50 = Metric("p50 µs", False)
P99 = Metric("p99 µs", False)
CPU = Metric("CPU s per 1000 requests", False)
BATCH = Metric("mean batch", None)
START = Metric("ms from exec to ready", False)
IDLE_CPU = Metric("CPU % of a core", False)
PARENT_RSS = Metric("parent RSS MiB", False)
STUB_RSS = Metric("largest stub RSS MiB", False)
USS = Metric("all processes USS MiB", False)
PSS = Metric("all processes PSS MiB", False)

Figures = dict[Metric, float]


@dataclass(frozen=True)
class Subject:
    """A server under measurement: its running copy, and how to start another."""

    program: Program
    server: Server
    workspace: Path


class Workload(Protocol):
    name: str

    def prepare(self, subject: Subject) -> None:
        """Checks the server's answers and brings it to its running temperature; raises if an answer is wrong."""

    def measure(self, subject: Subject, seconds: int) -> Figures:
        """Takes about `seconds`; raises LoadError or ServerError rather than give a doubtful figure."""


class WrkLoad:
    """One payload, posted by wrk over a number of connections."""

    def __init__(self, name: str, payload: Payload, connections: int, *, count_cpu: bool = False) -> None:
        self.name = f"{name}, {connections} connection{'s'[: connections > 1]}"
        self._payload = payload
        self._connections = connections
        self._count_cpu = count_cpu

    def prepare(self, subject: Subject) -> None:
        payloads.send(subject.server.http_port, self._payload)
        self._load(subject, 1)

    def measure(self, subject: Subject, seconds: int) -> Figures:
        processes = subject.server.processes()
        before = processes.cpu_seconds()
        load = self._load(subject, seconds)
        figures = figures_of(load)
        if self._count_cpu:
            figures[CPU] = (processes.cpu_seconds() - before) / load.requests * 1000
        return figures

    def _load(self, subject: Subject, seconds: int) -> Load:
        script = subject.workspace / (re.sub(r"\W+", "_", self.name) + ".lua")
        if not script.exists():
            wrk.write_script(script, self._payload)
        return wrk.run(subject.server.http_port, script, self._payload, self._connections, seconds)


class BatchedLoad(WrkLoad):
    """A wrk load that also tells how many requests the server put into a batch."""

    def measure(self, subject: Subject, seconds: int) -> Figures:
        path = f"/v2/models/{self._payload.model}/stats"
        before = executions(subject.server.get(path))
        figures = super().measure(subject, seconds)
        inferences, batches = (b - a for a, b in zip(before, executions(subject.server.get(path)), strict=True))
        return {**figures, BATCH: inferences / batches}


class AnalyzerLoad:
    """16 floats, sent by perf_analyzer at a fixed number of requests in flight."""

    def __init__(self, concurrency: int) -> None:
        self.name = f"perf_analyzer, 16 floats, {concurrency} in flight"
        self._payload = payloads.numbers("identity_fp32", 16)
        self._concurrency = concurrency

    def prepare(self, subject: Subject) -> None:
        payloads.send(subject.server.http_port, self._payload)

    def measure(self, subject: Subject, seconds: int) -> Figures:
        report = subject.workspace / "perf_analyzer.csv"
        port, model = subject.server.http_port, self._payload.model
        return figures_of(perf_analyzer.run(port, model, "INPUT0:16", self._concurrency, seconds, report))


class StartUp:
    """A further copy of the server, started on a repository of `models` identity models and stopped again."""

    def __init__(self, models: int) -> None:
        self.name = f"start with {models} model{'s'[: models > 1]}"
        self._models = models

    def prepare(self, subject: Subject) -> None:
        folder = self._repository(subject)
        if not folder.exists():
            repository.write_many(folder, self._models)
        self.measure(subject, 0)

    def measure(self, subject: Subject, seconds: int) -> Figures:
        log = subject.workspace / f"{subject.program.name}-start.log"
        with Server(subject.program, self._repository(subject), log) as server:
            return {START: server.start_ms}

    def _repository(self, subject: Subject) -> Path:
        return subject.workspace / f"start_{self._models}"


def measure_idle(servers: Sequence[Server]) -> dict[str, Figures]:
    """Processor time that waiting costs, of all `servers` at the same time, by their names."""
    trees: dict[str, ProcessTree] = {server.name: server.processes() for server in servers}
    before = {name: tree.cpu_seconds() for name, tree in trees.items()}
    time.sleep(IDLE_S)
    return {name: {IDLE_CPU: (tree.cpu_seconds() - before[name]) / IDLE_S * 100} for name, tree in trees.items()}


def measure_memory(server: Server) -> Figures:
    memory = server.processes().memory()
    return {
        PARENT_RSS: memory.parent_rss,
        STUB_RSS: memory.stub_rss,
        USS: memory.total_uss,
        PSS: memory.total_pss,
    }


def figures_of(load: Load) -> Figures:
    return {RATE: load.requests_per_s, P50: load.p50_us, P99: load.p99_us}


def executions(stats: dict[str, object]) -> tuple[int, int]:
    """How many inferences and how many executions a model's statistics count."""
    models = stats["model_stats"]
    assert isinstance(models, list)
    return models[0]["inference_count"], models[0]["execution_count"]


def all_workloads() -> list[Workload]:
    """Every workload in the table's order, less those whose tool is missing."""
    small = payloads.numbers("identity_fp32", 16)
    found: list[Workload] = []
    if wrk.available():
        found += [
            WrkLoad("16 floats", small, 1),
            WrkLoad("16 floats", small, 16, count_cpu=True),
            WrkLoad("16 floats", small, 64),
            WrkLoad("256 floats as JSON", payloads.json_numbers("identity_fp32", 256), 16),
            WrkLoad("1000 strings", payloads.strings("identity_bytes", 1000), 16),
            WrkLoad("1 MiB", payloads.numbers("identity_fp32", 1 << 18), 4),
            WrkLoad("4 MiB", payloads.numbers("identity_fp32", 1 << 20), 1),
            WrkLoad("4 MiB", payloads.numbers("identity_fp32", 1 << 20), 4),
            WrkLoad("16 MiB", payloads.numbers("identity_fp32", 1 << 22), 2),
            BatchedLoad("dynamic batching, 4 instances of 2 ms", payloads.numbers("sleep_2ms", 16), 64),
        ]
    return [*found, AnalyzerLoad(16), StartUp(1), StartUp(20)]
