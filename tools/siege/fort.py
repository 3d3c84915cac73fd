"""The server under siege: its start, what its parent process holds, and whether it is whole again afterwards."""

from __future__ import annotations

import http.client
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil

from tools.bench import payloads, servers
from tools.bench.payloads import JSON_LENGTH_HEADER, Payload
from tools.bench.servers import Server, ServerError

MIB = 1 << 20
SHM_LIMIT = 256 * MIB
# What an operator's shell gives a server before it asks for more.
DESCRIPTORS = 1024
SAMPLE_S = 0.02
WHOLE_WITHIN_S = 30.0


def server(models: Path, log: Path) -> Server:
    program = servers.stubserve(Path(sys.executable))
    # The shell sets the limit and becomes the server.
    limited = ("sh", "-c", f'ulimit -Sn {DESCRIPTORS} && exec "$0" "$@"')
    flags = ("--shm-limit", str(SHM_LIMIT), "--exit-timeout-secs", "10", "--log-info", "false")
    return Server(replace(program, arguments=(*limited, *program.arguments, *flags)), models, log)


class Watch(threading.Thread):
    """Samples the parent's resident memory; a context manager. `peak` is in MiB."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.peak = 0.0
        self._process = psutil.Process(pid)
        self._stop_watching = threading.Event()

    def run(self) -> None:
        while not self._stop_watching.wait(SAMPLE_S):
            self.sample()

    def sample(self) -> float:
        """What it is now, 0 where the server is gone."""
        try:
            now = float(self._process.memory_info().rss) / MIB
        except psutil.Error:
            return 0.0
        self.peak = max(self.peak, now)
        return now

    def descriptors(self) -> int:
        return int(self._process.num_fds())

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_watching.set()
        self.join()


def until_whole(port: int, model: str = "large") -> float | None:
    """Seconds until half of the arena can be had in one request again; None when that does not come to pass."""
    payload = payloads.numbers(model, SHM_LIMIT // 2 // 4)
    begin = time.monotonic()
    while time.monotonic() - begin < WHOLE_WITHIN_S:
        if _answered(port, payload):
            return time.monotonic() - begin
        time.sleep(0.1)
    return None


def use_everything(port: int) -> None:
    """Has the server start what it starts when it is needed: the process that reads large JSON has a descriptor."""
    body = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,200000],"data":[' + b"0," * 199_999 + b"0]}]}"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WHOLE_WITHIN_S)
    try:
        connection.request("POST", "/v2/models/echo/infer", body)
        response = connection.getresponse()
        if response.status != 200:
            raise ServerError(f"large JSON is refused from the start: {response.read(300)!r}")
        response.read()
    finally:
        connection.close()


def until_closed(watch: Watch, descriptors: int) -> int:
    """How many descriptors more than `descriptors` the parent keeps, when it has had time to close the siege's."""
    deadline = time.monotonic() + WHOLE_WITHIN_S
    while (left := watch.descriptors() - descriptors) > 0 and time.monotonic() < deadline:
        time.sleep(0.1)
    return max(left, 0)


def _answered(port: int, payload: Payload) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WHOLE_WITHIN_S)
    try:
        connection.request("POST", payload.path, payload.body, payload.headers)
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            return False
        payload.check(body, response.headers[JSON_LENGTH_HEADER])
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True
