"""The load generator for gRPC and for server-sent events: a process of its own, as wrk is for the rest.

It is told what to send on its standard input (`Order`) and prints its figures as one line of JSON.
"""

from __future__ import annotations

import base64
import json
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from socket import socket
from statistics import quantiles
from typing import Protocol

from .event_client import EventConnection
from .http2_client import GrpcConnection, framed
from .wrk import Load, LoadError

PATIENCE_S = 30.0
# Quantiles need two. On a busy machine they may take longer than the time of the run.
FEWEST_ANSWERS = 2


@dataclass(frozen=True)
class Order:
    """What a run sends: `messages`, each in base64, in turn over gRPC, or `fields` as the JSON of `generate_stream`.

    `per_request` is how many responses each request of a stream has; None: calls are unary.
    """

    path: str
    connections: int
    messages: Sequence[str] = ()
    fields: dict[str, int] | None = None
    shortest: int = 1
    per_request: int | None = None

    @staticmethod
    def grpc(
        method: str, messages: Sequence[bytes], connections: int, shortest: int, per_request: int | None = None
    ) -> Order:
        path = f"/inference.GRPCInferenceService/{method}"
        encoded = [base64.b64encode(message).decode() for message in messages]
        return Order(path, connections, encoded, None, shortest, per_request)


@dataclass(frozen=True)
class StreamedLoad(Load):
    """`requests` counts responses. `cut_short` streams ended before their last response, `streams` ended at all."""

    streams: int
    cut_short: int


class Connection(Protocol):
    """What the loop needs of a connection."""

    socket: socket
    reconnects: bool
    began: float
    responses: int
    cut_short: int
    wants_to_write: bool

    def request(self) -> None: ...
    def read(self) -> None: ...
    def write(self) -> None: ...


def run(port: int, order: Order, seconds: float) -> StreamedLoad:
    """Runs a client process for about `seconds`. Raises LoadError unless all went well, but for streams cut short."""
    command = [sys.executable, "-m", "tools.bench.load_client", str(port), str(seconds)]
    finished = subprocess.run(
        command, input=json.dumps(asdict(order)), capture_output=True, text=True, timeout=seconds + 2 * PATIENCE_S
    )
    if finished.returncode != 0:
        raise LoadError(f"the load client: {finished.stderr[-800:]}")
    return StreamedLoad(**json.loads(finished.stdout))


def main() -> None:
    order = Order(**json.load(sys.stdin))
    try:
        load = Run(int(sys.argv[1]), order, float(sys.argv[2])).load()
    except (LoadError, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    print(json.dumps(asdict(load)))


class Run:
    """One run: its connections, each with a request under way until the time is up."""

    def __init__(self, port: int, order: Order, seconds: float) -> None:
        self._latencies: list[float] = []
        self._seconds = seconds
        self._deadline = 0.0
        self._busy = 0
        # Whether what is under way when the time is up is waited for. Event streams may not end, see `event_client`.
        self._finishes = order.fields is None
        self._poll = select.epoll()
        self._connections: list[Connection] = []
        self._by_number: dict[int, Connection] = {}
        messages = cycle([framed(base64.b64decode(message)) for message in order.messages])
        for _ in range(order.connections):
            connection: GrpcConnection | EventConnection
            if order.fields is None:
                connection = GrpcConnection(port, order.path, messages, order.shortest, order.per_request, self._done)
            else:
                assert order.per_request is not None
                connection = EventConnection(port, order.path, order.fields, order.per_request, self._done)
            self._connections.append(connection)
            if not connection.reconnects:
                self._watch(connection)

    def load(self) -> StreamedLoad:
        writing: set[int] = set()
        begin = time.perf_counter()
        self._deadline = begin + self._seconds
        self._busy = len(self._connections)
        for connection in self._connections:
            connection.began = begin
            self._request(connection)
        while self._busy:
            left = self._deadline - time.perf_counter()
            patience_s = PATIENCE_S if self._finishes or left <= 0 else left
            events = self._poll.poll(patience_s)
            if not self._finishes and self._is_over(time.perf_counter()):
                break
            if not events and patience_s == PATIENCE_S:
                raise LoadError(f"no answer for {PATIENCE_S:.0f} s")
            for number, event in events:
                connection = self._by_number[number]
                if event & select.EPOLLOUT:
                    connection.write()
                if event & ~select.EPOLLOUT:
                    connection.read()
                if connection.wants_to_write != (number in writing):
                    writing ^= {number}
                    self._poll.modify(number, select.EPOLLIN | (select.EPOLLOUT if number in writing else 0))
        spent = time.perf_counter() - begin
        responses = sum(connection.responses for connection in self._connections)
        cut_short = sum(connection.cut_short for connection in self._connections)
        cuts = quantiles(self._latencies, n=100, method="inclusive")
        p50, p99 = cuts[49] * 1e6, cuts[98] * 1e6
        return StreamedLoad(responses, responses / spent, p50, p99, len(self._latencies), cut_short)

    def _done(self, connection: Connection) -> None:
        now = time.perf_counter()
        self._latencies.append(now - connection.began)
        connection.began = now
        if self._is_over(now):
            self._busy -= 1
        else:
            self._request(connection)

    def _is_over(self, now: float) -> bool:
        """Whether the time is up, and there are as many answers as figures can be made of."""
        return now >= self._deadline and len(self._latencies) >= FEWEST_ANSWERS

    def _request(self, connection: Connection) -> None:
        connection.request()
        if connection.reconnects:
            self._watch(connection)

    def _watch(self, connection: Connection) -> None:
        number = connection.socket.fileno()
        self._poll.register(number, select.EPOLLIN)
        self._by_number[number] = connection


if __name__ == "__main__":
    main()
