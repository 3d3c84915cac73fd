"""Shared memory that its client takes away at the worst moment: while threads of native code read it, or a stream goes
on.

Each model says that it executes, and waits until the region has become smaller. Nothing here may hang.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from tests.client_memory import PAGE, SharedFile
from tests.real_server import PATIENCE_S, Answer, Serving, binary_output, eventually, io_config, write_model

COUNT = 256 * PAGE
WAIT = """
    import os
    import time

    def wait(folder):
        open(os.path.join(folder, "executes"), "w").close()
        while not os.path.exists(os.path.join(folder, "go")):
            time.sleep(0.005)
"""
# What `compute` makes of the input; a thread that reads it may be anybody's.
COMPUTES = (
    WAIT
    + """
    import ctypes
    import multiprocessing
    import numpy as np
    import triton_python_backend_utils as pb_utils
    from concurrent.futures import ThreadPoolExecutor

    KIND = {kind!r}

    class TritonPythonModel:
        def initialize(self, args):
            self.folder = args["model_repository"]
            self.threads = ThreadPoolExecutor(4)
            getattr(self, "prepare_" + KIND, lambda: None)()

        def execute(self, requests):
            array = requests[0].inputs()[0].as_numpy()
            wait(self.folder)
            output = getattr(self, KIND)(array)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", output)])]

        def python_threads(self, array):
            return np.concatenate(list(self.threads.map(np.sqrt, np.array_split(array, 8))))

        def prepare_onnxruntime(self):
            import onnxruntime
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 4
            path = os.path.join(self.folder, "model.onnx")
            self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

        def onnxruntime(self, array):
            return self.session.run(["Y"], {{"X": array}})[0]

        def prepare_torch(self):
            import torch
            torch.set_num_threads(4)

        def torch(self, array):
            import torch
            return (torch.from_numpy(array) + 1).numpy()

        def a_process(self, array):
            # It has the handler, and its own record of what is gone.
            with multiprocessing.get_context("fork").Pool(1, init, (array,)) as pool:
                return pool.apply(total)

        def a_system_call(self, array):
            reading, writing = os.pipe()
            return np.array([os.write(writing, array[-1024:])], np.float32)

        def with_the_lock(self, array):
            # As an extension that computes in threads of its own, and lets nobody else run meanwhile
            library, thread = ctypes.PyDLL(None), ctypes.c_ulong()
            library.pthread_create.argtypes = [ctypes.c_void_p] * 4
            reads = ctypes.cast(library.strlen, ctypes.c_void_p)
            library.pthread_create(ctypes.byref(thread), None, reads, array.ctypes.data)
            library.pthread_join(thread, None)
            return array

    def init(array):
        global shared
        shared = array

    def total():
        return np.array([shared.sum()], np.float32)
"""
)
# Decoupled: `kind` says when it sends, from which thread, and what.
STREAMS = (
    WAIT
    + """
    import threading
    import numpy as np
    import triton_python_backend_utils as pb_utils

    FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

    def answer(array):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)])

    class TritonPythonModel:
        def initialize(self, args):
            self.folder = args["model_repository"]

        def execute(self, requests):
            for request in requests:
                array, sender = request.inputs()[0].as_numpy(), request.get_response_sender()
                thread = threading.Thread(target={kind}, args=(self.folder, array, sender))
                thread.start()
                if {joins!r}:
                    thread.join()

    def sends(folder, array, sender):
        sender.send(answer(array[:4] + 1))
        wait(folder)
        sender.send(answer(array[-4:] + 1))
        sender.send(flags=FINAL)

    def is_silent(folder, array, sender):
        wait(folder)
        found = array[array > 0]
        if len(found):
            sender.send(answer(found))
        sender.send(flags=FINAL)
