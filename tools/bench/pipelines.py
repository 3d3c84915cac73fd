"""Ensembles of identity models: a chain of three, and one that hands its tensor to four and adds what they answer.

No request is like the one before: ids and values differ, so nothing that a server remembers of a whole request helps.
The models are served by a copy of the server that only these rows use (`Subject.serving`), so that they do not count in
the rows about memory.
"""

from __future__ import annotations

import re
from functools import cached_property

from . import bulk, payloads, repository, wrk
from .payloads import Payload
from .servers import Program, Server
from .workloads import CPU, P50, Figures, Metric, Subject, figures_with_cpu
from .wrk import Load

STEP_P50 = Metric("µs that one more step takes (p50)", False)
STEP_CPU = Metric("µs of processor time that one more step takes", False)

# How many different requests there are, of small and of large tensors
SMALL_KINDS, LARGE_KINDS = 64, 4
SMALL = 1 << 12


class Pipelines:
    """A workload of ensembles."""

    large = False

    def serves(self, program: Program) -> bool:
        return program.kserve

    def server(self, subject: Subject) -> Server:
        return subject.serving("pipelines", repository.write_pipelines)


class PipelineLoad(Pipelines):
    """Requests to `model`, whose answer is `factor` times what it is sent."""

    def __init__(self, name: str, model: str, count: int, connections: int, factor: int = 1) -> None:
        self.name = f"ensemble {name}, {connections} connection{'s'[: connections > 1]}"
        self.large = count > SMALL
        self._requests = Requests(model, count, factor)
        self._connections = connections

    def prepare(self, subject: Subject) -> None:
        server = self.server(subject)
        self._requests.check(server)
        self._requests.load(subject, server, self._connections, 1)

    def measure(self, subject: Subject, seconds: int) -> Figures:
        return self._requests.measure(subject, self.server(subject), self._connections, seconds)


class StepCost(Pipelines):
    """What one more step costs a lone client: chains of two and of three in turn."""

    name = "ensemble, one step more, 1 connection"

    def __init__(self) -> None:
        self._chains = [Requests("chain_2", 16), Requests("chain_3", 16)]

    def prepare(self, subject: Subject) -> None:
        for chain in self._chains:
            chain.check(self.server(subject))
            chain.load(subject, self.server(subject), 1, 1)

    def measure(self, subject: Subject, seconds: int) -> Figures:
        two, three = (chain.measure(subject, self.server(subject), 1, seconds) for chain in self._chains)
        return {STEP_P50: three[P50] - two[P50], STEP_CPU: (three[CPU] - two[CPU]) * 1000}


class Requests:
    """Different requests for one ensemble, and how they are sent."""

    def __init__(self, model: str, count: int, factor: int = 1) -> None:
        self._model = model
        self._count = count
        self._factor = factor

    @cached_property
    def payloads(self) -> list[Payload]:
        kinds = SMALL_KINDS if self._count <= SMALL else LARGE_KINDS
        return [payloads.distinct(self._model, self._count, number, self._factor) for number in range(kinds)]

    def check(self, server: Server) -> None:
        """Raises WrongAnswerError unless each is answered as it must be."""
        for payload in self.payloads:
            payloads.send(server.http_port, payload)

    def measure(self, subject: Subject, server: Server, connections: int, seconds: int) -> Figures:
        return figures_with_cpu(server, lambda: self.load(subject, server, connections, seconds))

    def load(self, subject: Subject, server: Server, connections: int, seconds: int) -> Load:
        first, *others = self.payloads
        if self._count > SMALL:
            return bulk.run(server.http_port, first, connections, seconds, others)
        script = subject.workspace / (re.sub(r"\W+", "_", f"{self._model} {self._count}") + ".lua")
        if not script.exists():
            wrk.write_script(script, first, *others)
        return wrk.run(server.http_port, script, first, connections, seconds)
