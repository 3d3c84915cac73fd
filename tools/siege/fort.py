"""The server under siege: its start, what its parent process holds, and whether it is whole again afterwards."""

from __future__ import annotations

import contextlib
import http.client
import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import psutil

from tools.bench import payloads, servers
from tools.bench.payloads import Payload, WrongAnswerError
from tools.bench.servers import Server, ServerError

from .models import NAMES

MIB = 1 << 20
SHM_LIMIT = 256 * MIB
# What an operator's shell gives a server before it asks for more.
DESCRIPTORS = 1024
# Memory is touched at 0.1 ms for each MiB and more, so at most 20 MiB come and go between two samples.
SAMPLE_S = 0.002
WHOLE_WITHIN_S = 30.0
TIMER = "anon_inode:[timerfd]"


def server(models: Path, log: Path) -> Server:
    program = servers.stubserve(Path(sys.executable))
    # The shell sets the limit and becomes the server.
    limited = ("sh", "-c", f'ulimit -Sn {DESCRIPTORS} && exec "$0" "$@"')
    flags = ("--shm-limit", str(SHM_LIMIT), "--exit-timeout-secs", "10", "--log-info", "false")
    return Server(replace(program, arguments=(*limited, *program.arguments, *flags)), models, log)


class Memory(NamedTuple):
    """What the parent has in memory, in MiB: `resident` counts what it has touched of the arena, too, and `own` does
    not."""

    resident: float
    own: float


class Watch(threading.Thread):
    """Samples the parent's memory; a context manager. `peak` is the most of each that was seen."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.peak = Memory(0.0, 0.0)
        self._process = psutil.Process(pid)
        self._stop_watching = threading.Event()

    def run(self) -> None:
        while not self._stop_watching.wait(SAMPLE_S):
            self.sample()

    def sample(self) -> Memory:
        """What it is now, 0 where the server is gone."""
        try:
            pages = self._process.memory_info()
        except psutil.Error:
            return Memory(0.0, 0.0)
        # What is shared are the pages of files and of the arena.
        now = Memory(pages.rss / MIB, (pages.rss - pages.shared) / MIB)
        self.peak = Memory(*map(max, self.peak, now))
        return now

    def descriptors(self) -> dict[int, str]:
        """What each is open on."""
        connections = {one.fd: f"{one.laddr} {one.raddr} {one.status}" for one in self._process.net_connections("all")}
        found: dict[int, str] = {}
        for link in Path(f"/proc/{self._process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found[int(link.name)] = connections.get(int(link.name)) or os.readlink(link)
        return found

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


def until_closed(watch: Watch, before: dict[int, str]) -> list[str]:
    """What the parent has open and had not `before`, when it has had time to close the siege's.

    One may take the place of another. A model's queue has a timer of its own from the first time that it needs one.
    """
    deadline = time.monotonic() + WHOLE_WITHIN_S
    while (left := _more(before, watch.descriptors())) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def _more(before: dict[int, str], now: dict[int, str]) -> list[str]:
    timers = sum(what == TIMER for what in now.values()) - sum(what == TIMER for what in before.values())
    if len(now) - len(before) <= max(0, min(timers, len(NAMES))):
        return []
    return [f"{number}: {what}" for number, what in sorted(now.items()) if before.get(number) != what]


def _answered(port: int, payload: Payload) -> bool:
    try:
        payloads.send(port, payload)
    except (OSError, http.client.HTTPException, WrongAnswerError):
        return False
    return True
