"""Several processes take HTTP in: the same answers as from one, and none of them is needed by the others."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import itertools
import json
import os
import resource
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from tests.client_memory import SharedFile
from tests.real_server import PATIENCE_S, Answer, Serving, binary_request, eventually, io_config, write_model

SLOW = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        print("executing", flush=True)
        time.sleep(1.0)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
            for request in requests
        ]
"""
FAILING = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("not today")) for _ in requests]
"""
LARGE = np.arange(200_000, dtype=np.float32).reshape(1, -1)
RESHAPED = """
    backend: "python"
    max_batch_size: 4
    input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 2, 2 ] } } ]
    output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 2, 2 ] } } ]
"""

Ask = tuple[str, str, "bytes | None", dict[str, str]]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "identity", config=io_config(max_batch_size=8))
    write_model(repository, "strings", config=io_config("STRING", max_batch_size=8))
    write_model(repository, "reshaped", config=RESHAPED)
    write_model(repository, "failing", FAILING, io_config())
    write_model(repository, "slow", SLOW, io_config())
    write_model(repository, "streaming", config=io_config(extra="model_transaction_policy { decoupled: true }"))
    return repository


@pytest.fixture(scope="module")
def alone(repository: Path) -> Iterator[Serving]:
    with Serving(repository) as server:
        yield server


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Serving]:
    with Serving(repository, "--http-workers=2") as server:
        yield server


def workers(server: Serving) -> list[psutil.Process]:
    """The workers of a server that run."""
    found = []
    for child in psutil.Process(server.process.pid).children():
        with contextlib.suppress(psutil.Error):  # it may just have ended
            if "stubserve.ingress" in child.cmdline():
                found.append(child)
    return sorted(found, key=lambda one: one.pid)


def json_request(model: str, datatype: str, shape: list[int], data: object, **more: object) -> Ask:
    item = {"name": "INPUT0", "datatype": datatype, "shape": shape, "data": data}
    return "POST", f"/v2/models/{model}/infer", json.dumps({"inputs": [item], **more}).encode(), {}


def binary(model: str, array: np.ndarray, **more: object) -> Ask:
    return "POST", *binary_request(model, array, **more)


def requests() -> Iterator[Ask]:
    """Requests of all kinds, right ones and wrong ones."""
    yield from (binary("identity", np.full((1, size), size, np.float32)) for size in (0, 1, 16, 3000, 16, 16, 16))
    yield binary("identity", LARGE)
    yield binary("identity", LARGE, id="large")
    yield json_request("identity", "FP32", [2, 3], [1, 2, 3, 4, 5, 6], id="seven")
    yield json_request("identity", "FP32", [1, 100_000], list(range(100_000)))
    yield json_request("identity", "FP32", [1, 4], [4, 1, 3, 2], outputs=[
        {"name": "OUTPUT0", "parameters": {"classification": 2}}])  # fmt: skip
    yield json_request("strings", "BYTES", [1, 32], [f"text {number}" for number in range(32)])
    yield json_request("strings", "BYTES", [1, 2], ["ä" * 9000, "\0"])
    yield json_request("reshaped", "FP32", [2, 4], list(range(8)))
    yield json_request("failing", "FP32", [1], [1])
    _, path, body, headers = binary("identity", LARGE)
    assert body is not None
    yield "POST", path, gzip.compress(body), {**headers, "Content-Encoding": "gzip", "Accept-Encoding": "gzip"}
    # Wrong ones
    yield json_request("reshaped", "FP32", [2, 2], list(range(4)))
    yield json_request("streaming", "FP32", [1], [1])
    yield json_request("unknown", "FP32", [1], [1])
    yield json_request("identity", "FP32", [1, 3], [1, 2])
    yield json_request("identity", "INT32", [1, 3], [1, 2, 3])
    yield json_request("identity", "FP32", [9, 1], [1] * 9)
    yield json_request("identity", "FP32", [1, 1], [1], outputs=[{"name": "OTHER"}])
    yield json_request("identity", "FP32", [1, 1], [1], parameters={"sequence_id": "a", "timeout": 1, "priority": 1})
    yield "POST", "/v2/models/identity/versions/2/infer", b"{}", {}
    yield "POST", "/v2/models/identity/infer", b"{", {}
    yield "POST", "/v2/models/identity/infer", body[:100], {"Inference-Header-Content-Length": "5000"}
    # The owner's
    yield "GET", "/v2", None, {}
    yield "GET", "/v2/health/ready", None, {}
    yield "GET", "/v2/models/identity", None, {}
    yield "GET", "/v2/models/identity/config", None, {}
    yield "POST", "/v2/repository/index", b"", {}
    yield "POST", "/v2/models/identity/load", b"", {}
    yield "POST", "/v2/models/identity/generate", b'{"INPUT0": [1.0, 2.0]}', {}
    yield "POST", "/v2/models/failing/generate_stream", b'{"INPUT0": 1.0}', {}
    yield "GET", "/v2/logging", None, {}
    yield "PUT", "/nowhere", b"x" * 100_000, {}


def answers(server: Serving) -> list[Answer]:
    """The answers to all requests on two connections that are open at once, twice each."""
    connections = [server.connect() for _ in range(2)]
    found = []
    for _ in range(2):
        for method, path, body, headers in requests():
            for connection in connections:
                connection.request(method, path, body, headers)
                response = connection.getresponse()
                found.append(Answer(response.status, dict(response.getheaders()), response.read()))
    for connection in connections:
        connection.close()
    return found


def test_answers_are_those_of_one_process(alone: Serving, server: Serving) -> None:
    expected, found = answers(alone), answers(server)
    assert len(workers(server)) == 2
    for one, other in zip(expected, found, strict=True):
        assert (other.status, other.headers, other.body) == (one.status, one.headers, one.body)
    for model in ("identity", "strings", "failing"):
        ours, theirs = server.statistics(model), alone.statistics(model)
        for name in ("inference_count",):
            assert ours[name] == theirs[name]
        for name in ("success", "fail", "queue", "compute_input"):
            assert ours["inference_stats"][name]["count"] == theirs["inference_stats"][name]["count"], name


class Way:
    """A way to ask one worker: a connection to it."""

    def __init__(self, server: Serving) -> None:
        self.connection = server.connect()
        self.connection.connect()
        self.port: int = self.connection.sock.getsockname()[1]

    def __call__(self, request: Ask) -> Answer:
        """Sends it in one piece: what comes in two may be the owner's, if only because the worker was quick."""
        method, path, body, headers = request
        sent = {"Host": "localhost", "Content-Length": str(len(body or b"")), **headers}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items()), "", ""]
        self.connection.sock.sendall("\r\n".join(lines).encode() + (body or b""))
        response = http.client.HTTPResponse(self.connection.sock, method=method)
        response.begin()
        return Answer(response.status, dict(response.getheaders()), response.read())


