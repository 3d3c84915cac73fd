"""A large tensor is copied by nobody: not by the parent, not by the stub of a model that returns what it was given.

A copy needs somewhere to go. In a process's own memory tracemalloc sees it, which counts what Python objects and numpy
arrays allocate; in shared memory the ledger does, which counts what every segment may commit. So the server runs in
the test's own process, with a real stub, and a client in a thread that allocates nothing itself. Each way of counting
is tried on a request that has to be copied, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import tracemalloc
from collections.abc import AsyncIterator, Callable
from itertools import repeat
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http
import uvloop

from stubserve.connections.listening import listen
from stubserve.flags import parse_arguments
from stubserve.server.fronts import grpc_server, http_server
from stubserve.server.server import Server
from tests.real_server import PATIENCE_S, Serving, binary_request, io_config, write_model
from tests.server.grpc_calls import SERVICE, request
from tools.bench.http2_client import GrpcConnection, framed

TENSOR_BYTES = 4 << 20
# A hundredth of the tensor: heads, JSON, and the few KiB of a body that come with its head.
COPIED_BYTES = TENSOR_BYTES // 100

# Answers with its input, and with the most memory that Python objects of its process, made since it was loaded, had
# from one call of `execute` to the next, in bytes.
IDENTITY = """
    import tracemalloc
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            tracemalloc.start()

        def execute(self, requests):
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.reset_peak()
            [request] = requests
            array = request.inputs()[0].as_numpy()
            outputs = [
                pb_utils.Tensor("OUTPUT0", RESULT),
                pb_utils.Tensor("PEAK", np.array([peak], np.int64)),
            ]
            return [pb_utils.InferenceResponse(outputs)]
"""
CONFIG = io_config(extra='output [ { name: "PEAK" data_type: TYPE_INT64 dims: [ 1 ] } ]')

# Passes its first input on to another model, asks to be executed once more, and then looks at both inputs and writes to
# them. Answers with both, and with the most memory that looking at each of them took, in bytes.
PASS_ON = """
    import tracemalloc
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.passed_on = False
            tracemalloc.start()

        def look(self, tensor):
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            array = tensor.as_numpy()
            peak = tracemalloc.get_traced_memory()[1] - before
            array += 1
            return array, peak

        def execute(self, requests):
            [request] = requests
            first, second = request.inputs()
            if not self.passed_on:
                self.passed_on = True
                call = pb_utils.InferenceRequest(
                    model_name="reader", inputs=[first], requested_output_names=["INPUT0"])
                response = call.exec()
                assert not response.has_error(), response.error().message()
                self.other = response.output_tensors()[0]
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                return [None]
            self.passed_on = False
            (one, copied), (two, given) = self.look(first), self.look(second)
            # What the other model sent back is the memory that was passed on: nobody has written to it.
            untouched = self.other.as_numpy().sum(dtype=np.float64)
            outputs = [
                pb_utils.Tensor("OUTPUT0", one),
                pb_utils.Tensor("OUTPUT1", two),
                pb_utils.Tensor("PEAK", np.array([copied, given], np.int64)),
                pb_utils.Tensor("SUM", np.array([untouched])),
            ]
            return [pb_utils.InferenceResponse(outputs)]
"""

READER = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse(request.inputs()) for request in requests]
"""


@pytest.fixture(autouse=True)
def _not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """What measures the coverage of a stub would allocate memory there."""
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)


class Client:
    """A blocking connection that sends one request again and again and reads the answers into one buffer."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._buffer = bytearray(TENSOR_BYTES + 64 * 1024)

    def infer(self, request: bytes) -> memoryview:
        """The answer's body, valid until the next call."""
        self._socket.sendall(request)
        view = memoryview(self._buffer)
        filled = 0
        expected = None
        while expected is None or filled < expected:
            received = self._socket.recv_into(view[filled:])
            assert received, "the server closed the connection"
            filled += received
            if expected is None and (end := self._buffer.find(b"\r\n\r\n", 0, filled)) >= 0:
                head = bytes(view[: end + 2])
                assert head.startswith(b"HTTP/1.1 200 "), bytes(view[:filled])
                expected = end + 4 + int(head.rpartition(b"\r\nContent-Length: ")[2])
        return view[end + 4 : expected]

    def close(self) -> None:
        self._socket.close()


class GrpcClient:
    """The same over gRPC, with the benchmark's client, which counts the answers that it reads."""

    def __init__(self, port: int, message: bytes) -> None:
        self._connection = GrpcConnection(
            port, f"{SERVICE}/ModelInfer", repeat(framed(message)), TENSOR_BYTES, None, self._finish
        )
        self._done = False

    def infer(self) -> None:
        self._done = False
        self._connection.request()
        socket = self._connection.socket
        while not self._done:
            _, writable, _ = select.select([socket], [socket] if self._connection.wants_to_write else [], [], 60)
            if writable:
                self._connection.write()
            self._connection.read()

    def close(self) -> None:
        self._connection.socket.close()

    def _finish(self, _: GrpcConnection) -> None:
        self._done = True


def head(model: str, json_length: str, framing: str) -> bytes:
    fields = f"Host: here\r\nInference-Header-Content-Length: {json_length}\r\n{framing}\r\n\r\n"
    return f"POST /v2/models/{model}/infer HTTP/1.1\r\n{fields}".encode()


