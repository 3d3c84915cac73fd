"""Models that are loaded, loaded anew and unloaded while the server runs, by clients and by each other."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import socket
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from tritonclient.grpc import service_pb2

from tests.real_server import PATIENCE_S, Answer, Serving, binary_output, eventually, io_config, write_model
from tests.server.grpc_calls import connected
from tests.server.grpc_calls import request as grpc_request
from tests.server.test_lifecycle import wait_until_gone

EXPLICIT = "--model-control-mode=explicit"

# Answers with a number that tells one load of it from the next.
NUMBER = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            answer = np.array([{}], np.float32)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", answer)]) for _ in requests]

        def finalize(self):
            print("finalized number", {}, flush=True)
"""

# Says where it is, and waits there until somebody writes to a pipe.
GATED = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    def wait(where):
        print("waiting in", where, flush=True)
        open({!r}).read()

    class TritonPythonModel:
        def initialize(self, args):
            {}

        def execute(self, requests):
            {}
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.ones(1, np.float32))]) for _ in requests]
"""

# Runs what its input says.
ACTOR = """
    import threading
    import numpy as np
    import triton_python_backend_utils as pb_utils

    def outcome(command):
        try:
            return repr(eval(command))
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    class TritonPythonModel:
        def initialize(self, args):
            print("initialize:", outcome("INITIALIZE"), flush=True)

        def execute(self, requests):
            answers = [outcome(request.inputs()[0].as_numpy()[0].decode()) for request in requests]
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([answer.encode()], dtype=object))])
                for answer in answers
            ]

        def finalize(self):
            print("finalize:", outcome("FINALIZE"), flush=True)
