"""The workloads of sequences: 256 of them live at a time, over four instances, with ids of all kinds.

Their steps are sent in turn, the first of each, then the second, and so on: between two of the same sequence lie 255
requests of others, so that no more than 64 connections bring them in order. Sums are looked at before any figure is
taken: over gRPC every one.
"""

from __future__ import annotations

from functools import cached_property

from tritonclient.grpc import service_pb2

from . import load_client, wrk
from .load_client import Order
from .payloads import WrongAnswerError
from .sequence_models import write_sequences
from .servers import Program, Server
from .streaming import grpc_stub
from .varied import Step, VariedRequest, Variety
from .workloads import BATCH, Figures, Subject, executions, figures_with_cpu

LIVE = 256
STEPS = 16
CONNECTIONS = 64


def all_loads(installed: bool = True) -> list[SequenceLoad]:
    """Every workload of them, in the order of the table. With `installed`, only those that have their tools here."""
    models = {"direct": True, "oldest": False}
    found: list[SequenceLoad] = []
    if wrk.available() or not installed:
        found += [HttpSequences(model, texts) for model, texts in models.items()]
    return [*found, *(StreamedSequences(model, texts) for model, texts in models.items())]


class SequenceLoad:
    """A pool of steps for a model; half of the ids are `texts` where it takes them."""

    large = False
    way = ""

    def __init__(self, model: str, texts: bool) -> None:
        self.name = f"sequences, {model}, {self.way}"
        self.model = model
        self._texts = texts

    def serves(self, program: Program) -> bool:
        return program.kserve

    @cached_property
    def steps(self) -> list[Step]:
        """The pool."""
        variety = Variety()
        ids = variety.sequence_ids(LIVE, self._texts)
        sums = dict.fromkeys(ids, 0)
        found = []
        for number in range(STEPS):
            for sequence in ids:
                step = variety.step(sequence, number == 0, number == STEPS - 1, sums[sequence])
                sums[sequence] = step.sum
                found.append(step)
        return found

    @cached_property
    def messages(self) -> list[service_pb2.ModelInferRequest]:
        """The pool for gRPC."""
        variety = Variety()
        return [variety.streamed_step(self.model, step) for step in self.steps]

    def prepare(self, subject: Subject) -> None:
        server = self.server(subject)
        self._check(server)
        self._begin_all(server)
        self._load(subject, server, 1)

    def measure(self, subject: Subject, seconds: int) -> Figures:
        server = self.server(subject)
        self._begin_all(server)
        path = f"/v2/models/{self.model}/stats"
        before = executions(server.get(path))
        figures = figures_with_cpu(server, lambda: self._load(subject, server, seconds))
        inferences, batches = (b - a for a, b in zip(before, executions(server.get(path)), strict=True))
        return {**figures, BATCH: inferences / batches}

    def server(self, subject: Subject) -> Server:
        return subject.serving("sequences", write_sequences)

    def _begin_all(self, server: Server) -> None:
        """Has all sequences under way: connections that are accepted late may bring the first steps behind others."""
        with grpc_stub(server) as stub:
            for answer in stub.ModelStreamInfer(iter(self.messages[:LIVE]), timeout=60):
                if answer.error_message:
                    raise WrongAnswerError(answer.error_message)

    def _check(self, server: Server) -> None:
        raise NotImplementedError

    def _load(self, subject: Subject, server: Server, seconds: int) -> wrk.Load:
        raise NotImplementedError


class HttpSequences(SequenceLoad):
    """Over HTTP, in the binary form."""

    way = f"HTTP, {CONNECTIONS} connections"

    @cached_property
    def requests(self) -> list[VariedRequest]:
        variety = Variety()
        return [variety.posted_step(self.model, step) for step in self.steps]

    def _check(self, server: Server) -> None:
        # One whole sequence: one by one, and with places for 63 others, all would take minutes.
        for request in self.requests[::LIVE]:
            request.send(server.http_port)

    def _load(self, subject: Subject, server: Server, seconds: int) -> wrk.Load:
        script = subject.workspace / f"sequences_{self.model}.lua"
        if not script.exists():
            # wrk asks its script for one request that it does not send: the end of a sequence that has not begun.
            wrk.write_verbatim(script, [request.raw for request in (self.requests[-1], *self.requests[:-1])])
        return wrk.run_script(server.http_port, script, CONNECTIONS, seconds)


class StreamedSequences(SequenceLoad):
    """Over gRPC, one stream for each connection."""

    way = f"{CONNECTIONS} gRPC streams"

    @cached_property
    def order(self) -> Order:
        messages = [message.SerializeToString() for message in self.messages]
        return Order.grpc("ModelStreamInfer", messages, CONNECTIONS, shortest=4, per_request=1)

    def _check(self, server: Server) -> None:
        with grpc_stub(server) as stub:
            answers = list(stub.ModelStreamInfer(iter(self.messages), timeout=60))
        # Those of one stream come as they are there; of one sequence they are in order.
        found: dict[str, bytes] = {}
        for answer in answers:
            if answer.error_message:
                raise WrongAnswerError(answer.error_message)
            found[answer.infer_response.id] = answer.infer_response.raw_output_contents[0]
        for message, step in zip(self.messages, self.steps, strict=True):
            if found.get(message.id) != step.output.raw:
                raise WrongAnswerError(f"{found.get(message.id)!r} is not the sum after {step}")

    def _load(self, subject: Subject, server: Server, seconds: int) -> wrk.Load:
        return load_client.run(server.grpc_port, self.order, seconds)
