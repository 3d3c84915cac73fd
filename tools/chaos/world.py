"""What clients and troubles share: the server that there is now, and whether it is to be asked."""

from __future__ import annotations

import http.client
import random
import re
import socket
import ssl
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.bench.servers import Server

HOST = "127.0.0.1"
ANSWER_WITHIN_S = 30.0
STANDS_STILL_S = 3.0
# Faults that are told when they happen; all of them are told in the end.
MOST_AT_ONCE = 50


class Wrong(Exception):
    """A success whose content does not follow from its request."""


class Refused(Exception):
    """An answer that is an error, with its reason."""


@dataclass
class Releases:
    """Those of a model that one server may answer with. `history` has them from the beginning on, the last are those
    of now; there are two while the server changes over. `port` is the server's for HTTP, 0 for the server of the life.
    """

    port: int = 0
    history: list[frozenset[int]] = field(default_factory=lambda: [frozenset({0})])

    def since(self, began: int) -> frozenset[int]:
        """Those that were right at some time since the history had `began` entries."""
        return frozenset().union(*self.history[began - 1 :])


@dataclass
class World:
    """`generation` grows with every end and every start of a server; it is odd while there is none.

    `token` is what a server wants to be shown, if any, and `withdrawn` what it no longer takes; `trust` is for one that
    speaks TLS, with the authority that has signed its certificate in `authority` (PEM).
    `releases` has an entry for each server of a rolling update.
    """

    http_port: int = 0
    grpc_port: int = 0
    metrics_port: int = 0
    # A request that takes longer hangs.
    answer_within_s: float = ANSWER_WITHIN_S
    # Of a front before the server and a neighbour, and the neighbour's; 0 without one
    front_port: int = 0
    neighbour_port: int = 0
    # How often the front has taken a server for dead
    front_downs: Callable[[], int] = int
    # What the server asks, or None
    stranger: Any = None
    generation: int = 1
    token: str = ""
    withdrawn: str = ""
    withdrawn_at: float = float("-inf")
    trust: ssl.SSLContext | None = None
    authority: bytes = b""
    releases: list[Releases] = field(default_factory=lambda: [Releases()])
    go: threading.Event = field(default_factory=threading.Event)
    over: bool = False
    faults: list[str] = field(default_factory=list)

    # When this process last stood still, and since when it is known: see `watch_clock`
    stood_still: float = float("-inf")
    seen: float = field(default_factory=time.monotonic)

    def serve(self, server: Server) -> None:
        """Has the clients ask this server from now on."""
        self.http_port, self.grpc_port, self.metrics_port = server.http_port, server.grpc_port, server.metrics_port

    def fault(self, text: str) -> None:
        self.faults.append(f"{time.strftime('%H:%M:%S')} {text}")
        if len(self.faults) <= MOST_AT_ONCE:
            print(f"fault: {self.faults[-1]}", file=sys.stderr, flush=True)

    def http(self, port: int = 0, timeout: float = 0) -> http.client.HTTPConnection:
        """A connection to the port of HTTP, or to another that speaks it."""
        timeout = timeout or self.answer_within_s
        if self.trust is not None:
            return http.client.HTTPSConnection(HOST, port or self.http_port, timeout=timeout, context=self.trust)
        return http.client.HTTPConnection(HOST, port or self.http_port, timeout=timeout)

    def post(self, path: str, body: bytes | str, headers: dict[str, str]) -> tuple[int, bytes]:
        """Status and body of the answer to a request on a connection of its own. Raises OSError."""
        connection = self.http()
        try:
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except http.client.HTTPException as error:
            raise ConnectionError(f"{error!r}") from error
        finally:
            connection.close()

    def connect(self, port: int, protocol: str = "http/1.1") -> socket.socket:
        """A bare connection. Raises OSError."""
        plain = socket.create_connection((HOST, port), ANSWER_WITHIN_S)
        if self.trust is None:
            return plain
        context = ssl.create_default_context(cadata=self.authority.decode())
        context.set_alpn_protocols([protocol])
        try:
            return context.wrap_socket(plain, server_hostname=HOST)
        except BaseException:
            plain.close()
            raise

    @property
    def headers(self) -> dict[str, str]:
        """What each request has to say beside what it asks."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The same for gRPC."""
        return tuple((name.lower(), value) for name, value in self.headers.items())

    def watch_clock(self) -> None:
        """Notes when time passes in which nothing here runs: the machine is suspended, or everything on it stopped.
        What takes long then does not hang. Runs until all is over."""
        while not self.over:
            time.sleep(STANDS_STILL_S / 10)
            now = time.monotonic()
            if now - self.seen > STANDS_STILL_S:
                self.stood_still = now
            self.seen = now

    def ran_since(self, began: float) -> bool:
        """Whether this process has run all the time since then."""
        return self.stood_still < began and time.monotonic() - self.seen <= STANDS_STILL_S


