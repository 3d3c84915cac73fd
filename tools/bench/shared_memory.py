"""Clients that share memory with the server: 4 MiB in and out that are named, and not sent.

What is left to be sent is a few hundred bytes, so the client is light, and what a request costs is the server's. Each
server is a copy that serves this alone, because stubserve allows it by a flag.

The rows of 1080p frames are what a program in Python has of it, client included: with `stubserve.client`, and with
tritonclient over the wire.
"""

from __future__ import annotations

import http.client
import json
import os
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http

from stubserve.client import Client

from . import bulk, load_client, perf_analyzer, repository
from .load_client import Order
from .payloads import Payload, WrongAnswerError
from .servers import Server
from .streaming import KServeOnly, grpc_stub, plural, service_pb2
from .workloads import Figures, Subject, figures_of
from .wrk import Load

MODEL = "identity_fp32"
REPOSITORY = "shared_memory"
COUNT = 1 << 20
NBYTES = 4 * COUNT
FRAMES = "frames"
FRAME = (1080, 1920, 3)


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


class FrameLoad(KServeOnly):
    """One client in Python that writes a frame and has it back, one after the other: by the pool, or over the wire."""

    large = True

    def __init__(self, protocol: str, pooled: bool) -> None:
        self.name = f"1080p frames, {protocol} client in Python, {'by the pool' if pooled else 'over the wire'}"
        self._protocol = protocol
        self._pooled = pooled

    def prepare(self, subject: Subject) -> None:
        self.measure(subject, 1)

    def measure(self, subject: Subject, seconds: int) -> Figures:
        server = subject.serving(FRAMES, _write_frames, subject.program.region_flags)
        with server.awake():
            return figures_of(self._by_pool(server, seconds) if self._pooled else self._by_wire(server, seconds))

    def _by_pool(self, server: Server, seconds: int) -> Load:
        scheme, port = self._protocol.lower(), self._port(server)
        source = np.random.default_rng(0).integers(0, 256, FRAME, np.uint8)
        with Client(f"{scheme}://127.0.0.1:{port}") as client:

            def ask() -> np.ndarray:
                with client.frame(FRAME, np.uint8) as frame:
                    frame[:] = source
                    return client.infer(FRAMES, {"INPUT0": frame})["OUTPUT0"]

            load = _timed(ask, source, seconds)
            if client.statistics().by_wire is not None:
                raise WrongAnswerError(f"frames went over the wire: {client.statistics().by_wire}")
            return load

    def _by_wire(self, server: Server, seconds: int) -> Load:
        module: Any = tritonclient.http if self._protocol == "HTTP" else tritonclient.grpc
        source = np.random.default_rng(0).integers(0, 256, FRAME, np.uint8)
        frame = np.empty(FRAME, np.uint8)
        with module.InferenceServerClient(f"127.0.0.1:{self._port(server)}") as client:

            def ask() -> np.ndarray:
                frame[:] = source
                given = module.InferInput("INPUT0", list(FRAME), "UINT8")
                given.set_data_from_numpy(frame)
                answer: np.ndarray = client.infer(FRAMES, [given]).as_numpy("OUTPUT0")
                return answer

            return _timed(ask, source, seconds)

    def _port(self, server: Server) -> int:
        return server.http_port if self._protocol == "HTTP" else server.grpc_port


def _timed(ask: Callable[[], np.ndarray], right: np.ndarray, seconds: int) -> Load:
    """Asks for so long; the first and the last answer are looked at."""
    if not np.array_equal(ask(), right):
        raise WrongAnswerError("the frame has come back as another one")
    took = []
    begin = now = time.perf_counter()
    while now - begin < seconds:
        answer = ask()
        took.append(-now + (now := time.perf_counter()))
    if not np.array_equal(answer, right):
        raise WrongAnswerError("the last frame has come back as another one")
    p50, p99 = np.percentile(took, [50, 99]) * 1e6
    return Load(len(took), len(took) / (now - begin), float(p50), float(p99))


def _write_frames(folder: Path) -> None:
    dims = f"data_type: TYPE_UINT8 dims: {list(FRAME)}"
    config = f'backend: "python"\ninput [ {{ name: "INPUT0" {dims} }} ]\noutput [ {{ name: "OUTPUT0" {dims} }} ]\n'
    repository.write_configured(folder, FRAMES, repository.IDENTITY, config)


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


def all_loads() -> list[AnalyzerRegionLoad | RegionLoad | FrameLoad]:
    files: dict[str, _Files] = {}
    return [
        AnalyzerRegionLoad("HTTP", 4),
        AnalyzerRegionLoad("gRPC", 4),
        RegionLoad("HTTP", 1, files),
        RegionLoad("HTTP", 4, files),
        RegionLoad("gRPC", 4, files),
        *(FrameLoad(protocol, pooled) for protocol in ("HTTP", "gRPC") for pooled in (False, True)),
    ]
