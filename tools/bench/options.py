"""What the response cache gives a small request, and what the rate limiter costs it, beside real Triton's.

Each has copies of the servers of its own.
"""

from __future__ import annotations

from . import cached, load_client, payloads, wrk
from .load_client import Order
from .payloads import Form, Payload, Sample, WrongAnswerError
from .servers import Server
from .streaming import KServeOnly, grpc_stub, plural, service_pb2
from .workloads import Figures, Subject, figures_of, figures_with_cpu
from .wrk import Load

CONNECTIONS = 16
_REQUESTS = 2000
_SAMPLE = Sample("identity_fp32", Form.FLOATS, 16, CONNECTIONS)


class CachedLoad(KServeOnly):
    """Hits of the response cache, all of one request; with `ids` each has another id than the one before."""

    large = False

    def __init__(self, ids: bool) -> None:
        self._ids = ids
        self.name = f"cache hits{', other ids' if ids else ''}, {plural(CONNECTIONS, 'connection')}"

    def prepare(self, subject: Subject) -> None:
        server = _cached(subject)
        with server.awake():
            payloads.send(server.http_port, payloads.kserve(_SAMPLE))
            self._load(subject, server, 1)

    def measure(self, subject: Subject, seconds: int) -> Figures:
        server = _cached(subject)
        with server.awake():
            return figures_with_cpu(server, lambda: self._load(subject, server, seconds))

    def _load(self, subject: Subject, server: Server, seconds: int) -> Load:
        payload = payloads.kserve(_SAMPLE)
        script = subject.workspace / f"cached_{self._ids}.lua"
        if not script.exists() and self._ids:
            wrk.write_verbatim(script, [cached.with_id(payload, number) for number in range(_REQUESTS)])
        elif not script.exists():
            wrk.write_script(script, payload)
        return wrk.run(server.http_port, script, payload, CONNECTIONS, seconds)


class CachedGrpcLoad(KServeOnly):
    """The same over gRPC."""

    large = False
    name = f"cache hits, gRPC, {plural(CONNECTIONS, 'connection')}"

    def prepare(self, subject: Subject) -> None:
        server = _cached(subject)
        with server.awake():
            with grpc_stub(server) as stub:
                answer = stub.ModelInfer(_message(), timeout=60)
            if list(answer.raw_output_contents) != list(_message().raw_input_contents):
                raise WrongAnswerError(f"{self.name}: the answer is not what was sent")
            self._load(server, 1)

    def measure(self, subject: Subject, seconds: int) -> Figures:
        server = _cached(subject)
        with server.awake():
            return figures_with_cpu(server, lambda: self._load(server, seconds))

    def _load(self, server: Server, seconds: int) -> Load:
        order = Order.grpc("ModelInfer", [_message().SerializeToString()], CONNECTIONS, shortest=64)
        return load_client.run(server.grpc_port, order, seconds)


class LimitedLoad(KServeOnly):
    """A model that asks for a resource, alone."""

    large = False
    name = f"rate limiter, {plural(CONNECTIONS, 'connection')}"

    def prepare(self, subject: Subject) -> None:
        server = self._server(subject)
        with server.awake():
            payloads.send(server.http_port, payloads.kserve(_SAMPLE))
            _run(subject, server, payloads.kserve(_SAMPLE), 1)

    def measure(self, subject: Subject, seconds: int) -> Figures:
        server = self._server(subject)
        with server.awake():
            return figures_of(_run(subject, server, payloads.kserve(_SAMPLE), seconds))

    def _server(self, subject: Subject) -> Server:
        flags = ("--rate-limit=execution_count",)
        return subject.serving("limited", lambda folder: cached.write_models(folder, cached.LIMIT), flags)


def _cached(subject: Subject) -> Server:
    flags = ("--cache-config=local,size=67108864", *subject.program.cache_flags)
    return subject.serving("cached", lambda folder: cached.write_models(folder, cached.CACHE), flags)


def _run(subject: Subject, server: Server, payload: Payload, seconds: int) -> Load:
    script = subject.workspace / "limited.lua"
    if not script.exists():
        wrk.write_script(script, payload)
    return wrk.run(server.http_port, script, payload, CONNECTIONS, seconds)


def _message() -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name="identity_fp32")
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 16])
    request.raw_input_contents.append(payloads.float_bytes(16))
    return request


def all_loads() -> list[CachedLoad | CachedGrpcLoad | LimitedLoad]:
    return [CachedLoad(False), CachedLoad(True), CachedGrpcLoad(), LimitedLoad()]
