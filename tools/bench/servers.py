"""Servers under measurement: how each is started on a repository, known to be ready, put to sleep, and stopped."""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools.ports import free_ports

from . import payloads
from .payloads import Payload, Sample
from .processes import ProcessTree

READY_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0
POLL_S = 0.002
# wrk leaves its last requests unanswered: they should end before a server is put to sleep.
DRAIN_S = 0.5


class ServerError(Exception):
    """A server did not start, or ended while it was needed."""


@dataclass(frozen=True)
class Program:
    """A server's command line, and the interpreter that its models run in.

    The words REPO, HTTP, GRPC and METRICS in `arguments` stand for the folder and the ports. `payload` puts a request
    into the server's protocol. A rival has a `package`, whose version is its own; the others speak KServe v2. A server
    that `polls` works while it waits. `onnx` says whether it runs ONNX models, `only_onnx` that it runs nothing else.
    """

    name: str
    arguments: tuple[str, ...]
    python: str
    environment: dict[str, str]
    ready_path: str = "/v2/health/ready"
    payload: Callable[[Sample], Payload] = payloads.kserve
    package: str = ""
    polls: bool = False
    onnx: bool = True
    only_onnx: bool = False
    # What allows clients to share memory with it, where that is not so anyway
    region_flags: tuple[str, ...] = ()
    # What it needs beside --cache-config
    cache_flags: tuple[str, ...] = ()

    @property
    def kserve(self) -> bool:
        return not self.package

    def command(self, repository: Path | str, ports: tuple[int, int, int]) -> list[str]:
        values = dict(zip(("REPO", "HTTP", "GRPC", "METRICS"), (str(repository), *map(str, ports)), strict=True))
        return [values.get(argument, argument) for argument in self.arguments]

    def __str__(self) -> str:
        """The command line to show a reader: no folders of this machine."""
        return " ".join(Path(argument).name if "/" in argument else argument for argument in self.arguments)


def peers_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("PEERS_DIR") or f"{cache}/stubserve-peers")


@cache
def peers_environment() -> dict[str, str]:
    """What the peers' env.sh exports; raises ServerError when they are not installed."""
    script = peers_folder() / "env.sh"
    if not script.is_file():
        raise ServerError(f"no {script}: install the peers with tools/peers.sh, or name their folder in PEERS_DIR")
    shell = subprocess.run(["bash", "-c", '. "$0" && env -0', str(script)], capture_output=True, text=True, check=True)
    return dict(line.partition("=")[::2] for line in shell.stdout.split("\0") if line)


def triton() -> Program:
    peers = peers_environment()
    home, venv = peers["TRITON_HOME"], peers["TRITON_VENV"]
    arguments = [f"{home}/bin/tritonserver", "--backend-directory", f"{home}/backends", "--model-repository", "REPO"]
    arguments += ["--http-address", "127.0.0.1", "--grpc-address", "127.0.0.1"]
    arguments += ["--http-port", "HTTP", "--grpc-port", "GRPC", "--metrics-port", "METRICS"]
    # The embedded interpreter finds its site-packages through the first python3 in PATH.
    environment = {**os.environ, "PATH": f"{venv}/bin:{os.environ['PATH']}"}
    # A checkout's stub/ on the path would take the place of Triton's own triton_python_backend_utils.
    environment.pop("PYTHONPATH", None)
    caches = (f"--cache-directory={home}/caches",)
    return Program("triton", tuple(arguments), f"{venv}/bin/python3", environment, onnx=False, cache_flags=caches)


def stubserve(python: Path) -> Program:
    """stubserve as installed in the environment of the interpreter `python`."""
    script = python.with_name("stubserve")
    if not script.is_file():
        raise ServerError(f"no {script}: install stubserve there first ({python} -m pip install --editable .)")
    arguments = [str(script), "serve", "REPO", "--http-address", "127.0.0.1"]
    arguments += ["--grpc-address", "127.0.0.1"]
    arguments += ["--http-port", "HTTP", "--grpc-port", "GRPC", "--metrics-port", "METRICS"]
    return Program(
        "stubserve", tuple(arguments), str(python), dict(os.environ), region_flags=("--allow-client-shm=true",)
    )