@contextlib.contextmanager
def each_worker(server: Serving) -> Iterator[list[Way]]:
    """Ways to ask each of two workers: connections are shared out evenly."""
    ways = [Way(server) for _ in range(2)]
    try:
        yield ways
    finally:
        for way in ways:
            way.connection.close()


def test_a_model_that_was_loaded_through_one_worker_is_there_for_the_other(tmp_path: Path) -> None:
    write_model(tmp_path, "model", config=io_config(dims="2"))
    with (
        Serving(tmp_path, "--http-workers=2", "--model-control-mode=explicit", "--load-model=*") as server,
        each_worker(server) as ways,
    ):
        two, three = (json_request("model", "FP32", [size], [1.0] * size) for size in (2, 3))
        load: Ask = "POST", "/v2/repository/models/model/load", b"", {}
        for dims, good, bad in (("2", two, three), ("3", three, two), ("2", two, three), ("3", three, two)):
            write_model(tmp_path, "model", config=io_config(dims=dims))
            assert ways[0](load).status == 200
            for ask in ways * 3:
                assert ask(good).status == 200
                assert "unexpected shape" in ask(bad).error
        assert ways[1](("POST", "/v2/repository/models/model/unload", b"", {})).status == 200
        for ask in ways:
            assert eventually(lambda ask=ask: ask(two).status == 404)


def test_a_worker_that_is_killed_takes_its_connections_with_it_and_nothing_else(server: Serving) -> None:
    before = eventually(lambda: len(workers(server)) == 2 and workers(server))
    path, body, headers = binary_request("identity", LARGE)
    counts = {"good": 0, "lost": 0}
    over = threading.Event()

    def client() -> None:
        connection = server.connect()
        while not over.is_set():
            try:
                connection.request("POST", path, body, headers)
                response = connection.getresponse()
                data = response.read()
                assert response.status == 200
                assert data.endswith(LARGE.tobytes())
                counts["good"] += 1
            except (OSError, EOFError, http.client.HTTPException):
                counts["lost"] += 1
                connection.close()
        connection.close()

    threads = [threading.Thread(target=client) for _ in range(4)]
    for thread in threads:
        thread.start()
    eventually(lambda: counts["good"] > 20)
    os.kill(before[0].pid, signal.SIGKILL)
    at_death = counts["good"]
    server.wait_for(r"HTTP worker 0 \(pid \d+\) has died: .*SIGKILL.* it is started again")
    eventually(lambda: len(workers(server)) == 2 and counts["good"] > at_death + 20)
    over.set()
    for thread in threads:
        thread.join()
    assert 1 <= counts["lost"] <= 4
    assert before[1].is_running()
    assert server.get("/v2/health/ready").status == 200
    # What it held is free again: the next ones find all of the memory.
    eventually(lambda: lent(server) == 0)


def lent(server: Serving) -> int:
    """Shared memory that is committed for stubs and is not of the stubs that there are: none, but for dead workers."""
    text = server.metrics().body.decode()
    lines = [line for line in text.splitlines() if line.startswith("stubserve_")]
    outputs = sum(float(line.split()[-1]) for line in lines if "instance_arena_bytes" in line)
    stubs = sum(float(line.split()[-1]) for line in lines if "arena_committed_bytes" in line and '"stubs"' in line)
    return int(stubs - outputs)