@contextlib.asynccontextmanager
async def serving(repository: Path) -> AsyncIterator[tuple[Server, int]]:
    """A server in this process, with its stubs: it and its port."""
    settings = parse_arguments(
        [str(repository), "--http-address=127.0.0.1", "--http-port=0", "--grpc-address=127.0.0.1", "--grpc-port=0"]
    )
    server = Server(settings)
    listener = listen("127.0.0.1", 0)
    http = http_server(server)
    running = asyncio.ensure_future(http.serve([listener]))
    try:
        assert await server.load()
        yield server, listener.getsockname()[1]
    finally:
        http.stop()
        await server.stop()
        await running


async def most_allocated(ask: Callable[[], None]) -> int:
    """The most that this process had allocated, while the third of three requests was answered, beyond before."""
    for _ in range(2):
        await asyncio.to_thread(ask)
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    await asyncio.to_thread(ask)
    return tracemalloc.get_traced_memory()[1] - before


def test_a_large_tensor_is_not_copied(repository: Path) -> None:
    write_model(repository, "identity", IDENTITY.replace("RESULT", "array"), CONFIG)
    write_model(repository, "copy", IDENTITY.replace("RESULT", "array.copy()"), CONFIG)
    array = np.arange(TENSOR_BYTES // 4, dtype=np.float32)
    _, body, headers = binary_request("identity", array)
    json_length = headers["Inference-Header-Content-Length"]
    whole = f"Content-Length: {len(body)}"
    chunked = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
    requests = {
        "plain": head("identity", json_length, whole) + body,
        "copied by the model": head("copy", json_length, whole) + body,
        "copied by the parent": head("identity", json_length, "Transfer-Encoding: chunked") + chunked,
    }
    in_parent = {}
    in_stub = {}
    committed = {}

    async def measure() -> None:
        async with serving(repository) as (server, port):
            ledger = server.memory.ledger
            tracemalloc.start()
            client = Client(port)
            for name, request in requests.items():
                answer = memoryview(b"")

                def ask(request: bytes = request) -> None:
                    nonlocal answer
                    answer = client.infer(request)

                committed_before = ledger.total
                in_parent[name] = await most_allocated(ask)
                committed[name] = ledger.total - committed_before
                assert answer[-8 - TENSOR_BYTES : -8] == array.data.cast("B")
                in_stub[name] = int.from_bytes(answer[-8:], "little")
            client.close()

    try:
        uvloop.run(measure())
    finally:
        tracemalloc.stop()

    one_block = TENSOR_BYTES + TENSOR_BYTES // 16
    assert in_parent["plain"] < COPIED_BYTES
    assert in_stub["plain"] < COPIED_BYTES
    assert TENSOR_BYTES <= committed["plain"] <= one_block
    # All three ways of counting see a copy where there is one.
    assert in_parent["copied by the parent"] >= TENSOR_BYTES
    assert in_stub["copied by the model"] >= TENSOR_BYTES
    assert committed["copied by the model"] >= TENSOR_BYTES


def test_a_large_tensor_is_not_copied_over_grpc(repository: Path) -> None:
    """But for the way from the socket to the arena, a piece of 256 KiB at a time."""
    write_model(repository, "identity", IDENTITY.replace("RESULT", "array"), CONFIG)
    message = request("identity", raw=[bytes(TENSOR_BYTES)], shape=[TENSOR_BYTES // 4]).SerializeToString()
    in_parent = committed = 0

    async def measure() -> None:
        nonlocal in_parent, committed
        async with serving(repository) as (server, _):
            grpc = grpc_server(server)
            await grpc.start()
            client = GrpcClient(grpc.port, message)
            tracemalloc.start()
            committed_before = server.memory.ledger.total
            in_parent = await most_allocated(client.infer)
            committed = server.memory.ledger.total - committed_before
            client.close()
            await grpc.stop(10)

    try:
        uvloop.run(measure())
    finally:
        tracemalloc.stop()

    assert in_parent < COPIED_BYTES
    assert TENSOR_BYTES <= committed <= TENSOR_BYTES + TENSOR_BYTES // 16


def test_an_input_beside_one_that_was_passed_on_is_not_copied(repository: Path) -> None:
    two = {
        way: " ".join(f'{{ name: "{way.upper()}{i}" data_type: TYPE_FP32 dims: [ -1 ] }},' for i in (0, 1)).strip(",")
        for way in ("input", "output")
    }
    outputs = f'{two["output"]}, {{ name: "PEAK" data_type: TYPE_INT64 dims: [ 2 ] }},'
    outputs += '{ name: "SUM" data_type: TYPE_FP64 dims: [ 1 ] }'
    config = f"input [ {two['input']} ] output [ {outputs} ] sequence_batching {{ iterative_sequence: true }}"
    write_model(repository, "pass_on", PASS_ON, f'backend: "python" {config}')
    reader = 'input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]'
    write_model(repository, "reader", READER, f'backend: "python" {reader} {reader.replace("input [", "output [")}')
    arrays = {f"INPUT{index}": np.arange(TENSOR_BYTES // 4, dtype=np.float32) + index for index in (0, 1)}
    inputs = [tritonclient.http.InferInput(name, list(array.shape), "FP32") for name, array in arrays.items()]
    for made, array in zip(inputs, arrays.values(), strict=True):
        made.set_data_from_numpy(array)
    with Serving(repository) as server, tritonclient.http.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        for _ in range(3):
            answer = client.infer("pass_on", inputs)
            for index in (0, 1):
                np.testing.assert_array_equal(answer.as_numpy(f"OUTPUT{index}"), arrays[f"INPUT{index}"] + 1)
            assert answer.as_numpy("SUM") == arrays["INPUT0"].sum(dtype=np.float64)
            copied, given = answer.as_numpy("PEAK")
            assert copied >= TENSOR_BYTES
            assert given < COPIED_BYTES
