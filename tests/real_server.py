"""Real servers for tests: a repository of models written on the spot, and a stubserve process that serves it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

# How long a test waits for what has to happen. Only there to end a hang: no test is about how fast something is.
PATIENCE_S = 60.0
# The same, where the machine's own speed decides: for a server's start, and for a program or a model that computes.
WORK_S = 300.0

IDENTITY = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse([
                    pb_utils.Tensor(tensor.name().replace("INPUT", "OUTPUT"), tensor.as_numpy())
                    for tensor in request.inputs()
                ])
                for request in requests
            ]
"""


def write_model(
    repository: Path, name: str, source: str = IDENTITY, config: str | None = None, version: int = 1
) -> Path:
    """Writes a model into a repository; without a config it is an FP32 identity of any length. Returns its folder."""
    folder = repository / name
    (folder / str(version)).mkdir(parents=True, exist_ok=True)
    (folder / str(version) / "model.py").write_text(textwrap.dedent(source))
    if config is None:
        config = io_config()
    (folder / "config.pbtxt").write_text(textwrap.dedent(config))
    return folder


def io_config(datatype: str = "FP32", dims: str = "-1", max_batch_size: int = 0, extra: str = "") -> str:
    """A configuration with one input INPUT0 and one output OUTPUT0 of the same type."""
    return f"""
    backend: "python"
    max_batch_size: {max_batch_size}
    input [ {{ name: "INPUT0" data_type: TYPE_{datatype} dims: [ {dims} ] }} ]
    output [ {{ name: "OUTPUT0" data_type: TYPE_{datatype} dims: [ {dims} ] }} ]
    {extra}
    """


class Answer:
    """One HTTP answer."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = {name.lower(): value for name, value in headers.items()}
        self.body = body

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The text of an error answer."""
        text: str = self.json()["error"]
        return text

    def __repr__(self) -> str:
        return f"<Answer {self.status} {self.body[:500]!r}>"


