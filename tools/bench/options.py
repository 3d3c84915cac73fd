"""What options cost a small request: the response cache and the rate limiter beside real Triton's, and tracing, access
and TLS beside the same server without them.

Each option has copies of the servers of its own. Where a server is compared with itself the two are measured by turns
within a round, because a per cent is less than what a machine changes by between rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from . import cached, load_client, payloads, wrk
from .load_client import Order
from .payloads import Form, Payload, Sample, WrongAnswerError
from .servers import Program, Server
from .streaming import KServeOnly, grpc_stub, plural, service_pb2
from .workloads import Figures, Metric, Subject, figures_of, figures_with_cpu
from .wrk import Load

COST = Metric("CPU of the parent, % on top", False)
SHARE = Metric("requests/s, share of plain", True)

CONNECTIONS = 16
_REQUESTS = 2000
_TOKEN = "a-token-that-is-long-enough"
_SAMPLE = Sample("identity_fp32", Form.FLOATS, 16, CONNECTIONS)
_GUARDED = "metadata,inference,model-repository,logging"


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


class OptionCost(KServeOnly):
    """A server with flags beside the same without; `own_heads` says that each request has a head of its own.

    `flags` makes them; what files they need it puts into the folder that it is given.
    """

    large = False

    def __init__(
        self,
        name: str,
        repository: str,
        flags: Callable[[Path], tuple[str, ...]],
        own_heads: bool = False,
        tls: bool = False,
    ) -> None:
        self.name = f"cost of {name}"
        self._repository = repository
        self._flags = flags
        self._own_heads = own_heads
        self._tls = tls

    def serves(self, program: Program) -> bool:
        return super().serves(program) and program.name != "triton"

    def prepare(self, subject: Subject) -> None:
        for server in self._servers(subject):
            with server.awake():
                self._load(subject, server, 1)

    def measure(self, subject: Subject, seconds: int) -> Figures:
        servers = self._servers(subject)
        # Of each server: processor seconds, and requests per second
        spent: tuple[list[float], list[float]] = ([], [])
        rates: tuple[list[float], list[float]] = ([], [])
        for which in (0, 1, 1, 0):
            server = servers[which]
            with server.awake():
                processes = server.processes()
                before = processes.parent_cpu_seconds()
                load = self._load(subject, server, max(1, seconds // 2))
                spent[which].append((processes.parent_cpu_seconds() - before) / load.requests)
                rates[which].append(load.requests_per_s)
        if self._tls:
            return {SHARE: sum(rates[1]) / sum(rates[0])}
        return {COST: (sum(spent[1]) / sum(spent[0]) - 1) * 100}

    def _servers(self, subject: Subject) -> tuple[Server, Server]:
        return (
            subject.serving("plain", _write_plain),
            subject.serving(self._repository, _write_plain, self._flags(subject.workspace)),
        )

    def _load(self, subject: Subject, server: Server, seconds: int) -> Load:
        secure = self._tls and server is self._servers(subject)[1]
        sample = payloads.kserve(_SAMPLE)
        headers = {"Authorization": f"Bearer {_TOKEN}", "X-Key": "sesame"}
        payload = Payload(sample.model, {**sample.headers, **headers}, sample.body, sample.echo)
        script = subject.workspace / f"option_{self._own_heads}.lua"
        if not script.exists() and self._own_heads:
            wrk.write_verbatim(script, [_with_own_head(payload, number) for number in range(_REQUESTS)])
        elif not script.exists():
            wrk.write_script(script, payload)
        return wrk.run(server.http_port, script, payload, CONNECTIONS, seconds, "https" if secure else "http")


def _write_plain(folder: Path) -> None:
    cached.write_models(folder, "")


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


def _with_own_head(payload: Payload, number: int) -> bytes:
    headers = {**payload.headers, "X-Number": f"{number:06d}", "Content-Length": str(len(payload.body))}
    lines = "".join(f"{key}: {value}\r\n" for key, value in headers.items())
    return f"POST {payload.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{lines}\r\n".encode() + payload.body


def _tracing(folder: Path) -> tuple[str, ...]:
    file = f"triton,file={folder / 'trace.json'}"
    return ("--trace-config=mode=triton", "--trace-config=level=TIMESTAMPS", "--trace-config=rate=100",
            f"--trace-config={file}")  # fmt: skip


def _access(folder: Path) -> tuple[str, ...]:
    tokens = folder / "tokens"
    tokens.write_text(f"{_TOKEN}\n")
    return (
        f"--auth-token-file={tokens}",
        "--auth-open-api=health",
        f"--http-restricted-api={_GUARDED}:X-Key=sesame",
        "--max-connections=1000",
    )


def _tls(folder: Path) -> tuple[str, ...]:
    import trustme

    certificate = trustme.CA().issue_cert("127.0.0.1")
    key, cert = folder / "key.pem", folder / "cert.pem"
    certificate.private_key_pem.write_to_path(str(key))
    certificate.cert_chain_pems[0].write_to_path(str(cert))
    return "--http-use-ssl=true", f"--http-server-cert={cert}", f"--http-server-key={key}"


def all_loads() -> list[CachedLoad | CachedGrpcLoad | LimitedLoad | OptionCost]:
    return [
        CachedLoad(False),
        CachedLoad(True),
        CachedGrpcLoad(),
        LimitedLoad(),
        OptionCost("tracing at 1 %", "traced", _tracing),
        OptionCost("tokens, restricted APIs and limits", "guarded", _access),
        OptionCost("tokens, restricted APIs and limits, heads differ", "guarded", _access, own_heads=True),
        OptionCost("TLS", "tls", _tls, tls=True),
    ]
