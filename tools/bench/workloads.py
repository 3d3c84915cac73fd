"""What is measured: each workload takes one server and gives figures, each with its unit and its better direction."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from . import bulk, payloads, perf_analyzer, repository, wrk
from .payloads import Form, Sample
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
ANSWER = Metric("ms from exec to an answer", False)
IDLE_CPU = Metric("CPU % of a core", False)
PARENT_RSS = Metric("parent RSS MiB", False)
STUB_RSS = Metric("largest stub RSS MiB", False)
PARENT_ANON = Metric("parent RssAnon MiB", None)
STUB_ANON = Metric("largest stub RssAnon MiB", None)
USS = Metric("all processes USS MiB", False)
PSS = Metric("all processes PSS MiB", False)

Figures = dict[Metric, float]


@dataclass(frozen=True)
class Subject:
    """A server under measurement: its running copy, and how to start another.

    `beside` are further copies, by the repository that they serve. They are stopped with `stack`.
    """

    program: Program
    server: Server
    workspace: Path
    stack: ExitStack = field(default_factory=ExitStack)
    beside: dict[str, Server] = field(default_factory=dict)

    def serving(
        self,
        repository: str,
        write: Callable[[Path], None],
        flags: Sequence[str] = (),
        program: Program | None = None,
    ) -> Server:
        """The copy that serves this repository, started when it is first asked for. `write` fills a new folder.

        It is started with these `flags` besides, or it is another `program`.

        It sleeps as the first copy does; its memory and its start are nobody's row.
        """
        server = self.beside.get(repository)
        if server is None:
            folder = self.workspace / repository
            if not folder.exists():
                write(folder)
            program = program or self.program
            program = replace(program, arguments=(*program.arguments, *flags))
            server = Server(program, folder, self.workspace / f"{self.program.name}-{repository}.log")
            self.beside[repository] = self.stack.enter_context(server)
            server.sleep()
        return server


class Workload(Protocol):
    name: str
    large: bool

    def serves(self, program: Program) -> bool:
        """Whether `program` can run this at all."""

    def prepare(self, subject: Subject) -> None:
        """Checks the server's answers and brings it to its running temperature; raises if an answer is wrong."""

    def measure(self, subject: Subject, seconds: int) -> Figures:
        """Takes about `seconds`; raises LoadError or ServerError rather than give a doubtful figure."""


class WrkLoad:
    """A number of equal requests at a time, posted by wrk over as many connections."""

    large = False

    def __init__(
        self, name: str, model: str, count: int, connections: int, form: Form = Form.FLOATS, count_cpu: bool = False
    ) -> None:
        self.name = f"{name}, {connections} connection{'s'[: connections > 1]}"
        self._sample = Sample(model, form, count, connections)
        self._count_cpu = count_cpu

    def serves(self, program: Program) -> bool:
        return True

    def prepare(self, subject: Subject) -> None:
        with subject.server.awake():
            payloads.send(subject.server.http_port, subject.program.payload(self._sample))
            self._load(subject, 1)

    def measure(self, subject: Subject, seconds: int) -> Figures:
        with subject.server.awake():
            if self._count_cpu:
                return figures_with_cpu(subject.server, lambda: self._load(subject, seconds))
            return figures_of(self._load(subject, seconds))

    def _load(self, subject: Subject, seconds: int) -> Load:
        payload = subject.program.payload(self._sample)
        script = subject.workspace / (re.sub(r"\W+", "_", f"{subject.program.name} {self.name}") + ".lua")
        if not script.exists():
            wrk.write_script(script, payload)
        return wrk.run(subject.server.http_port, script, payload, self._sample.connections, seconds)


class BulkLoad(WrkLoad):
    """Large tensors, for which wrk is too heavy a client."""

    large = True

    def _load(self, subject: Subject, seconds: int) -> Load:
        payload = subject.program.payload(self._sample)
        return bulk.run(subject.server.http_port, payload, self._sample.connections, seconds)