class Server:
    """One running server; a context manager that starts it, waits for readiness, and stops it.

    `start_ms` is the time from exec to the first 200 of the program's `ready_path`.
    """

    def __init__(self, program: Program, repository: Path | str, log: Path) -> None:
        self.name = program.name
        self.start_ms = 0.0
        self._program = program
        self._repository = repository
        self._log = log
        self._ports = free_ports(3)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def http_port(self) -> int:
        return self._ports[0]

    @property
    def grpc_port(self) -> int:
        return self._ports[1]

    @property
    def metrics_port(self) -> int:
        return self._ports[2]

    @property
    def pid(self) -> int:
        """The first process, which in stubserve is the one that clients talk to."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Server:
        command = self._program.command(self._repository, self._ports)
        try:
            with self._log.open("wb") as log:
                begin = time.monotonic()
                self._process = subprocess.Popen(
                    command, stdout=log, stderr=log, env=self._program.environment, start_new_session=True
                )
        except OSError as error:
            raise ServerError(f"{self.name} cannot be started: {error}") from error
        try:
            self._wait_until_ready(begin + READY_TIMEOUT_S)
        except BaseException:
            self._stop()
            raise
        self.start_ms = (time.monotonic() - begin) * 1000
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _wait_until_ready(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            self.require_alive()
            connection = self._connection(5)
            try:
                connection.request("GET", self._program.ready_path)
                if connection.getresponse().status == 200:
                    return
            except (OSError, http.client.HTTPException):
                pass
            finally:
                connection.close()
            time.sleep(POLL_S)
        raise ServerError(f"{self.name} was not ready after {READY_TIMEOUT_S:.0f} s:\n{self.log_tail()}")

    def _stop(self) -> None:
        process = self._process
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        with suppress(ProcessLookupError):
            self.wake()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
        # A server that is stopped while it loads its models may leave their processes behind.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def require_alive(self) -> None:
        """Raises ServerError with the end of the log if the server has ended."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise ServerError(f"{self.name} ended with {self._process.returncode}:\n{self.log_tail()}")

    def log_tail(self) -> str:
        """The last lines of what it printed, and of the log that it was told to write."""
        told = [word.partition("=")[2] for word in self._program.arguments if word.startswith("--log-file=")]
        files = [file for file in (self._log, *map(Path, told)) if file.exists()]
        return "\n".join("\n".join(file.read_text(errors="replace").splitlines()[-20:]) for file in files)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """While it is open, a server that `sleep` has stopped runs."""
        self.wake()
        try:
            yield
        finally:
            self.sleep()

    def sleep(self) -> None:
        """Stops the processes of a server that polls where they are, so that its waiting costs the others nothing."""
        if self._program.polls:
            time.sleep(DRAIN_S)
            self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def processes(self) -> ProcessTree:
        assert self._process is not None
        return ProcessTree(self._process.pid)

    def get(self, path: str) -> dict[str, object]:
        """The JSON object at `path`; raises ServerError for any status but 200."""
        answer: dict[str, object] = json.loads(self._exchange("GET", path))
        return answer

    def post(self, path: str, fields: dict[str, object]) -> bytes:
        """What is answered to `fields` as JSON; raises ServerError for any status but 200."""
        return self._exchange("POST", path, json.dumps(fields))

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        if "--http-use-ssl=true" in self._program.arguments:
            # A certificate made for the measurement, which nobody vouches for
            unchecked = ssl._create_unverified_context()
            return http.client.HTTPSConnection("127.0.0.1", self.http_port, timeout=timeout, context=unchecked)
        return http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=timeout)

    def _exchange(self, method: str, path: str, body: str | None = None) -> bytes:
        connection = self._connection(60)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise ServerError(f"{self.name}: {method} {path}: status {response.status}: {answer[:300]!r}")
        return answer