class Serving:
    """A stubserve process on a free port, as a context manager. Its output is collected and can be waited for."""

    def __init__(self, repository: Path | str, *flags: str, environment: dict[str, str] | None = None) -> None:
        self.command = [
            sys.executable, "-m", "stubserve", "serve", str(repository),
            "--http-address=127.0.0.1", "--http-port=0", "--grpc-address=127.0.0.1", "--grpc-port=0",
            "--metrics-port=0", *flags, *os.environ.get("STUBSERVE_TEST_FLAGS", "").split(),
        ]  # fmt: skip
        self.environment = {**os.environ, **(environment or {})}
        self.port = 0
        self.patience_s = PATIENCE_S  # for an answer
        self._lines: list[str] = []
        self._news = threading.Condition()

    def __enter__(self) -> Serving:
        self.start()
        try:
            self.port = int(self.wait_for(r"Started HTTPService at [^ \n]*:(\d+)", WORK_S)[1])
        except BaseException:
            self.stop()
            raise
        return self

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.command,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if error is not None:
            sys.stderr.write(self.output)

    def stop(self, timeout: float = PATIENCE_S) -> int:
        """Ends the server with SIGTERM; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        self._reader.join(5)
        return code

    # Its output

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                with self._news:
                    self._lines.append(line.decode(errors="replace"))
                    self._news.notify_all()
        with self._news:
            self._news.notify_all()

    @property
    def output(self) -> str:
        """What has come so far. A line may come after the answer to the request that it was written for, so what shall
        be in it is waited for.
        """
        with self._news:
            return "".join(self._lines)

    def wait_for(self, pattern: str, timeout: float = PATIENCE_S) -> re.Match[str]:
        """Waits until the output has a match; fails with the output when the process ends or time is up before."""
        deadline = time.monotonic() + timeout
        with self._news:
            while True:
                text = "".join(self._lines)
                match = re.search(pattern, text)
                if match is not None:
                    return match
                left = deadline - time.monotonic()
                if left <= 0 or not self._reader.is_alive():
                    raise AssertionError(f"no {pattern!r} in the output of the server:\n{text}")
                self._news.wait(min(left, 1.0))

    def wait_for_all(self, text: str, times: int) -> None:
        """Waits until the output has the text so many times; fails when it has it more often."""
        self.wait_for(f"(?s)({re.escape(text)}.*?){{{times}}}")
        assert self.output.count(text) == times

    def stub_pids(self) -> list[int]:
        """The stubs of this server."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    command = (entry / "cmdline").read_bytes()
                except (OSError, IndexError, ValueError):
                    continue
                if parent == self.process.pid and b"triton_python_backend_stub" in command:
                    found.append(int(entry.name))
        return sorted(found)

    # Talking to it

    @property
    def grpc_port(self) -> int:
        """The port of gRPC; it is ready when HTTP is."""
        return int(self.wait_for(r"Started GRPCInferenceService at [^ \n]*:(\d+)")[1])

    @property
    def metrics_port(self) -> int:
        """The port of metrics."""
        return int(self.wait_for(r"Started Metrics Service at [^ \n]*:(\d+)")[1])

    def metrics(self, path: str = "/metrics", method: str = "GET", headers: dict[str, str] | None = None) -> Answer:
        """What the metrics port answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.metrics_port, timeout=PATIENCE_S)
        return _exchange(connection, method, path, headers=headers)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.patience_s)

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        return _exchange(self.connect(), method, path, body, headers)

    def get(self, path: str) -> Answer:
        return self.request("GET", path)

    def wait_until_ready(self, timeout: float = WORK_S) -> None:
        """Asks until the server says that it is ready."""
        deadline = time.monotonic() + timeout
        while self.get("/v2/health/ready").status != 200:
            assert time.monotonic() < deadline, f"not ready after {timeout} s:\n{self.output}"
            time.sleep(0.05)

    def infer_json(self, model: str, inputs: Sequence[dict[str, Any]], **more: Any) -> Answer:
        """An inference request in JSON."""
        body = json.dumps({"inputs": list(inputs), **more}).encode()
        return self.request("POST", f"/v2/models/{model}/infer", body, {"Content-Type": "application/json"})

    def infer_array(self, model: str, array: np.ndarray, datatype: str = "FP32", **more: Any) -> Answer:
        """One array as INPUT0 in binary, binary outputs."""
        path, body, headers = binary_request(model, array, datatype, **more)
        return self.request("POST", path, body, headers)

    def statistics(self, model: str) -> dict[str, Any]:
        answer: dict[str, Any] = self.get(f"/v2/models/{model}/stats").json()["model_stats"][0]
        return answer


def refused(repository: Path, *prefix: str) -> Serving:
    """A server that has not started; `prefix` is the beginning of its command."""
    server = Serving(repository)
    server.command = [*prefix, *server.command]
    server.start()
    assert server.process.wait(PATIENCE_S) == 1
    server.stop()
    return server


def eventually(happened: Callable[[], Any], timeout: float = PATIENCE_S) -> Any:
    """Asks until the answer is true, and returns it."""
    deadline = time.monotonic() + timeout
    while not (answer := happened()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return answer


def _exchange(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return Answer(response.status, dict(response.getheaders()), response.read())
    finally:
        connection.close()


def binary_request(
    model: str, array: np.ndarray, datatype: str = "FP32", **more: Any
) -> tuple[str, bytes, dict[str, str]]:
    """Path, body and headers of a binary request with one input INPUT0."""
    data = array.tobytes()
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "INPUT0",
                    "datatype": datatype,
                    "shape": list(array.shape),
                    "parameters": {"binary_data_size": len(data)},
                }
            ],
            "parameters": {"binary_data_output": True},
            **more,
        }
    ).encode()
    return f"/v2/models/{model}/infer", head + data, {"Inference-Header-Content-Length": str(len(head))}


def binary_output(answer: Answer, dtype: Any = np.float32) -> np.ndarray:
    """The first output of a binary answer, as an array of its shape."""
    assert answer.status == 200, answer
    length = int(answer.headers["inference-header-content-length"])
    output = json.loads(answer.body[:length])["outputs"][0]
    return np.frombuffer(answer.body[length:], dtype).reshape(output["shape"])
