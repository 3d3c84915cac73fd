"""What all hostile clients have in common: they try again and again, and count what they did.

A hostile client is a function that makes one attempt on a `Target` and returns, or raises when the server throws it
out. `run` has each in threads of its own until it is told to stop.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

ATTEMPT_TIMEOUT_S = 30
PAUSE_S = 0.02


@dataclass
class Target:
    """Where the server listens, and what was done to it: `tally` counts attempts and what became of them."""

    http_port: int
    grpc_port: int
    stop: threading.Event = field(default_factory=threading.Event)
    tally: Counter[str] = field(default_factory=Counter)

    def http(self) -> socket.socket:
        return connect(self.http_port)

    def grpc(self) -> socket.socket:
        return connect(self.grpc_port)

    def hold(self, connection: socket.socket, seconds: float) -> None:
        """Keeps a connection without reading it."""
        self.stop.wait(seconds)


Attempt = Callable[[Target], None]


def connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), ATTEMPT_TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def reset(connection: socket.socket) -> None:
    """Closes with RST, as a client does that is killed with unread data."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def read_away(connection: socket.socket) -> None:
    """Takes what has arrived and does not wait for more. Raises EOFError at the end of the connection."""
    with contextlib.suppress(BlockingIOError):
        while True:
            if not connection.recv(1 << 16, socket.MSG_DONTWAIT):
                raise EOFError


def run(target: Target, attempts: list[tuple[Attempt, int]]) -> None:
    """Makes each attempt in as many threads as it says, over and over, until the target's `stop` is set."""
    for attempt, threads in attempts:
        for _ in range(threads):
            threading.Thread(target=_again, args=(target, attempt), daemon=True).start()
    target.stop.wait()


def _again(target: Target, attempt: Attempt) -> None:
    name = attempt.__name__
    while not target.stop.is_set():
        target.tally[name] += 1
        try:
            attempt(target)
        except (OSError, EOFError) as error:
            target.tally[f"{name}: {type(error).__name__}"] += 1
        target.stop.wait(PAUSE_S)
