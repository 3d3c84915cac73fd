"""What a run consists of: who asks, what happens to the servers, and how each of them is started."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from . import grpc_clients, http_clients, models
from .troubles import Kills, Troubles
from .world import Client, World

Crowd = list[tuple[type[Client], int]]

SEGMENT = "/memfd:stubserve (deleted)"
# Stubs come and go between two looks at their number, a model's alarm comes when a request first has to wait, and the
# process that sends traces to a collector, with two pipes, comes with the first trace.
SPARE = {SEGMENT: 5, "anon_inode:[timerfd]": 4, "pipe:[N]": 2}


@dataclass(frozen=True)
class Start:
    """How a server is started."""

    repository: str
    flags: tuple[str, ...]
    environment: dict[str, str]


class Scene:
    """The usual one. It makes its files in `folder`."""

    crowd: ClassVar[Crowd] = [
        (http_clients.Binary, 4),
        (http_clients.Json, 2),
        (http_clients.Calls, 2),
        (http_clients.Events, 2),
        (http_clients.Sums, 4),
        (http_clients.Keeps, 2),
        (http_clients.Vanishing, 2),
        (grpc_clients.Unary, 2),
        (grpc_clients.UnarySums, 2),
        (grpc_clients.StreamedSums, 2),
        (grpc_clients.Streams, 2),
        (grpc_clients.Cancelling, 1),
    ]

    def __init__(self, folder: Path, world: World, children: bool = True) -> None:
        self.folder = folder
        self.world = world
        self.tally: Counter[str] = Counter()
        self._children = children
        models.write(folder / "models")

    @property
    def spare(self) -> dict[str, int]:
        """Descriptors that the server may have more at the end of its life."""
        return SPARE

    def troubles(self) -> Troubles:
        """Those of the life that has begun."""
        return Troubles(self.world, self.number)

    def begin(self, number: int) -> Start:
        """What the next server has. `number` counts from 0."""
        self.number = number
        environment = {**os.environ, **({"CHAOS_CHILDREN": "1"} if self._children else {})}
        return Start(str(self.folder / "models"), ("--model-control-mode=explicit", "--load-model=*"), environment)

    def started(self) -> None:
        """The server answers, at the ports of the world."""

    def at_rest(self, mark: str) -> list[str]:
        """What is wrong while nobody asks; the processes of the server have this mark."""
        return []

    def end(self, in_order: bool) -> list[str]:
        """What the server has left that it should not; `in_order` says that it was asked to end."""
        return []

    def close(self) -> None:
        """Ends what it has started."""


def tracebacks(log: Path) -> list[str]:
    """What is wrong by a server's log: its first traceback, if there is one."""
    text = log.read_text(errors="replace")
    at = text.find("Traceback")
    return [f"a traceback in the log: {text[max(0, at - 300) : at + 2000]}"] if at >= 0 else []


class Pipelines(Scene):
    """Everything goes through ensembles, whose members' stubs are killed."""

    crowd: ClassVar[Crowd] = [
        (http_clients.Chains, 4),
        (http_clients.Forks, 4),
        (http_clients.CountedEvents, 2),
        (http_clients.VanishingChains, 2),
        (grpc_clients.UnaryChains, 2),
        (grpc_clients.CountedStreams, 2),
        (grpc_clients.CancellingCounted, 1),
    ]

    def troubles(self) -> Troubles:
        return Kills(self.world, self.number)