class BatchedLoad(WrkLoad):
    """A wrk load that also tells how many requests the server put into a batch, where its statistics say so."""

    def measure(self, subject: Subject, seconds: int) -> Figures:
        if not subject.program.kserve:
            return super().measure(subject, seconds)
        path = f"/v2/models/{self._sample.model}/stats"
        before = executions(subject.server.get(path))
        figures = super().measure(subject, seconds)
        inferences, batches = (b - a for a, b in zip(before, executions(subject.server.get(path)), strict=True))
        return {**figures, BATCH: inferences / batches}


class AnalyzerLoad:
    """16 floats, sent by perf_analyzer at a fixed number of requests in flight."""

    large = False

    def __init__(self, concurrency: int) -> None:
        self.name = f"perf_analyzer, 16 floats, {concurrency} in flight"
        self._sample = Sample("identity_fp32", Form.FLOATS, 16, concurrency)

    def serves(self, program: Program) -> bool:
        return program.kserve

    def prepare(self, subject: Subject) -> None:
        payloads.send(subject.server.http_port, subject.program.payload(self._sample))

    def measure(self, subject: Subject, seconds: int) -> Figures:
        report = subject.workspace / "perf_analyzer.csv"
        port, sample = subject.server.http_port, self._sample
        return figures_of(perf_analyzer.run(port, sample.model, "INPUT0:16", sample.connections, seconds, report))


class StartUp:
    """A further copy of the server, started on a repository of `models` identity models and stopped again.

    The time to the first answer of its last model shows whether it was ready when it said so.
    """

    large = False

    def __init__(self, models: int) -> None:
        self.name = f"start with {models} model{'s'[: models > 1]}"
        self._models = models

    def serves(self, program: Program) -> bool:
        return True

    def prepare(self, subject: Subject) -> None:
        folder = self._repository(subject)
        if not folder.exists():
            repository.write_many(folder, self._models)
        self.measure(subject, 0)

    def measure(self, subject: Subject, seconds: int) -> Figures:
        log = subject.workspace / f"{subject.program.name}-start.log"
        with Server(subject.program, self._repository(subject), log) as server:
            # 64 connections: the route by the model's own name, the only one that rivals have for these models.
            sample = Sample(f"identity_{self._models - 1:02}", Form.FLOATS, 16, 64)
            begin = time.monotonic()
            payloads.send(server.http_port, subject.program.payload(sample))
            return {START: server.start_ms, ANSWER: server.start_ms + (time.monotonic() - begin) * 1000}

    def _repository(self, subject: Subject) -> Path:
        return subject.workspace / f"start_{self._models}"


def measure_idle(server: Server) -> Figures:
    """Processor time that waiting costs."""
    tree = server.processes()
    with server.awake():
        before = tree.cpu_seconds()
        time.sleep(IDLE_S)
        return {IDLE_CPU: (tree.cpu_seconds() - before) / IDLE_S * 100}


def measure_memory(server: Server) -> Figures:
    memory = server.processes().memory()
    figures = {PARENT_RSS: memory.parent_rss, PARENT_ANON: memory.parent_anon}
    if memory.stub_rss:
        figures |= {STUB_RSS: memory.stub_rss, STUB_ANON: memory.stub_anon}
    return figures | {USS: memory.total_uss, PSS: memory.total_pss}


def figures_of(load: Load) -> Figures:
    return {RATE: load.requests_per_s, P50: load.p50_us, P99: load.p99_us}


def figures_with_cpu(server: Server, measure: Callable[[], Load]) -> Figures:
    """The figures of a load, with the processor time that a server's processes took for it."""
    processes = server.processes()
    before = processes.cpu_seconds()
    load = measure()
    return {**figures_of(load), CPU: (processes.cpu_seconds() - before) / load.requests * 1000}


def executions(stats: dict[str, object]) -> tuple[int, int]:
    """How many inferences and how many executions a model's statistics count."""
    models = stats["model_stats"]
    assert isinstance(models, list)
    return models[0]["inference_count"], models[0]["execution_count"]
