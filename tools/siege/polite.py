"""Polite clients: what they ask is small or of a usual size, and they take the time of every answer.

Requests are due at fixed times, and an answer's time counts from when its request was due. A client asks for one thing
at a time; what was due meanwhile is not asked, and counts as having waited for the same answer. So a server that stands
still for a second is seen by all the requests of that second, and not by the one that waited. One that takes 20 ms for
what is due every 10 is not seen to fall behind by minutes: other clients would not have waited for this one.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from tools.chaos.grpc_clients import Unary
from tools.chaos.http_clients import Binary, HttpClient, read
from tools.chaos.world import Client, Refused, World, Wrong

SMALL_TIMEOUT_S = 5.0
LARGE_TIMEOUT_S = 20.0


@dataclass
class Record:
    """What one client saw: times in ms, failures by their text, and the longest time refused in a row."""

    times_ms: list[float] = field(default_factory=list)
    asked: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    wrong: int = 0
    longest_refused_s: float = 0.0

    def percentile(self, percent: float) -> float:
        times = sorted(self.times_ms)
        return times[min(int(len(times) * percent / 100), len(times) - 1)] if times else float("inf")

    @property
    def worst_ms(self) -> float:
        return max(self.times_ms, default=float("inf"))

    @property
    def answered(self) -> int:
        """Rightly."""
        return self.asked - self.failed - self.wrong

    @property
    def failed(self) -> int:
        return sum(self.failures.values())


class Small(Binary):
    """16 floats on a connection that stays. The request is made once: what that takes is not the server's."""

    model, factor, more, input_name = "small", 1.0, 0.0, "INPUT0"
    sizes = (16,)
    _made: tuple[np.ndarray, bytes, dict[str, str]] | None = None

    def request(self) -> tuple[np.ndarray, bytes, dict[str, str]]:
        if self._made is None:
            self._made = super().request()
        return self._made


class Large(Small):
    """4 MiB, again and again."""

    model = "large"
    sizes = (1 << 20,)


class SmallGrpc(Unary):
    """Two floats over gRPC."""

    model, factor, more, input_name = "small", 1.0, 0.0, "INPUT0"
    sizes = (2,)


class Health(HttpClient):
    """A probe, which has a new connection each time as those of orchestrators have."""

    def ask(self) -> None:
        self.hang_up()
        read(self.post("/v2/health/ready", None, method="GET"))


class Polite(threading.Thread):
    """Has a client ask every `every_s` seconds until `stop` is set."""

    def __init__(self, client: Client, every_s: float, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.record = Record()
        self._client = client
        self._every_s = every_s
        self._stop_asking = stop

    def run(self) -> None:
        record = self.record
        due = time.monotonic()
        refused_since: float | None = None
        while not self._stop_asking.is_set():
            began = time.monotonic()
            try:
                self._client.ask()
                if refused_since is not None:
                    record.longest_refused_s = max(record.longest_refused_s, time.monotonic() - refused_since)
                    refused_since = None
            except Wrong:
                record.wrong += 1
            except (OSError, Refused) as error:
                text = f"{type(error).__name__}: {error}"[:150]
                record.failures[text] = record.failures.get(text, 0) + 1
                refused_since = began if refused_since is None else refused_since
                self._client.hang_up()
            now = time.monotonic()
            record.asked += 1
            while due <= now:
                record.times_ms.append((now - due) * 1000)
                due += self._every_s
            self._stop_asking.wait(due - now)
        if refused_since is not None:
            record.longest_refused_s = max(record.longest_refused_s, time.monotonic() - refused_since)
        self._client.hang_up()


class Crowd:
    """One of each, together; a context manager. `records` are theirs by name."""

    # The client, how often it asks, and how long it waits for an answer
    kinds: ClassVar[dict[str, tuple[type[Client], float, float]]] = {
        "small": (Small, 0.01, SMALL_TIMEOUT_S),
        "grpc": (SmallGrpc, 0.01, SMALL_TIMEOUT_S),
        "health": (Health, 0.02, SMALL_TIMEOUT_S),
        "large": (Large, 0.05, LARGE_TIMEOUT_S),
    }

    def __init__(self, http_port: int, grpc_port: int) -> None:
        self._stop = threading.Event()
        self._clients = {
            name: Polite(kind(World(http_port, grpc_port, answer_within_s=patience_s), 0), every_s, self._stop)
            for name, (kind, every_s, patience_s) in self.kinds.items()
        }

    @property
    def records(self) -> dict[str, Record]:
        return {name: client.record for name, client in self._clients.items()}

    def __enter__(self) -> Crowd:
        for client in self._clients.values():
            client.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Has them finish what they asked last."""
        self._stop.set()
        for client in self._clients.values():
            client.join(LARGE_TIMEOUT_S + 5)
