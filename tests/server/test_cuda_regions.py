"""Clients' memory on GPUs (CUDA shared memory), with an emulated driver, over HTTP and gRPC."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from tests.emulated_gpu import build
from tests.examples import ROOT
from tests.real_server import Serving, eventually, io_config, write_model
from tests.server.gpu_models import DRIVER_VARIABLE

# More than is copied at once
LARGE = 5 << 20
ROOM = 2 * LARGE
CLIENT = f"""
import sys
from ctypes import byref, c_ulonglong
from stubserve_stub.device.cuda import Cuda
from stubserve_stub.device.cuda_functions import IpcMemoryHandle
from tests.stub.device.memory import read, write
from tools.gpu_check.functions import CHECKED
device = Cuda().open(1)
for name in ("cuMemAlloc", "cuIpcGetMemHandle"):
    device.driver.find(name, CHECKED[name])
address, handle = c_ulonglong(), IpcMemoryHandle()
device.call("cuMemAlloc", byref(address), {ROOM})
device.call("cuIpcGetMemHandle", byref(handle), address)
print(bytes(handle).hex(), flush=True)
for line in sys.stdin.buffer:
    what, offset, nbytes = line.split()
    if what == b"write":
        write(device, address.value + int(offset), sys.stdin.buffer.read(int(nbytes)))
        print("written", flush=True)
    else:
        sys.stdout.buffer.write(read(device, address.value + int(offset), int(nbytes)))
        sys.stdout.flush()
"""
# Floats are turned around, and texts are given back.
MODEL = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                (given,) = request.inputs()
                data = given.as_numpy()
                data = data[:, ::-1].copy() if data.dtype.kind == "f" else data
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", data)]))
            return responses
"""