"""
)
# Answers with the input of the request before.
KEEPS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        last = None

        def execute(self, requests):
            array = requests[0].inputs()[0].as_numpy()
            answer, self.last = array if self.last is None else self.last, array
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", answer)])]
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"
STREAMING = [(kind, joins) for kind in ("sends", "is_silent") for joins in (False, True)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    for kind in "python_threads", "a_process", "a_system_call", "with_the_lock":
        write_model(repository, kind, COMPUTES.format(kind=kind))
    for kind, joins in STREAMING:
        write_model(repository, f"{kind}_{joins}", STREAMS.format(kind=kind, joins=joins), io_config(extra=DECOUPLED))
    write_model(repository, "keeps", KEEPS)
    with Serving(repository, "--allow-client-shm") as running:
        running.wait_until_ready()
        yield running


def register(server: Serving, file: SharedFile) -> None:
    body = json.dumps({"key": file.key, "byte_size": file.nbytes}).encode()
    assert server.request("POST", f"/v2/systemsharedmemory/region/{file.name}/register", body).status == 200


def ask(server: Serving, model: str, file: SharedFile) -> Answer:
    where = {"shared_memory_region": file.name, "shared_memory_byte_size": file.nbytes}
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [file.nbytes // 4], "parameters": where}
    return server.infer_json(model, [tensor], outputs=[{"name": "OUTPUT0", "parameters": {"binary_data": True}}])


def ask_and_shrink(server: Serving, model: str, shrink_to: int = PAGE) -> Answer:
    """Asks, and takes most of the input away when the model has it."""
    folder = Path(server.command[4]) / model
    for name in "executes", "go":
        (folder / name).unlink(missing_ok=True)
    with SharedFile(np.ones(COUNT, np.float32)) as file, ThreadPoolExecutor(1) as thread:
        register(server, file)
        asked = thread.submit(ask, server, model, file)
        eventually((folder / "executes").exists)
        file.shrink(shrink_to)
        (folder / "go").touch()
        return asked.result(PATIENCE_S)


@pytest.mark.parametrize("model", ["python_threads", "a_process", "a_system_call"])
def test_who_reads_it_does_not_matter(server: Serving, model: str) -> None:
    """Threads without the interpreter's lock, a process that the model forks, the kernel itself."""
    pids = server.stub_pids()
    answer = ask_and_shrink(server, model)
    assert answer.status in (400, 500), answer
    assert "has become smaller" in answer.error or "Bad address" in answer.error
    assert server.stub_pids() == pids


def onnx_file(folder: Path) -> None:
    onnx_models = pytest.importorskip("tests.onnx_models")
    node = onnx_models.helper.make_node("Sqrt", ["X"], ["Y"])
    made = onnx_models.model([node], [("X", "FP32", ["n"])], [("Y", "FP32", ["n"])])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(made.SerializeToString())


@pytest.mark.parametrize("kind", ["onnxruntime", "torch"])
def test_threads_of_libraries(tmp_path: Path, kind: str) -> None:
    """They are not Python's, and whoever waits for them has let go of the interpreter's lock."""
    pytest.importorskip(kind)
    if kind == "onnxruntime":
        onnx_file(tmp_path / kind)
    write_model(tmp_path, kind, COMPUTES.format(kind=kind))
    with Serving(tmp_path, "--allow-client-shm") as server:
        server.wait_until_ready()
        pids = server.stub_pids()
        answer = ask_and_shrink(server, kind)
        assert (answer.status, "has become smaller" in answer.error) == (400, True), answer
        with SharedFile(np.ones(COUNT, np.float32)) as file:
            register(server, file)
            assert ask(server, kind, file).status == 200
        assert server.stub_pids() == pids


def test_a_thread_that_whoever_has_the_lock_waits_for(server: Serving) -> None:
    """It can never get out of the handler. The stub is ended with the cause, and there is another."""
    answer = ask_and_shrink(server, "with_the_lock", 0)
    assert answer.status == 500
    assert "because the shared memory of a request has become smaller while it was executed" in answer.error
    server.wait_for("instance 'with_the_lock_0' is back")
    with SharedFile(np.ones(COUNT, np.float32)) as file:
        register(server, file)
        assert (binary_output(ask(server, "with_the_lock", file)) == 1).all()


@pytest.mark.parametrize(("kind", "joins"), STREAMING)
def test_a_stream_is_told(server: Serving, kind: str, joins: bool) -> None:
    """What it had been sent before stands; nothing made of zeros follows, and no end as if nothing had been there."""
    model = f"{kind}_{joins}"
    folder = Path(server.command[4]) / model
    answers: list[Any] = []
    with (
        SharedFile(np.ones(COUNT, np.float32)) as file,
        triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client,
    ):
        register(server, file)
        asked = triton_grpc.InferInput("INPUT0", [COUNT], "FP32")
        asked.set_shared_memory(file.name, file.nbytes)
        client.start_stream(lambda result, error: answers.append(error or result.as_numpy("OUTPUT0").tolist()))
        client.async_stream_infer(model, [asked])
        eventually((folder / "executes").exists)
        file.shrink(0)
        (folder / "go").touch()
        eventually(lambda: any(isinstance(answer, Exception) for answer in answers))
        client.stop_stream()
    assert answers[:-1] == ([[2.0] * 4] if kind == "sends" else [])
    assert "has gone away while it was executed: it has become smaller" in str(answers[-1])


def test_what_a_model_keeps_is_not_taken_away(server: Serving) -> None:
    """A request that has been answered cannot fail any more; so its memory must not go with its client's file."""
    with SharedFile(np.full(COUNT, 5, np.float32)) as first, SharedFile(np.full(COUNT, 6, np.float32)) as second:
        register(server, first)
        register(server, second)
        assert (binary_output(ask(server, "keeps", first)) == 5).all()
        first.shrink(0)
        first.put(np.full(COUNT, 7, np.float32))
        assert (binary_output(ask(server, "keeps", second)) == 5).all()
