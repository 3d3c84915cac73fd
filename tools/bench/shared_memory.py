"""Clients that share memory with the server: 4 MiB in and out that are named, and not sent.

What is left to be sent is a few hundred bytes, so the client is light, and what a request costs is the server's. Each
server is a copy that serves this alone, because stubserve allows it by a flag.
"""

from __future__ import annotations

import http.client
import json
import os
import uuid
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from . import bulk, load_client, perf_analyzer, repository
from .load_client import Order
from .payloads import Payload, WrongAnswerError
from .servers import Server
from .streaming import KServeOnly, grpc_stub, plural, service_pb2
from .workloads import Figures, Subject, figures_of

MODEL = "identity_fp32"
REPOSITORY = "shared_memory"
COUNT = 1 << 20
NBYTES = 4 * COUNT


def _write(folder: Path) -> None:
    repository.write_model(folder, MODEL)


def _server(subject: Subject) -> Server:
    return subject.serving(REPOSITORY, _write, subject.program.region_flags)


class AnalyzerRegionLoad(KServeOnly):
    """perf_analyzer with --shared-memory=system."""

    large = True

    def __init__(self, protocol: str, concurrency: int) -> None:
        self.name = f"shared memory, perf_analyzer {protocol}, 4 MiB, {concurrency} in flight"
        self._protocol = protocol
        self._concurrency = concurrency

    def prepare(self, subject: Subject) -> None:
        with _server(subject).awake():
            self._run(subject, 1)

    def measure(self, subject: Subject, seconds: int) -> Figures:
        with _server(subject).awake():
            return self._run(subject, seconds)

    def _run(self, subject: Subject, seconds: int) -> Figures:
        server = _server(subject)
        port = server.http_port if self._protocol == "HTTP" else server.grpc_port
        more = ["-i", self._protocol.lower(), "--shared-memory", "system"]
        more += ["--output-shared-memory-size", str(NBYTES)]
        report = subject.workspace / "perf_analyzer.csv"
        shape = f"INPUT0:{COUNT}"
        return figures_of(perf_analyzer.run(port, MODEL, shape, self._concurrency, seconds, report, more))


class RegionLoad(KServeOnly):
    """A light client. Each server has two files in /dev/shm, for what goes in and what comes out (`files`)."""

    large = True

    def __init__(self, protocol: str, connections: int, files: dict[str, _Files]) -> None:
        self.name = f"shared memory, {protocol}, 4 MiB, {plural(connections, 'connection')}"
        self._protocol = protocol
        self._connections = connections
        self._files = files

    def prepare(self, subject: Subject) -> None:
        server = _server(subject)
        with server.awake():
            files = self._files.get(server.name)
            if files is None:
                files = self._files[server.name] = _Files(server, subject.stack)
            files.register()
            if self._protocol == "HTTP":
                _post(server, _payload().path, _payload().body)
            else:
                with grpc_stub(server) as stub:
                    stub.ModelInfer(_message(), timeout=60)
            files.check()
            self._run(server, 1)

    def measure(self, subject: Subject, seconds: int) -> Figures:
        server = _server(subject)
        with server.awake():
            self._files[server.name].register()
            figures = self._run(server, seconds)
        self._files[server.name].check()
        return figures

    def _run(self, server: Server, seconds: int) -> Figures:
        if self._protocol == "HTTP":
            return figures_of(bulk.run(server.http_port, _payload(), self._connections, seconds))
        order = Order.grpc("ModelInfer", [_message().SerializeToString()], self._connections, shortest=1)
        return figures_of(load_client.run(server.grpc_port, order, seconds))


class _Files:
    """The files of one server; they go with `stack`."""

    def __init__(self, server: Server, stack: ExitStack) -> None:
        self._paths = {}
        for name in "given", "wanted":
            path = self._paths[name] = Path(f"/dev/shm/stubserve-bench-{name}-{uuid.uuid4().hex}")
            path.write_bytes(np.arange(COUNT, dtype=np.float32).tobytes())
            stack.callback(path.unlink, missing_ok=True)
            os.chmod(path, 0o600)
        self._server = server

    def register(self) -> None:
        """Before each load: perf_analyzer unregisters all that there is."""
        for name, path in self._paths.items():
            _post(self._server, f"/v2/systemsharedmemory/region/{name}/unregister", b"")
            body = json.dumps({"key": f"/{path.name}", "byte_size": NBYTES}).encode()
            _post(self._server, f"/v2/systemsharedmemory/region/{name}/register", body)
        self._clear()

    def _clear(self) -> None:
        with self._paths["wanted"].open("r+b") as file:
            file.write(bytes(NBYTES))

    def check(self) -> None:
        if self._paths["wanted"].read_bytes() != self._paths["given"].read_bytes():
            raise WrongAnswerError(
                "what the server has written into the client's shared memory is not what it was given"
            )


def _place(region: str) -> dict[str, object]:
    return {"shared_memory_region": region, "shared_memory_byte_size": NBYTES}


def _payload() -> Payload:
    document = {
        "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, COUNT], "parameters": _place("given")}],
        "outputs": [{"name": "OUTPUT0", "parameters": _place("wanted")}],
    }
    return Payload(MODEL, {}, json.dumps(document).encode(), b"")


def _message() -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name=MODEL)
    tensors = (
        request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, COUNT]),
        request.outputs.add(name="OUTPUT0"),
    )
    for tensor, region in zip(tensors, ("given", "wanted"), strict=True):
        tensor.parameters["shared_memory_region"].string_param = region
        tensor.parameters["shared_memory_byte_size"].int64_param = NBYTES
    return request


def _post(server: Server, path: str, body: bytes) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    try:
        connection.request("POST", path, body)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise WrongAnswerError(f"{path}: {answer.status} {text[:300]!r}")
    finally:
        connection.close()


def all_loads() -> list[AnalyzerRegionLoad | RegionLoad]:
    files: dict[str, _Files] = {}
    return [
        AnalyzerRegionLoad("HTTP", 4),
        AnalyzerRegionLoad("gRPC", 4),
        RegionLoad("HTTP", 1, files),
        RegionLoad("HTTP", 4, files),
        RegionLoad("gRPC", 4, files),
    ]