class Client:
    """A process with ROOM bytes on the second GPU."""

    def __init__(self, library: Path) -> None:
        environment = {**os.environ, DRIVER_VARIABLE: str(library)}
        command = [sys.executable, "-c", CLIENT]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, cwd=ROOT)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self._out = self.process.stdin, self.process.stdout
        self.handle = bytes.fromhex(self._out.readline().decode())

    def write(self, offset: int, data: bytes) -> None:
        self._in.write(b"write %d %d\n%b" % (offset, len(data), data))
        self._in.flush()
        assert self._out.readline() == b"written\n"

    def read(self, offset: int, nbytes: int) -> bytes:
        self._in.write(b"read %d %d\n" % (offset, nbytes))
        self._in.flush()
        return self._out.read(nbytes)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("emulator"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    for name, datatype in (("floats", "FP32"), ("texts", "STRING")):
        write_model(repository, name, MODEL, io_config(datatype, "-1", 8))
    with Serving(repository, "--allow-client-shm=true", environment={DRIVER_VARIABLE: str(library)}) as server:
        server.wait_until_ready()
        yield server


@pytest.fixture
def client(library: Path) -> Iterator[Client]:
    made = Client(library)
    yield made
    made.close()


@pytest.fixture(params=["http", "grpc"])
def triton(request: pytest.FixtureRequest, server: Serving) -> Iterator[Any]:
    module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[request.param]
    port = server.port if request.param == "http" else server.grpc_port
    with module.InferenceServerClient(f"127.0.0.1:{port}") as client:
        client.module = module
        yield client
        client.unregister_cuda_shared_memory()


def register(triton: Any, client: Client, name: str = "gpu", nbytes: int = ROOM) -> None:
    triton.register_cuda_shared_memory(name, base64.b64encode(client.handle), 1, nbytes)


def infer(triton: Any, model: str, datatype: str, shape: list[int], nbytes: int) -> Any:
    """The input lies at the beginning of the region, the output behind LARGE bytes."""
    given = triton.module.InferInput("INPUT0", shape, datatype)
    given.set_shared_memory("gpu", nbytes)
    wanted = triton.module.InferRequestedOutput("OUTPUT0")
    wanted.set_shared_memory("gpu", LARGE, LARGE)
    return triton.infer(model, [given], outputs=[wanted])


@pytest.mark.parametrize("nbytes", [4, 16 << 10, LARGE])
def test_floats_go_from_there_and_back(triton: Any, client: Client, nbytes: int) -> None:
    register(triton, client)
    numbers = np.random.default_rng(nbytes).random(nbytes // 4, np.float32)
    client.write(0, numbers.tobytes())
    client.write(2 * LARGE - 4, b"left")
    infer(triton, "floats", "FP32", [1, len(numbers)], nbytes)
    assert client.read(LARGE, nbytes) == numbers[::-1].tobytes()
    # What is behind the output stays.
    assert nbytes == LARGE or client.read(2 * LARGE - 4, 4) == b"left"


def test_texts_go_from_there_and_back(triton: Any, client: Client) -> None:
    register(triton, client)
    texts = serialize_byte_tensor(np.array([["a", "", "\u6771\u4eac" * 1000]], object)).item()
    client.write(0, texts)
    infer(triton, "texts", "BYTES", [1, 3], len(texts))
    assert client.read(LARGE, len(texts)) == texts


def test_the_region_is_listed_until_it_is_unregistered(triton: Any, client: Client) -> None:
    register(triton, client)
    (row,) = rows(triton)
    assert row == {"name": "gpu", "device_id": 1, "byte_size": ROOM}
    with pytest.raises(InferenceServerException, match="shared memory region 'gpu' already in manager"):
        register(triton, client)
    text = "The region named 'gpu' is registered as CUDA shared memory, not system shared memory"
    with pytest.raises(InferenceServerException, match=text):
        triton.get_system_shared_memory_status("gpu")
    triton.unregister_cuda_shared_memory("gpu")
    assert rows(triton) == []
    with pytest.raises(InferenceServerException, match="Unable to find cuda shared memory region: 'gpu'"):
        triton.get_cuda_shared_memory_status("gpu")


def rows(triton: Any) -> list[Any]:
    if triton.module is tritonclient.http:
        found: list[Any] = triton.get_cuda_shared_memory_status()
        return found
    return [
        {"name": row.name, "device_id": row.device_id, "byte_size": row.byte_size}
        for row in triton.get_cuda_shared_memory_status().regions.values()
    ]


def test_what_cannot_be_registered(triton: Any, client: Client, library: Path) -> None:
    other = Client(library)
    register(triton, other, "other")  # so that there is other memory behind, or in front
    too_large = "failed to register CUDA shared memory region 'gpu': its memory has"
    for nbytes, text in ((ROOM + 1, too_large), (3 * ROOM, too_large), (2**64 - 1, too_large), (0, "invalid args")):
        with pytest.raises(InferenceServerException, match=text):
            register(triton, client, nbytes=nbytes)
    client.handle = bytes(64)
    with pytest.raises(InferenceServerException, match="'gpu': cuIpcOpenMemHandle"):
        register(triton, client)
    assert [row["name"] for row in rows(triton)] == ["other"]
    other.close()


def test_bodies_that_name_no_handle(server: Serving) -> None:
    path = "/v2/cudasharedmemory/region/gpu/register"
    for body, text in (
        (b"{}", "Shared memory register request has no 'raw_handle' field"),
        (b'{"raw_handle":{"b64":"x"}}', "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"),
    ):
        answer = server.request("POST", path, body)
        assert (answer.status, answer.error) == (400, text)


def test_an_output_that_does_not_fit(triton: Any, client: Client) -> None:
    register(triton, client, nbytes=LARGE + 4)
    given = triton.module.InferInput("INPUT0", [1, 4], "FP32")
    given.set_shared_memory("gpu", 16)
    wanted = triton.module.InferRequestedOutput("OUTPUT0")
    wanted.set_shared_memory("gpu", 4, LARGE)
    with pytest.raises(InferenceServerException, match=r"output 'OUTPUT0' \(4 bytes\) should be at least 16 bytes"):
        triton.infer("floats", [given], outputs=[wanted])


def test_a_process_that_dies_takes_only_its_regions_with_it(server: Serving, triton: Any, client: Client) -> None:
    register(triton, client)
    client.write(0, bytes(16))
    infer(triton, "floats", "FP32", [1, 4], 16)
    (copier,) = [
        process
        for process in psutil.Process(server.process.pid).children()
        if "stubserve_stub.device.clients" in process.cmdline()
    ]
    os.kill(copier.pid, signal.SIGKILL)
    eventually(lambda: copier.status() == psutil.STATUS_ZOMBIE)
    text = "'gpu' cannot be used: the process that had opened it has ended. Unregister it and register it again"
    with pytest.raises(InferenceServerException, match=text):
        infer(triton, "floats", "FP32", [1, 4], 16)
    triton.unregister_cuda_shared_memory("gpu")
    register(triton, client)
    infer(triton, "floats", "FP32", [1, 4], 16)


def test_without_a_gpu_it_is_refused_as_before(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with Serving(tmp_path / "models", "--allow-client-shm=true", environment={DRIVER_VARIABLE: ""}) as server:
        answer = server.request("POST", "/v2/cudasharedmemory/region/gpu/register", b"{}")
        assert answer.error == "failed to register CUDA shared memory region: 'gpu', GPUs not supported"
