"""A run over everything that a server has. Each life has another part of it; see `Everything.begin`."""

from __future__ import annotations

import importlib.util
import os
import shutil
import ssl
import sys
from collections import Counter
from pathlib import Path
from typing import ClassVar

from tests.redis_server import RedisServer
from tests.s3_store import KEYS, S3Store

from ..remains import marked
from ..scenes import SPARE, Crowd, Pipelines, Scene, Start, tracebacks
from ..troubles import Troubles
from ..world import Releases, World
from . import clients, models, regions
from .surroundings import Bucket, Certificates, Collector, Disk, Folder, Neighbour, Shortage
from .tokens import Tokens
from .troubles import TroublesOfAll

FLAGS = (
    "--auth-open-api=health", "--rate-limit=execution_count",
    "--shed-on-memory-pressure", "--max-queue-size=64", "--execute-timeout-secs=4",
    "--access-log", "--model-load-retry-count=1", "--log-info=true", "--allow-client-shm", "--fair-queues=connection",
)  # fmt: skip
REDIS_CONNECTIONS = 16
COLLECTOR_FLAGS = ("mode=opentelemetry", "opentelemetry,bsp_schedule_delay=200")


class Everything(Scene):
    crowd: ClassVar[Crowd] = [
        *[(kind, (count + 1) // 2) for kind, count in (*Scene.crowd, *Pipelines.crowd)],
        (clients.Mixed, 1),
        (clients.UnaryMixed, 1),
        (clients.Limited, 2),
        (clients.Urgent, 1),
        (clients.Zipped, 1),
        (clients.Late, 4),
        (clients.Texts, 1),
        (clients.Cached, 2),
        (clients.UnaryCached, 1),
        (clients.Moody, 2),
        (clients.Twins, 3),
        (clients.UnaryTwins, 2),
        (clients.VanishingTwins, 2),
        (clients.CancellingTwins, 1),
        (clients.Released, 3),
        (clients.Intruder, 1),
        (clients.UnaryIntruder, 1),
        (clients.Reads, 2),
        (clients.Probes, 1),
        (regions.Regions, 2),
        (regions.UnaryRegions, 2),
    ]

    def __init__(self, folder: Path, world: World, children: bool = True) -> None:
        super().__init__(folder, world, children)
        models.write(folder / "models")
        self.memory = Shortage(folder)
        self._store: S3Store | None = None
        self.neighbour: Neighbour | None = None
        self.redis: RedisServer | None = None
        # Its answers outlive the servers.
        self._redis: RedisServer | None = None
        if not (shutil.which("redis-server") and importlib.util.find_spec("redis")):
            print("no redis-server, or no redis of Python: nothing is asked of two servers", file=sys.stderr)
        else:
            self._redis = RedisServer(folder, "--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru")
        self.collector: Collector | None = None
        self._life = folder

    def begin(self, number: int) -> Start:
        """Of four lives one each has its models on the disk and in a store, loaded by request and when they change.
        One of three has TLS, two of four have traces in a file and two a collector. Two of four have the response
        cache in Redis, with a neighbour that shares it, where there is Redis; and half of all have equal requests wait
        for one another.
        """
        start = super().begin(number)
        life = self._life = self.folder / f"life-{number}"
        life.mkdir()
        self.explicit = number % 2 == 0
        self.certificates = Certificates(life) if number % 3 == 1 else None
        self.tokens = Tokens(life / "tokens", self.world)
        self.disk = Disk(life / "log")
        self.place, self.store = self._repository(number)
        flags = [*FLAGS, f"--auth-token-file={self.tokens.path}"]
        self.redis = self._redis if self.explicit else None
        cache = "local,size=4M"
        if self.redis is not None:
            cache = f"redis,host=127.0.0.1,port={self.redis.port},pool_size={REDIS_CONNECTIONS}"
        coalesces = number % 4 in (1, 2)
        flags.append(f"--cache-config={cache}{',coalesce=true' if coalesces else ''}")
        self.world.trust = None
        if self.certificates is not None:
            flags += self.certificates.flags
            self.world.authority = self.certificates.authority
            self.world.trust = ssl.create_default_context(cadata=self.world.authority.decode())
        environment = {**start.environment, **KEYS, "XDG_CACHE_HOME": str(life / "cache")}
        environment["CHAOS_RESOURCE"] = str(life / "resource")
        self.world.releases = [Releases()]
        if self.redis is not None:
            place, both = life / "neighbour", ("released", "flow")
            self.neighbour = Neighbour(self.folder / "models", place, tuple(flags), environment, both)
            self.world.releases.append(Releases(self.neighbour.port))
        flags.append(f"--log-file={life / 'log'}")
        if self.explicit:
            flags += ["--model-control-mode=explicit", "--load-model=*"]
        else:
            flags += ["--model-control-mode=poll", "--repository-poll-secs=1"]
        if number % 4 < 2:
            self.collector = Collector(life / "spans")
            settings = [*COLLECTOR_FLAGS, f"opentelemetry,url={self.collector.address}"]
        else:
            settings = [f"triton,file={life / 'traces.json'}"]
        flags += [f"--trace-config={setting}" for setting in settings]
        return Start(self.place.address, tuple(flags), environment)

    @property
    def spare(self) -> dict[str, int]:
        """Connections of a collector and of a store come and go, and the process that sends spans is started by the
        first. Those to Redis stay: as many as were ever used at the same time, until Redis ends.
        """
        sockets = 4 if self.redis is None else 4 + REDIS_CONNECTIONS
        return {**SPARE, "socket:[N]": sockets, "pipe:[N]": 2}

    def troubles(self) -> Troubles:
        return TroublesOfAll(self.world, self, self.number)

    def end(self, in_order: bool) -> list[str]:
        left = []
        if in_order:
            left = [f"a copy of the repository, {path.name}" for path in (self._life / "cache").glob("**/servers/*")]
        if self.collector is not None:
            self.tally["KiB of spans"] += self.collector.nbytes >> 10
            self.collector.stop()
            self.collector = None
        if self.neighbour is not None:
            left += [f"{text} of the neighbour" for text in self.neighbour.stop()]
            self.neighbour = None
        if self.redis is not None:
            self.tally["answers found in Redis"] = self.redis.hits
        for log in (self._life / "log", self._life / "neighbour" / "log"):
            left += tracebacks(log) if log.exists() else []
        shutil.rmtree(self._life)
        return left

    def at_rest(self, mark: str) -> list[str]:
        """Regions are unregistered then, so nobody has anything of them."""
        found = Counter(
            command
            for pid, command in marked(mark).items()
            for line in _maps(pid)
            if f"/dev/shm/{regions.PREFIX}" in line
        )
        return [f"{count} mappings of regions in process {command}" for command, count in found.items()]

    def close(self) -> None:
        self.memory.close()
        if self.collector is not None:
            self.collector.stop()
        if self.neighbour is not None:
            self.neighbour.stop()
        if self._redis is not None:
            self._redis.stop()
        if self._store is not None:
            self._store.__exit__(None, None, None)

    def _repository(self, number: int) -> tuple[Folder | Bucket, S3Store | None]:
        if number % 4 < 2:
            return Folder(self.folder / "models", self._life / "models"), None
        if self._store is None:
            self._store = S3Store().__enter__()
        return Bucket(self.folder / "models", self._store, f"life-{number}-{os.getpid()}"), self._store


def _maps(pid: int) -> list[str]:
    """What a process maps, a line for each; nothing if it has just ended."""
    try:
        return Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return []