"""

CONFIG = {
    "backend": "python",
    "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
}


class Controlled:
    """A server with explicit model control, and its repository. `temporary` is where it makes folders for files."""

    def __init__(self, server: Serving, repository: Path, temporary: Path | None = None) -> None:
        self.server = server
        self.repository = repository
        self.temporary = temporary

    def number(self, name: str, value: float, version: int = 1) -> Path:
        return write_model(self.repository, name, NUMBER.format(value, value), version=version)

    def actor(self, name: str, initialize: str = "None", finalize: str = "None") -> None:
        source = ACTOR.replace("INITIALIZE", initialize).replace("FINALIZE", finalize)
        write_model(self.repository, name, source, io_config("STRING"))

    def gated(self, name: str, initialize: bool = False, execute: bool = False) -> Path:
        """A model that waits; the pipe that lets it go on."""
        pipe = self.repository.parent / f"{name}.pipe"
        os.mkfifo(pipe)
        source = GATED.format(
            str(pipe),
            f"wait('{name}')" if initialize else "pass",
            f"wait('{name}')" if execute else "pass",
        )
        write_model(self.repository, name, source)
        return pipe

    def load(self, name: str, **parameters: Any) -> Answer:
        body = json.dumps({"parameters": parameters}).encode() if parameters else b""
        return self.server.request("POST", f"/v2/repository/models/{name}/load", body)

    def touch(self, name: str) -> None:
        """Changes a model in a way that it does not notice."""
        (self.repository / name / f"touched_{time.monotonic_ns()}").touch()

    def unload(self, name: str, body: bytes = b"") -> Answer:
        return self.server.request("POST", f"/v2/repository/models/{name}/unload", body)

    def drop(self, *names: str) -> None:
        """Unloads models and waits until they are gone."""
        for name in names:
            assert self.unload(name).status == 200
        eventually(lambda: not any(row.get("state") == "UNLOADING" for name in names for row in self.rows(name)))
        if self.temporary is not None:
            # No test loads models of files beside others that it drops; their folders go a moment after them.
            eventually(lambda: not self.made())

    def made(self) -> list[str]:
        """The folders that the server has made for models of files."""
        assert self.temporary is not None
        return sorted(os.listdir(self.temporary))

    def rows(self, name: str) -> list[dict[str, str]]:
        index = self.server.request("POST", "/v2/repository/index").json()
        return [row for row in index if row["name"] == name]

    def wait_unloaded(self, name: str, version: int = 1) -> None:
        self.server.wait_for(f"successfully unloaded '{name}' version {version}")

    def value(self, name: str) -> float:
        return float(binary_output(self.server.infer_array(name, np.zeros(1, np.float32)))[0])

    def run(self, name: str, command: str) -> str:
        """What an actor says to a command."""
        answer = self.server.infer_json(
            name, [{"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": [command]}]
        )
        assert answer.status == 200, answer
        text: str = answer.json()["outputs"][0]["data"][0]
        return text


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    home = tmp_path_factory.mktemp("control")
    repository, temporary = home / "models", home / "temporary"
    repository.mkdir()
    temporary.mkdir()
    environment = {"TMPDIR": str(temporary)}
    with Serving(repository, EXPLICIT, "--exit-timeout-secs=5", environment=environment) as server:
        yield Controlled(server, repository, temporary)
        assert server.stop() == 0
    assert os.listdir(temporary) == []


@pytest.fixture
def controlled(shared: Controlled) -> Iterator[Controlled]:
    """The server of all tests. What one leaves there goes before the next. While a model has failed, the server is not
    ready, so it is loaded well first.
    """
    yield shared
    index = shared.server.request("POST", "/v2/repository/index").json()
    for folder in shared.repository.iterdir():
        shutil.rmtree(folder)
    for name in {row["name"] for row in index if row.get("state") and row.get("reason") != "unloaded"}:
        shared.number(name, 1)
        assert shared.load(name).status == 200
        shared.drop(name)
        shutil.rmtree(shared.repository / name)


def open_gate(pipe: Path) -> None:
    pipe.write_text("go on")


def ask(method: Any, message: Any) -> tuple[str, str]:
    """Status and text of a unary RPC."""
    try:
        method(message, timeout=PATIENCE_S)
    except grpc.RpcError as error:
        return error.code().name, error.details() or ""
    return "OK", ""


# Loading and unloading


def test_a_model_comes_and_goes(controlled: Controlled) -> None:
    server = controlled.server
    controlled.number("life", 1)
    assert controlled.rows("life") == [{"name": "life"}]
    assert server.get("/v2/health/ready").status == 200
    assert server.get("/v2/models/life").error == "Request for unknown model: 'life' is not found"
    before = server.stub_pids()
    assert (controlled.load("life").status, controlled.value("life")) == (200, 1)
    assert controlled.rows("life") == [{"name": "life", "version": "1", "state": "READY"}]
    (stub,) = set(server.stub_pids()) - set(before)
    assert 'nv_inference_count{model="life"' in server.metrics().body.decode()
    assert controlled.unload("life").status == 200
    controlled.wait_unloaded("life")
    server.wait_for("finalized number 1")
    wait_until_gone([stub], 10)
    assert 'model="life"' not in server.metrics().body.decode()
    assert controlled.rows("life") == [{"name": "life", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}]
    assert server.get("/v2/health/ready").status == 200
    assert server.get("/v2/models/life").error == "Request for unknown model: 'life' has no available versions"
    assert server.get("/v2/models/life/stats").error == "requested model 'life' is not available"
    assert (controlled.load("life").status, controlled.value("life")) == (200, 1)
    controlled.drop("life")


def test_over_grpc(controlled: Controlled) -> None:
    controlled.number("remote", 1)
    made = model_file(5)
    with connected(controlled.server) as client:
        load, unload = client.stub.RepositoryModelLoad, client.stub.RepositoryModelUnload
        assert ask(load, service_pb2.RepositoryModelLoadRequest(model_name="remote")) == ("OK", "")
        assert controlled.value("remote") == 1
        message = service_pb2.RepositoryModelLoadRequest(model_name="remote")
        message.parameters["config"].string_param = json.dumps(CONFIG)
        message.parameters["file:1/model.py"].bytes_param = made
        assert ask(load, message) == ("OK", "")
        assert controlled.value("remote") == 5
        assert ask(load, service_pb2.RepositoryModelLoadRequest(model_name="remote")) == ("OK", "")
        index = client.stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(), timeout=PATIENCE_S)
        assert [row.state for row in index.models if row.name == "remote"] == ["READY"]
        assert ask(load, service_pb2.RepositoryModelLoadRequest(model_name="nowhere")) == (
            "INTERNAL",
            "failed to load 'nowhere', failed to poll from model repository: model not found in any model repository",
        )
        assert ask(unload, service_pb2.RepositoryModelUnloadRequest(model_name="remote")) == ("OK", "")
        status, text = client.refusal(grpc_request("remote"))
        assert (status, text) == ("NOT_FOUND", "Request for unknown model: 'remote' has no available versions")
    controlled.drop("remote")


def model_file(value: float) -> bytes:
    return textwrap.dedent(NUMBER.format(value, value)).encode()


def test_requests_that_run_are_finished_by_what_is_unloaded(controlled: Controlled) -> None:
    server = controlled.server
    pipe = controlled.gated("busy", execute=True)
    controlled.load("busy")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(controlled.value, "busy")
        server.wait_for("waiting in busy")
        assert controlled.unload("busy").status == 200
        assert controlled.rows("busy") == [{"name": "busy", "version": "1", "state": "UNLOADING"}]
        assert server.get("/v2/health/ready").status == 400
        text = "Request for unknown model: 'busy' version 1 is not at ready state"
        answer = server.get("/v2/models/busy/versions/1")
        assert (answer.status, answer.error) == (503, text)
        open_gate(pipe)
        assert running.result(PATIENCE_S) == 1
    controlled.wait_unloaded("busy")


def test_no_request_is_lost_while_a_model_is_loaded_anew(controlled: Controlled) -> None:
    controlled.number("swapped", 0)
    controlled.load("swapped")
    over = threading.Event()

    def over_http() -> list[float]:
        values = []
        while not over.is_set():
            values.append(controlled.value("swapped"))
        return values

    def over_grpc() -> list[float]:
        values = []
        with connected(controlled.server) as client:
            while not over.is_set():
                answer = client.infer(grpc_request("swapped"))
                values.append(float(np.frombuffer(answer.raw_output_contents[0], np.float32)[0]))
        return values

    with ThreadPoolExecutor(3) as pool:
        clients = [pool.submit(over_http), pool.submit(over_http), pool.submit(over_grpc)]
        try:
            for number in range(1, 6):
                controlled.number("swapped", number)
                assert controlled.load("swapped").status == 200
                assert controlled.value("swapped") == number
        finally:
            over.set()
        for client in clients:
            values = client.result(PATIENCE_S)
            assert values == sorted(values)
            assert len(set(values)) > 1
    controlled.drop("swapped")


def test_what_cannot_be_loaded_leaves_what_serves(controlled: Controlled) -> None:
    server = controlled.server
    folder = controlled.number("stays", 1)
    controlled.load("stays")
    (folder / "1" / "model.py").write_text("raise ValueError('not this one')")
    answer = controlled.load("stays")
    assert answer.status == 400
    assert answer.error.startswith(
        "load failed for model 'stays': version 1 is at UNAVAILABLE state: Internal: ValueError: not this one\n\nAt:\n"
    )
    assert answer.error.endswith(";\n")
    (folder / "config.pbtxt").write_text("max_batch_size: many")
    answer = controlled.load("stays")
    assert answer.status == 500
    assert answer.error.startswith("failed to load 'stays', failed to poll from model repository: ")
    assert "config.pbtxt: line 1, column 17" in answer.error
    assert controlled.value("stays") == 1
    assert controlled.rows("stays") == [{"name": "stays", "version": "1", "state": "READY"}]
    assert server.get("/v2/health/ready").status == 200
    controlled.drop("stays")


def test_why_a_configuration_cannot_be_used_is_in_the_index(controlled: Controlled) -> None:
    folder = controlled.number("unusable", 1)
    (folder / "config.pbtxt").write_text("max_batch_size: many")
    assert controlled.load("unusable").status == 500
    (row,) = controlled.rows("unusable")
    assert row["state"] == "UNAVAILABLE"
    assert row["reason"].startswith("failed to read text proto from")
    controlled.drop("unusable")
    assert controlled.rows("unusable") == [{"name": "unusable"}]


def test_what_could_never_be_a_model_does_not_make_the_server_unready(controlled: Controlled) -> None:
    """As upstream; but a model without any version does."""
    ready = "/v2/health/ready"
    folder = controlled.number("unready", 1)
    for config in ("max_batch_size: many", "max_batch_size: -1", 'name: "other"', 'platform: "ensemble"'):
        (folder / "config.pbtxt").write_text(config)
        assert controlled.load("unready").status == 500
        assert controlled.server.get(ready).status == 200
    (folder / "config.pbtxt").write_text(io_config(extra="version_policy { specific { versions: [ 2 ] } }"))
    assert controlled.load("unready").status == 400
    assert controlled.server.get(ready).status == 400
    controlled.drop("unready")
    assert controlled.server.get(ready).status == 200


def test_versions_that_are_no_longer_chosen_go(controlled: Controlled) -> None:
    folder = controlled.number("versions", 1)
    (folder / "config.pbtxt").write_text(io_config(extra="version_policy { all {} }"))
    controlled.number("versions", 2, version=2)
    (folder / "config.pbtxt").write_text(io_config(extra="version_policy { all {} }"))
    controlled.load("versions")
    assert [row["state"] for row in controlled.rows("versions")] == ["READY", "READY"]
    (folder / "config.pbtxt").write_text(io_config(extra="version_policy { specific { versions: [ 1 ] } }"))
    assert (controlled.load("versions").status, controlled.value("versions")) == (200, 1)
    controlled.wait_unloaded("versions", 2)
    assert controlled.server.get("/v2/models/versions/versions/2").status == 503
    assert controlled.rows("versions")[1]["reason"] == "unloaded"
    (folder / "2" / "model.py").unlink()
    (folder / "2").rmdir()
    controlled.load("versions")
    assert [row["version"] for row in controlled.rows("versions")] == ["1"]
    controlled.drop("versions")


def test_a_version_that_fails_takes_the_others_with_it(controlled: Controlled) -> None:
    server = controlled.server
    folder = controlled.number("half", 1)
    write_model(controlled.repository, "half", "raise ValueError('second')", version=2)
    (folder / "config.pbtxt").write_text(io_config(extra="version_policy { all {} }"))
    answer = controlled.load("half")
    assert answer.error.startswith("load failed for model 'half': version 2 is at UNAVAILABLE state: ")
    controlled.wait_unloaded("half")
    first, second = controlled.rows("half")
    assert (first["state"], first["reason"]) == ("UNAVAILABLE", "unloaded")
    assert second["reason"].startswith("Internal: ValueError: second")
    assert server.get("/v2/health/ready").status == 400
    (folder / "config.pbtxt").write_text(io_config(extra="version_policy { specific { versions: [ 1 ] } }"))
    assert controlled.load("half").status == 200
    assert server.get("/v2/health/ready").status == 200
    controlled.drop("half")


def test_errors_of_several_versions_follow_each_other(controlled: Controlled) -> None:
    for version in (1, 2):
        write_model(controlled.repository, "all_bad", f"raise ValueError({version})", version=version)
    (controlled.repository / "all_bad" / "config.pbtxt").write_text(io_config(extra="version_policy { all {} }"))
    one = r"version {0} is at UNAVAILABLE state: Internal: ValueError: {0}\n\nAt:\n[^;]*\n;"
    text = f"load failed for model 'all_bad': {one.format(1)}{one.format(2)}\n"
    assert re.fullmatch(text, controlled.load("all_bad").error)


@pytest.mark.parametrize(
    ("backend", "text"),
    [
        ("nosuch", "unable to find backend library for backend 'nosuch'"),
        ("python", "instance group remote_0 of model remote has kind KIND_GPU but no GPUs are available"),
    ],
)
def test_a_missing_backend_is_told_before_a_missing_gpu(controlled: Controlled, backend: str, text: str) -> None:
    extra = 'default_model_filename: "model.txt" instance_group { kind: KIND_GPU }'
    write_model(controlled.repository, "remote", config=io_config(extra=extra).replace("python", backend))
    assert f"version 1 is at UNAVAILABLE state: Invalid argument: {text}" in controlled.load("remote").error


def test_a_file_that_is_missing_is_told_in_upstreams_words_too(controlled: Controlled) -> None:
    file = controlled.number("fileless", 1) / "1" / "model.py"
    file.unlink()
    assert f"TritonModelException: Python model file not found in '{file}'" in controlled.load("fileless").error
    words = f"Failed to preinitialize Python stub: Python model file not found in '{file}'"
    controlled.server.wait_for(re.escape(words))


def test_statistics_begin_anew(controlled: Controlled) -> None:
    controlled.number("counted", 1)
    controlled.load("counted")
    controlled.value("counted")
    assert controlled.server.statistics("counted")["inference_count"] == 1
    controlled.load("counted")
    assert controlled.server.statistics("counted")["inference_count"] == 1  # nothing has changed
    controlled.touch("counted")
    controlled.load("counted")
    assert controlled.server.statistics("counted")["inference_count"] == 0
    controlled.drop("counted")


def test_a_model_whose_stub_is_dead_is_loaded_anew(repository: Path) -> None:
    write_model(repository, "number", NUMBER.format(1, 1))
    with Serving(repository, EXPLICIT, "--load-model=*", "--stub-restart-limit=0") as server:
        controlled = Controlled(server, repository)
        os.kill(server.stub_pids()[0], signal.SIGKILL)
        server.wait_for("is not restarted")
        assert server.get("/v2/models/number/ready").status == 400
        assert controlled.load("number").status == 200
        assert controlled.value("number") == 1


# Other configurations, other files


def test_another_configuration_counts_until_a_file_changes(controlled: Controlled) -> None:
    folder = controlled.number("configured", 1)

    def batch_size() -> int:
        size: int = controlled.server.get("/v2/models/configured/config").json()["max_batch_size"]
        return size

    assert controlled.load("configured", config=json.dumps({**CONFIG, "max_batch_size": 3})).status == 200
    assert batch_size() == 3
    controlled.load("configured")
    assert batch_size() == 3
    (folder / "1" / "model.py").touch()
    controlled.load("configured")
    assert batch_size() == 0
    for config, reason in (
        ("{", "failed to parse the model configuration JSON"),
        ("[]", "must be a JSON object"),
        (json.dumps({**CONFIG, "max_batch_size": -1}), "'max_batch_size' must be non-negative value"),
        (json.dumps({**CONFIG, "name": "other"}), "unexpected directory name"),
    ):
        answer = controlled.load("configured", config=config)
        assert answer.status == 500
        assert answer.error.startswith("failed to load 'configured', failed to poll from model repository: ")
        assert reason in answer.error
    assert controlled.server.get("/v2/models/configured/ready").status == 200
    controlled.load("configured", config=json.dumps({**CONFIG, "max_batch_size": 3}))
    controlled.unload("configured")
    controlled.load("configured")
    assert batch_size() == 0
    controlled.drop("configured")


def test_a_model_made_of_files(controlled: Controlled) -> None:
    parameters = {"config": json.dumps(CONFIG), "file:1/model.py": base64.b64encode(model_file(7)).decode()}
    parameters["file:notes/read me"] = ""
    assert controlled.load("made", **parameters).status == 200
    assert controlled.value("made") == 7
    (name,) = controlled.made()
    assert controlled.temporary is not None
    folder = controlled.temporary / name
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == [
        "1/model.py",
        "notes/read me",
    ]
    assert controlled.rows("made") == [{"name": "made", "version": "1", "state": "READY"}]
    assert controlled.load("made").error.startswith("failed to load 'made', failed to poll from model repository")
    assert controlled.value("made") == 7
    controlled.drop("made")
    # Nothing is left, not even its name.
    assert controlled.rows("made") == []
    assert controlled.made() == []
    assert controlled.server.get("/v2/models/made").error == "Request for unknown model: 'made' is not found"


def test_a_leading_slash_of_a_file_is_the_models_folder(controlled: Controlled) -> None:
    model = base64.b64encode(model_file(3)).decode()
    assert controlled.load("made", config=json.dumps(CONFIG), **{"file:/1/model.py": model}).status == 200
    assert controlled.value("made") == 3
    (name,) = controlled.made()
    assert controlled.temporary is not None
    assert (controlled.temporary / name / "1" / "model.py").is_file()
    controlled.drop("made")


def test_one_instance_group_needs_no_list(controlled: Controlled) -> None:
    controlled.number("bare", 1)
    group = {"count": 2, "kind": "KIND_CPU"}
    assert controlled.load("bare", config=json.dumps({**CONFIG, "instance_group": group})).status == 200
    served = controlled.server.get("/v2/models/bare/config").json()["instance_group"]
    assert [(one["name"], one["count"]) for one in served] == [("bare_0", 2)]
    controlled.drop("bare")


def test_files_go_before_the_repository_until_a_plain_load(controlled: Controlled) -> None:
    controlled.number("both", 1)
    model = base64.b64encode(model_file(2)).decode().rstrip("=")
    assert controlled.load("both", config=json.dumps(CONFIG), **{"file:3/model.py": model}).status == 200
    assert controlled.value("both") == 2
    assert [row["version"] for row in controlled.rows("both")] == ["3"]
    controlled.load("both")
    assert controlled.value("both") == 1
    controlled.drop("both")


@pytest.mark.parametrize(
    ("parameters", "status", "text"),
    [
        ({"file:1/model.py": "eA=="}, 500, "Load parameter 'config' must be specified for model file override"),
        ({"config": 5}, 500, "attempt to access JSON non-string as string"),
        ({"nosuch": "x"}, 500, "unexpected error on creating Triton parameter"),
        ({"config": "{}", "file:1/model.py": "!"}, 400, "load parameter 'file:1/model.py' is no base64"),
        ({"config": json.dumps(CONFIG), "file:model.py": "eA=="}, 400, "at least one version must be available"),
        (
            {"config": json.dumps(CONFIG), "file:1/model.py": "eA==", "file:1/model.py/x": "eA=="},
            500,
            "cannot write file parameter 'file:1/model.py",
        ),
        *(
            ({"config": json.dumps(CONFIG), f"file:{path}": "eA=="}, 400, f"Invalid file parameter 'file:{path}' with")
            for path in ("../escape", "1/../../escape", "/../escape", "..", "", ".", "/", "a\0b")
        ),
    ],
)
def test_parameters_that_are_refused(
    controlled: Controlled, parameters: dict[str, Any], status: int, text: str
) -> None:
    answer = controlled.load("refused", **parameters)
    assert (answer.status, text in answer.error) == (status, True), answer
    assert controlled.made() == []
    assert controlled.rows("refused") == []


def test_a_load_that_is_too_large(tmp_path: Path) -> None:
    """Refused by its length, before it is read, or as soon as it is longer; nothing of it is kept."""
    write_model(tmp_path, "echo")
    with Serving(tmp_path, EXPLICIT, "--http-max-input-size=1000000") as server:
        large = json.dumps({"parameters": {"config": "{}", "file:1/model.py": "A" * 1_200_000}}).encode()
        path = "/v2/repository/models/made/load"
        answer = server.request("POST", path, large)
        assert (answer.status, "--http-max-input-size" in answer.error) == (400, True), answer
        # In chunks nobody knows how long it will be.
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as connection:
            head = f"POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            connection.sendall(head.encode() + b"100000\r\n" + large[: 1 << 20])
            assert connection.recv(12) == b"HTTP/1.1 400"
        # A length of which an int has nothing left, as announced and as a text
        for length in 2**31, 2**32 + 10, 2**63 - 1:
            with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as connection:
                connection.sendall(
                    f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n".encode() + large[:500]
                )
                assert connection.recv(12) == b"HTTP/1.1 400"
        assert server.request("POST", "/v2/repository/models/echo/load", b"{}").status == 200


@pytest.mark.parametrize(
    ("name", "why"),
    [
        *((name, "not contain path traversal characters") for name in ("%2e%2e", "%2e", "%5cx", "x%5c")),
        *((name, "Model name cannot be empty. Please enter a valid name to deploy.") for name in ("%20", "%20%09")),
        ("a%00b", "contains invalid characters"),
        ("a;b", "contains invalid characters"),
    ],
)
def test_names_that_can_be_no_models(controlled: Controlled, name: str, why: str) -> None:
    answer = controlled.load(name)
    assert (answer.status, why in answer.error) == (400, True), answer
    assert controlled.unload(name).status == 200


@pytest.mark.parametrize("name", ["...", "a..b"])
def test_a_name_may_be_of_dots(controlled: Controlled, name: str) -> None:
    controlled.number(name, 7)
    assert controlled.load(name).status == 200
    assert controlled.value(name) == 7
    assert controlled.unload(name).status == 200


# Who waits for whom


def test_loads_of_one_model_take_turns_and_others_do_not_wait(controlled: Controlled) -> None:
    server = controlled.server
    pipe = controlled.gated("slow", initialize=True)
    controlled.number("quick", 1)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(controlled.load, "slow")
        server.wait_for("waiting in slow")
        controlled.touch("slow")
        second = pool.submit(controlled.load, "slow")
        assert controlled.rows("slow") == [{"name": "slow", "version": "1", "state": "LOADING"}]
        assert (controlled.load("quick").status, controlled.value("quick")) == (200, 1)
        assert not first.done()
        assert server.output.count("waiting in slow") == 1
        open_gate(pipe)
        assert first.result(PATIENCE_S).status == 200
        open_gate(pipe)
        assert second.result(PATIENCE_S).status == 200
        server.wait_for_all("waiting in slow", 2)
    controlled.drop("slow", "quick")


def test_a_client_that_goes_away_leaves_no_load_half_done(controlled: Controlled) -> None:
    pipe = controlled.gated("left", initialize=True)
    connection = controlled.server.connect()
    connection.request("POST", "/v2/repository/models/left/load")
    controlled.server.wait_for("waiting in left")
    connection.close()
    open_gate(pipe)
    controlled.server.wait_for("successfully loaded 'left'")
    assert controlled.value("left") == 1
    controlled.drop("left")


def test_a_server_that_stops_does_not_wait_for_a_load(repository: Path) -> None:
    with Serving(repository, EXPLICIT) as server:
        Controlled(server, repository).gated("never", initialize=True)
        connection = server.connect()
        connection.request("POST", "/v2/repository/models/never/load")
        server.wait_for("waiting in never")
        pids = server.stub_pids()
        assert server.stop(timeout=20) == 0
        connection.close()
        wait_until_gone(pids, 5)


# Models that load and unload models


def test_requests_are_answered_between_the_starts_of_many_instances(repository: Path) -> None:
    count = 24
    write_model(repository, "many", config=io_config(extra=f"instance_group [ {{ count: {count} }} ]"))
    with Serving(repository, EXPLICIT) as server:
        seen = set()
        # On a busy machine this process may stand still while all of them start. A server that is held up by them
        # answers in none of the loads.
        for _ in range(10):
            loading = threading.Thread(target=server.request, args=("POST", "/v2/repository/models/many/load", b"{}"))
            loading.start()
            while loading.is_alive():
                before = len(server.stub_pids())
                assert server.get("/v2/health/live").status == 200
                # One is first, alone; then come all others.
                if before > 1 and len(server.stub_pids()) < count:
                    seen.add(before)
            if seen:
                break
            server.request("POST", "/v2/repository/models/many/unload", b"{}")
            eventually(lambda: not server.stub_pids())
        assert seen


def test_models_control_models(controlled: Controlled) -> None:
    controlled.number("other", 1)
    controlled.actor("actor")
    controlled.load("actor")
    assert controlled.run("actor", "pb_utils.is_model_ready('other')") == "False"
    assert controlled.run("actor", "pb_utils.load_model('other')") == "None"
    assert controlled.run("actor", "pb_utils.is_model_ready('other')") == "True"
    assert controlled.value("other") == 1
    made = {"file:1/model.py": model_file(9)}
    command = f"pb_utils.load_model('other', {json.dumps(CONFIG)!r}, {made!r})"
    assert controlled.run("actor", command) == "None"
    assert controlled.value("other") == 9
    threads = "[t.start() or t.join() for t in [threading.Thread(target=pb_utils.load_model, args=('other',))]]"
    assert controlled.run("actor", threads) == "[None]"
    assert controlled.value("other") == 1
    assert controlled.run("actor", "pb_utils.unload_model('other')") == "None"
    assert controlled.run("actor", "pb_utils.is_model_ready('other', '1')") == "False"
    assert controlled.run("actor", "pb_utils.unload_model('nosuch')") == "None"
    failed = "TritonModelException: Failed to load model: Failed to process the request for model 'actor_0', message: "
    for arguments, text in (
        ("'nosuch'", failed + "failed to load 'nosuch', failed to poll from model repository"),
        ("''", failed + "Model name cannot be empty. Please enter a valid name to deploy."),
        ("'x', '', {'file:1/model.py': b''}", failed + "failed to load 'x', failed to poll from model repository"),
        ("'x', '', {'file:../x': b''}", failed + "Invalid file parameter 'file:../x' with normalized path '../x'"),
        ("'x', '', {'1/model.py': b''}", "TritonModelException: Failed to load model: unrecognized load parameter"),
        ("'x', '', [1]", "TritonModelException: failed to load model 'x', files should be a dictionary of file paths"),
        ("'x', '', {'file:1/model.py': 5}", "TypeError: Object of type 'int' is not an instance of 'bytes'"),
        ("'x', '', {5: b''}", "TypeError: Object of type 'int' is not an instance of 'str'"),
    ):
        assert controlled.run("actor", f"pb_utils.load_model({arguments})").startswith(text)
    controlled.drop("actor")


def test_from_initialize_and_finalize(controlled: Controlled) -> None:
    controlled.number("helper", 1)
    controlled.actor("leader", "pb_utils.load_model('helper')", "pb_utils.unload_model('helper')")
    assert controlled.load("leader").status == 200
    assert controlled.value("helper") == 1
    controlled.unload("leader")
    controlled.wait_unloaded("helper")
    controlled.wait_unloaded("leader")


def test_a_model_may_reload_and_unload_itself_while_it_executes(controlled: Controlled) -> None:
    controlled.actor("selfish")
    controlled.load("selfish")
    controlled.touch("selfish")
    assert controlled.run("selfish", "pb_utils.load_model('selfish')") == "None"
    controlled.wait_unloaded("selfish")
    assert controlled.run("selfish", "pb_utils.unload_model('selfish')") == "None"
    assert controlled.server.get("/v2/models/selfish").status == 404
    controlled.drop("selfish")


def test_a_load_that_would_wait_for_itself_is_refused(controlled: Controlled) -> None:
    controlled.actor("narcissus", "pb_utils.unload_model('narcissus')")
    assert controlled.load("narcissus").status == 200
    controlled.server.wait_for("initialize: .*message: model 'narcissus' cannot load or unload itself while")
    controlled.actor("chicken", "pb_utils.load_model('egg')")
    controlled.actor("egg", "pb_utils.load_model('chicken')")
    assert controlled.load("chicken").status == 200
    controlled.server.wait_for("initialize: .*model 'egg' is being loaded and cannot wait for model 'chicken'")
    controlled.drop("narcissus", "chicken", "egg")


def test_loads_inside_loads_do_not_run_out_of_places(repository: Path) -> None:
    with Serving(repository, EXPLICIT, "--model-load-thread-count=1") as server:
        controlled = Controlled(server, repository)
        controlled.number("last", 1)
        controlled.actor("middle", "pb_utils.load_model('last')")
        controlled.actor("outer", "pb_utils.load_model('middle')")
        assert controlled.load("outer").status == 200
        assert controlled.value("last") == 1


def test_nothing_grows(controlled: Controlled) -> None:
    controlled.number("cycled", 1)
    controlled.actor("cycler")
    controlled.load("cycler")
    parent = psutil.Process(controlled.server.process.pid)

    def cycle(count: int) -> tuple[int, int, int]:
        for _ in range(count):
            assert controlled.run("cycler", "pb_utils.load_model('cycled')") == "None"
            assert controlled.value("cycled") == 1
            assert controlled.run("cycler", "pb_utils.unload_model('cycled')") == "None"
        controlled.drop("cycled")
        assert controlled.made() == []
        return len(controlled.server.stub_pids()), parent.num_fds(), parent.memory_info().rss

    stubs, descriptors, memory = cycle(4)
    more_stubs, more_descriptors, more_memory = cycle(16)
    assert more_stubs == stubs
    assert more_descriptors < descriptors + 8  # a connection may be on its way to its end
    assert more_memory < memory + (6 << 20)
    controlled.drop("cycler")


# From the start


def test_what_is_loaded_at_the_start(repository: Path) -> None:
    for name in ("a", "b", "c"):
        write_model(repository, name, NUMBER.format(1, 1))
    with Serving(repository, "--model-control-mode=EXPLICIT", "--load-model=a", "--load-model=b") as server:
        index = server.request("POST", "/v2/repository/index").json()
        assert [(row["name"], row.get("state")) for row in index] == [("a", "READY"), ("b", "READY"), ("c", None)]
        assert server.get("/v2/health/ready").status == 200
    with Serving(repository, EXPLICIT, "--load-model=*") as server:
        index = server.request("POST", "/v2/repository/index", b'{"ready":true}').json()
        assert [row["name"] for row in index] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["a", "*"], "Wildcard model name '*' must be the ONLY startup model if specified at all."),
        (["nosuch"], "model not found in any model repository"),
        (["../a"], "must not contain path traversal characters"),
    ],
)
def test_what_cannot_be_loaded_at_the_start(repository: Path, names: list[str], text: str) -> None:
    write_model(repository, "a", NUMBER.format(1, 1))
    server = Serving(repository, EXPLICIT, *(f"--load-model={name}" for name in names))
    server.start()
    server.wait_for(re.escape(text))
    assert server.process.wait(PATIENCE_S) == 1


def test_a_model_in_two_repositories(tmp_path: Path) -> None:
    for folder in ("first", "second"):
        write_model(tmp_path / folder, "twice", NUMBER.format(1, 1))
    with Serving(tmp_path / "first", f"--model-repository={tmp_path / 'second'}", EXPLICIT) as server:
        controlled = Controlled(server, tmp_path)
        reason = "model appears in two or more repositories"
        assert controlled.rows("twice") == [{"name": "twice", "state": "UNAVAILABLE", "reason": reason}]
        assert reason in controlled.load("twice").error


def test_without_model_control(repository: Path) -> None:
    write_model(repository, "number", NUMBER.format(1, 1))
    with Serving(repository) as server:
        controlled = Controlled(server, repository)
        text = "explicit model load / unload is not allowed if polling is enabled. This server does not poll; start it"
        for answer in (controlled.load("number"), controlled.unload("number"), controlled.load("nosuch")):
            assert (answer.status, answer.error) == (503, f"{text} with --model-control-mode=explicit")


def test_a_repository_that_is_looked_at_once(repository: Path) -> None:
    write_model(repository, "first", NUMBER.format(1, 1))
    with Serving(repository, "--model-control-mode=poll", "--repository-poll-secs=0") as server:
        controlled = Controlled(server, repository)
        assert controlled.value("first") == 1
        answer = controlled.load("first")
        assert (answer.status, "if polling is enabled" in answer.error) == (503, True)


def test_what_changes_on_disk_is_served(repository: Path) -> None:
    write_model(repository, "first", NUMBER.format(1, 1))
    with Serving(repository, "--model-control-mode=poll", "--repository-poll-secs=1") as server:
        controlled = Controlled(server, repository)
        assert controlled.value("first") == 1
        text = "explicit model load / unload is not allowed if polling is enabled"
        assert (controlled.load("first").error, controlled.unload("first").error) == (text, text)
        controlled.number("second", 2)
        server.wait_for("successfully loaded 'second'")
        assert controlled.value("second") == 2
        assert server.output.count("successfully loaded 'first'") == 1
        (repository / "first" / "1" / "model.py").write_text("raise ValueError('half of a change')")
        server.wait_for("failed to load 'first' version 1: Internal: ValueError: half of a change")
        assert controlled.value("first") == 1
        pids = server.stub_pids()
        # This file alone: a look between two that are written would be followed by another load.
        (repository / "first" / "1" / "model.py").write_text(textwrap.dedent(NUMBER.format(3, 3)))
        controlled.wait_unloaded("first")
        assert controlled.value("first") == 3
        (stub,) = set(server.stub_pids()) - set(pids)
        (repository / "first" / "config.pbtxt").write_text(io_config(extra="instance_group { count: 2 }"))
        deadline = time.monotonic() + 60
        while server.get("/v2/models/first/config").json()["instance_group"][0]["count"] != 2:
            assert time.monotonic() < deadline, server.output
            time.sleep(0.05)
        assert stub in server.stub_pids()
        assert server.statistics("first")["inference_count"] == 1
        shutil.rmtree(repository / "second")
        controlled.wait_unloaded("second")
        assert server.get("/v2/models/second").status == 404
        assert controlled.rows("second") == []
        assert server.get("/v2/health/ready").status == 200


def test_models_stay_while_their_polled_repository_is_away(repository: Path) -> None:
    write_model(repository, "first", NUMBER.format(1, 1))
    with Serving(repository, "--model-control-mode=poll", "--repository-poll-secs=1") as server:
        away = repository.rename(repository.with_name("away"))
        server.wait_for("cannot look for changes: failed to open directory .*: No such file or directory")
        assert binary_output(server.infer_array("first", np.zeros(1, np.float32))).tolist() == [1]
        assert server.get("/v2/health/ready").status == 200
        write_model(away, "second", NUMBER.format(2, 2))
        away.rename(repository)
        server.wait_for("successfully loaded 'second'")
        assert binary_output(server.infer_array("first", np.zeros(1, np.float32))).tolist() == [1]


@pytest.mark.parametrize("newer", ["load", "unload"])
def test_a_load_that_never_ends_is_ended_by_a_newer_request(repository: Path, newer: str) -> None:
    write_model(repository, "model", 'print("entangled", flush=True)\nwhile True:\n    pass\n')
    with Serving(repository, EXPLICIT) as server, ThreadPoolExecutor() as pool:
        first = pool.submit(server.request, "POST", "/v2/repository/models/model/load")
        server.wait_for("entangled")
        if newer == "load":
            same = pool.submit(server.request, "POST", "/v2/repository/models/model/load")
            write_model(repository, "model")
        assert server.request("POST", f"/v2/repository/models/model/{newer}").status == 200
        answer = first.result()
        assert answer.status == 503
        assert answer.error == "the load of model 'model' was ended by a newer load or unload of it"
        if newer == "load":
            assert same.result().status == 200
            assert server.infer_array("model", np.ones(1, np.float32)).status == 200
        else:
            assert not server.stub_pids()
