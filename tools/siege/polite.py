"""Polite clients: what they ask is small or of a usual size, and they take the time of every answer.

Requests are due at fixed times, and an answer's time counts from when its request was due. A client asks for one thing
at a time; what was due meanwhile is not asked, and counts as having waited for the same answer. So a server that stands
still for a second is seen by all the requests of that second, and not by the one that waited. One that takes 20 ms for
what is due every 10 is not seen to fall behind by minutes: other clients would not have waited for this one.
"""

from __future__ import annotations

import http.client
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import grpc

from tools.bench import payloads
from tools.bench.payloads import JSON_LENGTH_HEADER, WrongAnswerError

from .grpc_attacks import INFER, message

SMALL_TIMEOUT_S = 5.0
LARGE_TIMEOUT_S = 20.0


class Refused(Exception):
    """An answer that is an error."""


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


class Polite(ABC, threading.Thread):
    """Asks every `every_s` seconds until `stop` is set."""

    every_s = 0.01

    def __init__(self, http_port: int, grpc_port: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.http_port = http_port
        self.grpc_port = grpc_port
        self.record = Record()
        self._stop_asking = stop

    @abstractmethod
    def ask(self) -> None:
        """One request. Raises OSError, HTTPException, RpcError or Refused where it fails, WrongAnswerError."""

    def run(self) -> None:
        record = self.record
        due = time.monotonic()
        refused_since: float | None = None
        while not self._stop_asking.is_set():
            began = time.monotonic()
            try:
                self.ask()
                if refused_since is not None:
                    record.longest_refused_s = max(record.longest_refused_s, time.monotonic() - refused_since)
                    refused_since = None
            except WrongAnswerError:
                record.wrong += 1
            except (OSError, http.client.HTTPException, grpc.RpcError, Refused) as error:
                text = str(error.code()) if isinstance(error, grpc.Call) else f"{type(error).__name__}: {error}"[:150]
                record.failures[text] = record.failures.get(text, 0) + 1
                refused_since = began if refused_since is None else refused_since
                self.hang_up()
            now = time.monotonic()
            record.asked += 1
            while due <= now:
                record.times_ms.append((now - due) * 1000)
                due += self.every_s
            self._stop_asking.wait(due - now)
        if refused_since is not None:
            record.longest_refused_s = max(record.longest_refused_s, time.monotonic() - refused_since)
        self.hang_up()

    def hang_up(self) -> None:
        """Closes what is open, after a failure and at the end."""


class Small(Polite):
    """16 floats on a connection that stays."""

    model, count, timeout_s = "small", 16, SMALL_TIMEOUT_S

    def __init__(self, *ports_and_stop: object) -> None:
        super().__init__(*ports_and_stop)  # type: ignore[arg-type]
        self._payload = payloads.numbers(self.model, self.count)
        self._connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=self.timeout_s)

    def ask(self) -> None:
        self._connection.request("POST", self._payload.path, self._payload.body, self._payload.headers)
        response = self._connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise Refused(f"{response.status} {body[:120]!r}")
        self._payload.check(body, response.headers[JSON_LENGTH_HEADER])

    def hang_up(self) -> None:
        self._connection.close()


class Large(Small):
    """4 MiB, again and again."""

    model, count, timeout_s = "large", 1 << 20, LARGE_TIMEOUT_S
    every_s = 0.05


class SmallGrpc(Polite):
    """Two floats over gRPC."""

    def __init__(self, *ports_and_stop: object) -> None:
        super().__init__(*ports_and_stop)  # type: ignore[arg-type]
        self._message = message("small", id="polite")
        self._connect()

    def _connect(self) -> None:
        # grpcio gives channels of one target one connection, unless they are told not to.
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(f"127.0.0.1:{self.grpc_port}", options)

    def ask(self) -> None:
        answer = self._channel.unary_unary(INFER)(self._message, timeout=SMALL_TIMEOUT_S)
        if b"polite" not in answer or not answer.endswith(bytes(8)):
            raise WrongAnswerError(f"not what was sent: {answer!r}")

    def hang_up(self) -> None:
        # grpcio waits ever longer before it connects again, which would be told of the server.
        self._channel.close()
        if not self._stop_asking.is_set():
            self._connect()


class Health(Polite):
    """A probe, which has a new connection each time as those of orchestrators have."""

    every_s = 0.02

    def ask(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=SMALL_TIMEOUT_S)
        try:
            connection.request("GET", "/v2/health/ready")
            status = connection.getresponse().status
            if status != 200:
                raise Refused(f"status {status}")
        finally:
            connection.close()


class Crowd:
    """One of each, together; a context manager. `records` are theirs by name."""

    def __init__(self, http_port: int, grpc_port: int) -> None:
        self._stop = threading.Event()
        clients = {"small": Small, "grpc": SmallGrpc, "health": Health, "large": Large}
        self._clients = {name: kind(http_port, grpc_port, self._stop) for name, kind in clients.items()}

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
