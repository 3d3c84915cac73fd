"""What every request passes through is compiled: modules that carry the mark of tools/compile.py."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from tests.real_server import IDENTITY, Serving, binary_output, io_config, write_model
from tests.server.ensembles import write_chain
from tests.server.grpc_calls import connected
from tools.compile import marked

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "stubserve"
# Runs in the server, and not in its stubs: the files of the functions that the event loop has called since it was last
# asked.
HOOK = """
import os

path = os.environ.pop("STUBSERVE_TEST_CALLED", "")
if path:
    import json
    import socket
    import sys
    import threading

    called = set()
    sys.setprofile(lambda frame, event, _: called.add(frame.f_code.co_filename) if event == "call" else None)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()

    def serve():
        while True:
            connection, _ = listener.accept()
            with connection:
                told = json.dumps(sorted(called))
                called.clear()
                connection.sendall(told.encode())

    threading.Thread(target=serve, daemon=True).start()
"""
# What is on the way and stays as it is, by the reason
PLAIN = {
    "once for a connection": "connections/listening.py connections/open_connections.py",
    "gRPC's protocol, which has never been compiled": (
        "grpc/http2/budget.py grpc/http2/connection.py grpc/http2/frames.py grpc/http2/heads.py grpc/http2/outbox.py "
        "grpc/http2/reader.py grpc/http2/receive_stream.py grpc/http2/stream.py grpc/http2/writer.py grpc/service.py "
        "grpc/stream.py grpc/wire.py"
    ),
    "`generate`, which uvicorn's protocol serves": (
        "http/app.py http/asgi_request.py http/compression.py http/fallback.py http/infer_routes.py"
    ),
    "one function, of a module that is about something else": (
        "api/request_options.py http/body.py instances/instance.py repository/registry.py response_cache/store.py"
    ),
}
# Models, by how large their batches are, and how they are scheduled
MODELS = {
    "direct": (0, ""),
    "batches": (4, "dynamic_batching { }"),
    "sequence": (4, "sequence_batching { }"),
    "cached": (0, "response_cache { enable: true }"),
}


def test_what_a_request_passes_through_is_compiled(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    repository = tmp_path / "models"
    for name, (size, extra) in MODELS.items():
        write_model(repository, name, IDENTITY, io_config(max_batch_size=size, extra=extra))
    write_chain(repository, "chain", "direct", "cached")
    path = tmp_path / "socket"
    search = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    environment = {"PYTHONPATH": search, "STUBSERVE_TEST_CALLED": str(path)}

    def called() -> set[Path]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            with connection.makefile() as answer:
                return {Path(name) for name in json.load(answer)}

    with Serving(repository, "--cache-config=local,size=1000000", environment=environment) as server:
        server.wait_until_ready()
        with connected(server) as grpc:
            for turn in range(2):
                # What is imported, or made, for the first request is not on the way of the others.
                called()
                for model in (*MODELS, "chain"):
                    shape = [1, 4] if model in ("batches", "sequence") else [4]
                    ask(server, grpc.stub, model, np.full(shape, turn, np.float32))
        found = {str(file.relative_to(SOURCES)) for file in called() if file.is_relative_to(SOURCES)}
    compiled = {str(file.relative_to(SOURCES)) for file in marked(SOURCES)}
    assert found - compiled - set(" ".join(PLAIN.values()).split()) == set()
    # As many as a binary request alone passes through
    assert len(found & compiled) > 28


def ask(server: Serving, stub: Any, model: str, array: np.ndarray) -> None:
    parameters = {"sequence_id": 1, "sequence_start": True, "sequence_end": True}
    binary = {**parameters, "binary_data_output": True}
    assert (binary_output(server.infer_array(model, array, parameters=binary)) == array).all()
    given = {"name": "INPUT0", "datatype": "FP32", "shape": list(array.shape), "data": array.ravel().tolist()}
    assert server.infer_json(model, [given], parameters=parameters).status == 200
    body = json.dumps({"INPUT0": array.tolist(), **parameters}).encode()
    for route in ("generate", "generate_stream"):
        assert server.request("POST", f"/v2/models/{model}/{route}", body).status == 200
    message = service_pb2.ModelInferRequest(model_name=model)
    message.inputs.add(name="INPUT0", datatype="FP32", shape=array.shape)
    message.raw_input_contents.append(array.tobytes())
    message.parameters["sequence_id"].int64_param = 1
    message.parameters["sequence_start"].bool_param = message.parameters["sequence_end"].bool_param = True
    stub.ModelInfer(message)
    assert len(list(stub.ModelStreamInfer(iter([message])))) == 1


def test_without_a_compiler_what_is_compiled_is_not_tested_and_that_fails(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", ".venv/bin/python", ".venv/.with-test", ".venv/.with-dev", ".venv/.compiled"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    done = subprocess.run(["make", "test-compiled"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(
        "stubserve is not compiled here, so nothing was tested: `make compiled` needs a C compiler"
    )