def test_clients_that_vanish_give_back_memory(repository: Path) -> None:
    with Serving(repository, "--http-workers=2", "--shm-limit=64M") as server:
        path, body, headers = binary_request("identity", np.zeros((1, 2_000_000), np.float32))
        assert server.request("POST", path, body, headers).status == 200
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
            f"Inference-Header-Content-Length: {headers['Inference-Header-Content-Length']}\r\n\r\n"
        ).encode()
        for _ in range(30):
            # Of those that have sent a part, and of those that do not wait for the answer
            for sent in (len(body) // 2, len(body)):
                with socket.create_connection(("127.0.0.1", server.port)) as client:
                    client.sendall(head + body[:sent])
        for _ in range(8):
            assert eventually(lambda: server.request("POST", path, body, headers).status == 200)


def test_sigterm_waits_for_requests_and_leaves_no_worker(repository: Path) -> None:
    with Serving(repository, "--http-workers=2") as server:
        for _ in range(2):  # the first one is passed on
            assert server.infer_json("slow", [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}])
        running = workers(server)
        found: list[Answer] = []
        asking = threading.Thread(target=lambda: found.append(server.infer_array("slow", np.ones(3, np.float32))))
        asking.start()
        server.wait_for_all("executing", 3)
        server.process.send_signal(signal.SIGTERM)
        asking.join()
        assert [answer.status for answer in found] == [200]
        assert server.process.wait(PATIENCE_S) == 0
        psutil.wait_procs(running, 10)
        assert not any(worker.is_running() for worker in running)


def test_workers_end_with_their_server(repository: Path) -> None:
    with Serving(repository, "--http-workers=2") as server:
        running = workers(server)
        assert len(running) == 2
        os.kill(running[0].pid, signal.SIGSTOP)
        server.process.kill()
        server.process.wait()
        gone, alive = psutil.wait_procs(running, 20)
        assert not alive


@contextlib.contextmanager
def out_of_descriptors(pid: int) -> Iterator[None]:
    """A process that gets no further descriptor: the next one would be the lowest that is free."""
    used = {int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()}
    lowest = min(set(range(len(used) + 1)) - used)
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def test_requests_and_connections_come_through_again_when_a_worker_has_descriptors(repository: Path) -> None:
    """Without them it loses the connections that it is given. What it cannot pass on waits."""
    with Serving(repository, "--http-workers=1") as server, contextlib.ExitStack() as stack:
        known = Way(server)
        stack.callback(known.connection.close)
        for _ in range(3):  # passed on at first; when the last one is answered, nothing of that is open any more
            assert known(binary("identity", LARGE)).status == 200
        with out_of_descriptors(workers(server)[0].pid):
            known.connection.request("GET", "/v2/health/live")
            given = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            with contextlib.suppress(ConnectionResetError):
                given.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n")
                assert given.recv(1) == b""
        assert known.connection.getresponse().status == 200
        assert server.get("/v2/health/live").status == 200


def test_what_the_owner_has_no_descriptors_for_is_refused(repository: Path) -> None:
    """A client's shared memory takes all that there are."""
    with Serving(repository, "--http-workers=1", "--allow-client-shm") as server, contextlib.ExitStack() as stack:
        ways = [Way(server) for _ in range(3)]
        for way in ways:
            stack.callback(way.connection.close)
            for _ in range(3):  # passed on at first; when the last one is answered, nothing of that is open any more
                assert way(binary("identity", LARGE)).status == 200
        file = stack.enter_context(SharedFile(4096))
        client = stack.enter_context(tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}"))
        client.register_system_shared_memory("first", file.key, 4096)
        owner = server.process.pid
        limits = resource.prlimit(owner, resource.RLIMIT_NOFILE)
        most = max(int(path.name) for path in Path(f"/proc/{owner}/fd").iterdir()) + 1
        resource.prlimit(owner, resource.RLIMIT_NOFILE, (most, limits[1]))

        numbers = itertools.count()

        def take_all() -> None:
            for _ in range(most):
                client.register_system_shared_memory(f"region{next(numbers)}", file.key, 4096)

        for way in ways:
            with pytest.raises(InferenceServerException, match="Unable to open shared memory region"):
                take_all()
            refused = way(("GET", "/v2/models/identity", None, {}))
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert "no descriptor left" in refused.error
        client.unregister_system_shared_memory()
        resource.prlimit(owner, resource.RLIMIT_NOFILE, limits)
        assert server.get("/v2/models/identity").status == 200


def test_connections_are_shared_out_evenly(server: Serving) -> None:
    def open_connections() -> list[int]:
        return [len(one.net_connections("tcp")) for one in workers(server)]

    eventually(lambda: open_connections() == [0, 0])
    clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(10)]
    eventually(lambda: open_connections() == [5, 5])
    for client in clients:
        client.close()
    eventually(lambda: open_connections() == [0, 0])
