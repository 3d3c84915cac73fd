"""A run with strangers: see the package."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json
import os
import shutil
import signal
import socket
import threading
import time
from functools import partial
from pathlib import Path
from typing import ClassVar

import uvicorn

from stubserve.fleet.balancer import Addresses, Balancer
from stubserve.fleet.directory import Change, Fleet, Front, ReplicaInfo
from stubserve.fleet.fan_out import FanOut
from tools.bench.processes import MIB, rss_anon, stubs
from tools.ports import free_ports

from .. import http_clients
from ..everything.surroundings import Neighbour
from ..scenes import SPARE, Crowd, Scene, Start, tracebacks
from ..troubles import MODELS, Troubles
from ..world import HOST, World
from . import clients, models
from .stranger import Stranger

FLAGS = ("--openai", "--execute-timeout-secs=5", "--stub-restart-limit=10")
# What an instance may take, whatever its strangers say
STUB_MIB = 1024
LOG_MIB = 16
# How often what should be over is looked at, and for how long nothing more may come then
LOOKS, QUIET_S = 20, 1.0


class Strangers(Scene):
    crowd: ClassVar[Crowd] = [
        (http_clients.Binary, 1),
        (http_clients.Events, 1),
        (http_clients.Vanishing, 1),
        (clients.Peer, 2),
        (clients.UnaryPeer, 1),
        (clients.Lied, 4),
        (clients.VanishingPeers, 4),
        (clients.Frames, 6),
        (clients.Sources, 4),
        (clients.Completions, 2),
        (clients.NearlyStops, 1),
        (clients.Bodies, 2),
        (clients.Poison, 1),
        (clients.Healthy, 3),
        (clients.Pulse, 1),
        (clients.FrontBinary, 1),
        (clients.FrontSums, len(clients.IDS) + 1),
        (clients.FrontSettings, 1),
        (clients.FrontFlood, 1),
    ]

    def __init__(self, folder: Path, world: World, children: bool = True) -> None:
        super().__init__(folder, world, children)
        world.stranger = self._stranger = Stranger(folder / "stranger")
        models.write(folder / "models", self._stranger.port)
        self._over: contextlib.ExitStack | None = None

    @property
    def spare(self) -> dict[str, int]:
        """The process that reads large JSON is started by a request, and the front keeps connections that are free."""
        return {**SPARE, "socket:[N]": 17}

    def troubles(self) -> Troubles:
        return TroublesWithStrangers(self.world, self.number, [*MODELS, *models.NAMES])

    def begin(self, number: int) -> Start:
        start = super().begin(number)
        return dataclasses.replace(start, flags=(*start.flags, *FLAGS))

    def started(self) -> None:
        """Another server stands beside that of the life, and a front before both."""
        folder = self.folder / f"life-{self.number}"
        self._over = stack = contextlib.ExitStack()
        try:
            self._begin_front(folder, stack)
        except FileNotFoundError as error:
            print(f"nothing is asked of a front: {error}", flush=True)

    def _begin_front(self, folder: Path, stack: contextlib.ExitStack) -> None:
        (folder / "front").mkdir(parents=True)
        stack.callback(shutil.rmtree, folder)
        http, grpc, metrics, fan_out_http, fan_out_grpc, peer = free_ports(6)
        addresses = Addresses(HOST, http, grpc, metrics, fan_out_http, fan_out_grpc)
        balancer = Balancer(folder / "front", addresses)
        environment = self.begin(self.number).environment
        neighbour = Neighbour(self.folder / "models", folder / "neighbour", FLAGS, environment, ("works", "sums"))
        stack.callback(lambda: self._left.extend(neighbour.stop()))
        world, ports = self.world, neighbour.ports
        replicas = [
            ReplicaInfo(f"{number:08x}", "all", (), HOST, *ports, sequences=True)
            for number, ports in ((2, (world.http_port, world.grpc_port, world.metrics_port)), (4, ports))
        ]
        fleet = Fleet(1, replicas, [Front("f", HOST, peer)], {"all": ()})
        app = FanOut(lambda: fleet, _forget).app()
        fan_out = uvicorn.Server(uvicorn.Config(app, HOST, fan_out_http, log_level="critical", lifespan="off"))
        thread = threading.Thread(target=fan_out.run, daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(setattr, fan_out, "should_exit", True)
        stack.callback(balancer.end)
        balancer.show(fleet, "f")
        world.front_port, world.neighbour_port = http, ports[0]
        world.front_downs = partial(times_down, folder / "front" / "admin.sock")

    def at_rest(self, mark: str) -> list[str]:
        wrong = []
        for _ in range(LOOKS):
            asked = sum(count for word, count in self._stranger.asked.items() if word != "ready")
            time.sleep(QUIET_S)
            more = sum(count for word, count in self._stranger.asked.items() if word != "ready") - asked
            if not more and not self._stranger.under_way:
                break
        else:
            wrong.append(f"{self._stranger.under_way} requests of strangers are under way, {more} came in {QUIET_S} s")
        if text := self._until_healthy():
            wrong.append(f"good requests to the model that poison kills are refused: {text}")
        return wrong

    def _until_healthy(self) -> str:
        tensor = {"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1]}
        text = ""
        for _ in range(LOOKS):
            with contextlib.suppress(OSError):
                body = json.dumps({"inputs": [tensor]})
                status, answer = self.world.post("/v2/models/poisoned/infer", body, {})
                if status == 200:
                    return ""
                text = answer.decode(errors="replace")[:500]
            time.sleep(QUIET_S)
        return text

    def end(self, in_order: bool) -> list[str]:
        self._left: list[str] = []
        self.world.front_port = 0
        self.tally.update(
            {f"asked for {word}": count for word, count in self._stranger.asked.items() if "-" not in word}
        )
        self._stranger.asked.clear()
        if self._over is not None:
            self._over.close()
            self._over = None
        for log in self.folder.glob("*.log"):
            if (size := log.stat().st_size >> 20) > LOG_MIB:
                self._left.append(f"{size} MiB of log")
            self._left += tracebacks(log)
            log.unlink()
        return self._left

    def close(self) -> None:
        if self._over is not None:
            self._left = []
            self._over.close()
        self._stranger.close()


class TroublesWithStrangers(Troubles):
    """Looks at the memory of stubs between two troubles. One that has too much ends: others use the machine, too."""

    def one(self, pid: int) -> None:
        super().one(pid)
        for stub, name in stubs(pid).items():
            with contextlib.suppress(OSError):
                if (size := rss_anon(stub) / MIB) > STUB_MIB:
                    self._world.fault(f"stub {name} has {size:.0f} MiB")
                    os.kill(stub, signal.SIGKILL)


def times_down(admin: Path) -> int:
    """How often HAProxy has taken a server for dead."""
    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
        connection.connect(str(admin))
        connection.sendall(b"show stat\n")
        with connection.makefile() as stats:
            return sum(int(row["chkdown"] or 0) for row in csv.DictReader(stats) if row["svname"] != "BACKEND")
    return 0


async def _forget(change: Change) -> None:
    """No server comes later that would have to make it."""