class Steps:
    """One client's sequences, one after the other. Whatever fails ends the sequence, and the next step begins anew."""

    def __init__(self, id: int | str, seed: int) -> None:
        self.id = id
        self._random = random.Random(seed)
        self._sum: int | None = None
        self._expected = 0
        self._ends = False

    def next(self) -> tuple[int, bool, bool]:
        """What to send, and whether it is the first and the last."""
        value, begins = self._random.randrange(1000), self._sum is None
        self._ends = self._random.random() < 0.1
        self._expected = value + (self._sum or 0)
        self._sum = None
        return value, begins, self._ends

    def check(self, answered: int) -> None:
        """Raises Wrong unless that is the sum of what has been sent."""
        if answered != self._expected:
            raise Wrong(f"sequence {self.id!r}: {answered} instead of {self._expected}")
        self._sum = None if self._ends else answered

    def parameters(self, begins: bool, ends: bool) -> dict[str, int | str | bool]:
        return {"sequence_id": self.id, "sequence_start": begins, "sequence_end": ends}


class Client(threading.Thread):
    """Asks without pause, as long as it may. `tally` is what became of its requests."""

    # How long it is idle between two requests.
    pause_s = 0.01
    # Whether a library ends its requests at their deadline, whatever the server does.
    keeps_deadlines = False

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(daemon=True, name=f"{type(self).__name__} {seed}")
        self.world = world
        self.seed = seed
        self.tally: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.idle = threading.Event()
        self.forsaken = False

    def ask(self) -> None:
        """One request. Raises Wrong, Refused, TimeoutError, and OSError where the connection is lost."""
        raise NotImplementedError

    def hang_up(self) -> None:
        """Closes its connection."""

    def whereabouts(self) -> str:
        """The lines that it is at, the innermost first."""
        frame = sys._current_frames().get(self.ident or 0)
        lines = traceback.extract_stack(frame)[::-1] if frame is not None else []
        return " < ".join(f"{Path(line.filename).name}:{line.lineno} {line.name}" for line in lines[:8])

    def run(self) -> None:
        world = self.world
        while not world.over:
            if not world.go.is_set():
                self.hang_up()
                self.idle.set()
                world.go.wait()
                self.idle.clear()
                continue
            self._ask_once()
            time.sleep(self.pause_s)
        self.hang_up()

    def was_cut(self) -> bool:
        """Whether what lies between may have ended the connection that is lost."""
        return False

    def _ask_once(self) -> None:
        world = self.world
        generation = world.generation
        began = time.monotonic()
        try:
            self.ask()
            self.tally["right"] += 1
        except Wrong as error:
            self.tally["wrong"] += 1
            world.fault(f"{self.name}: wrong: {error}")
        except Refused as error:
            self.tally["refused"] += 1
            self.reasons[re.sub(r"[0-9]+", "N", str(error))[:160]] += 1
            self.hang_up()
        except TimeoutError:
            if world.ran_since(began):
                self.tally["hung"] += 1
                world.fault(f"{self.name}: no end of a request within {ANSWER_WITHIN_S:.0f} s")
            else:
                self.tally["stood still"] += 1
            self.hang_up()
        except OSError as error:
            self.hang_up()
            if generation % 2 == 0 and generation == world.generation and not world.ran_since(began):
                # What is not read for long is closed.
                self.tally["stood still"] += 1
            elif generation % 2 == 0 and generation == world.generation and not self.was_cut():
                self.tally["lost"] += 1
                world.fault(f"{self.name}: a connection was lost although nobody ended the server: {error!r}")
            else:
                self.tally["lost with the server"] += 1
        except Exception as error:
            self.tally["wrong"] += 1
            world.fault(f"{self.name}: an answer that makes no sense: {error!r}")
            self.hang_up()
