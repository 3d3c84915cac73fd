"""The workloads of requests that differ from one another. See `varied` for what is sent.

The models are served by copies of the server that only these rows use, so that they do not count in the rows about
memory. Every request of a pool is sent once and its answer looked at before any figure is taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property

from . import load_client, varied_models, wrk
from .load_client import Order
from .servers import Program, Server
from .streaming import grpc_stub
from .varied import VariedCall, VariedRequest, Variety
from .workloads import Figures, Subject, figures_with_cpu

Make = Callable[[Variety], VariedRequest]


def all_loads(installed: bool = True) -> list[VariedLoad | VariedGrpcLoad]:
    """Every workload of them, in the order of the table. With `installed`, only those that have their tools here."""
    found: list[VariedLoad | VariedGrpcLoad] = []
    if wrk.available() or not installed:
        found += [
            VariedLoad("binary", 1, lambda variety: variety.binary("mixed")),
            VariedLoad("binary", 16, lambda variety: variety.binary("mixed")),
            VariedLoad("numbers as JSON", 16, lambda variety: variety.json_numbers("numbers")),
            VariedLoad("one text as JSON", 16, lambda variety: variety.json_texts("texts", 1)),
            VariedLoad("32 texts as JSON", 16, lambda variety: variety.json_texts("texts", 32)),
            VariedLoad("booleans and integers as JSON", 16, lambda variety: variety.json_flags("flags")),
            VariedLoad("generate, text in and out", 16, lambda variety: variety.generate("texts")),
            VariedLoad("one call of another model", 8, lambda variety: variety.floats("ask")),
            VariedLoad("chain of 3 calling models", 8, lambda variety: variety.floats("ask_3")),
            SpreadLoad(),
        ]
    return [*found, VariedGrpcLoad()]


class VariedLoad:
    """A pool of requests that wrk sends in turn over `connections` connections."""

    large = False

    def __init__(self, name: str, connections: int, make: Make) -> None:
        self.name = f"varied {name}, {connections} connection{'s'[: connections > 1]}"
        self._connections = connections
        self._make = make

    def serves(self, program: Program) -> bool:
        return program.kserve

    @cached_property
    def requests(self) -> list[VariedRequest]:
        """The pool."""
        variety = Variety()
        return variety.pool(lambda: self._make(variety))

    def prepare(self, subject: Subject) -> None:
        server = self.server(subject)
        for request in self.requests:
            request.send(server.http_port)
        self._load(subject, server, 1)

    def measure(self, subject: Subject, seconds: int) -> Figures:
        server = self.server(subject)
        return figures_with_cpu(server, lambda: self._load(subject, server, seconds))

    def server(self, subject: Subject) -> Server:
        return subject.serving("varied", varied_models.write_varied)

    def _load(self, subject: Subject, server: Server, seconds: int) -> wrk.Load:
        script = subject.workspace / (re.sub(r"\W+", "_", self.name) + ".lua")
        if not script.exists():
            wrk.write_verbatim(script, [request.raw for request in self.requests])
        return wrk.run_script(server.http_port, script, self._connections, seconds)


class SpreadLoad(VariedLoad):
    """The requests go to twenty models, each to another."""

    def __init__(self) -> None:
        super().__init__(
            "binary to 20 models", 64, lambda variety: variety.floats(variety.one_of(varied_models.TWENTY))
        )

    def server(self, subject: Subject) -> Server:
        return subject.serving("twenty", varied_models.write_twenty)


class VariedGrpcLoad:
    """Unary calls with raw contents."""

    name = "varied gRPC, 16 connections"
    large = False

    def serves(self, program: Program) -> bool:
        return program.kserve

    @cached_property
    def calls(self) -> list[VariedCall]:
        """The pool."""
        variety = Variety()
        return variety.pool(lambda: variety.grpc("mixed"))

    @cached_property
    def order(self) -> Order:
        return Order.grpc("ModelInfer", [call.request.SerializeToString() for call in self.calls], 16, shortest=16)

    def prepare(self, subject: Subject) -> None:
        server = self.server(subject)
        with grpc_stub(server) as stub:
            for call in self.calls:
                call.check(stub.ModelInfer(call.request, timeout=60))
        load_client.run(server.grpc_port, self.order, 1)

    def measure(self, subject: Subject, seconds: int) -> Figures:
        server = self.server(subject)
        return figures_with_cpu(server, lambda: load_client.run(server.grpc_port, self.order, seconds))

    def server(self, subject: Subject) -> Server:
        return subject.serving("varied", varied_models.write_varied)
