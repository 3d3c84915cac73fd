"""Shows that nothing is lost: a crowd of clients over all protocols while everything around them ends and begins.

`python -m tools.chaos`. A server lives for a while, under clients and troubles; then it is stopped or killed under
load, what it leaves behind is looked for, and the next one starts. What must not happen is a fault: a success that does
not follow from its request, a request without an end, a connection lost without cause, a process left behind, memory or
descriptors that grow. The end is a table, and exit code 1 where there were faults.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from tools.bench import servers
from tools.bench.servers import Server, ServerError

from . import grpc_clients, http_clients, models, remains
from .troubles import Troubles
from .world import ANSWER_WITHIN_S, Client, World

CLIENTS: list[tuple[type[Client], int]] = [
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
# With --pipelines: everything goes through ensembles
PIPELINE_CLIENTS: list[tuple[type[Client], int]] = [
    (http_clients.Chains, 4),
    (http_clients.Forks, 4),
    (http_clients.CountedEvents, 2),
    (http_clients.VanishingChains, 2),
    (grpc_clients.UnaryChains, 2),
    (grpc_clients.CountedStreams, 2),
    (grpc_clients.CancellingCounted, 1),
]
LIFE_S = 40.0
TROUBLE_EVERY_S = 0.5
# What is left of the shared memory at rest has to hold an input and an output of half of PROBE_BYTES each.
SHM_LIMIT = "256M"
PROBE_BYTES = 192 << 20
# How often the parent is looked at until it is at rest; not a time, for it may stand still meanwhile.
LOOKS = 10
GONE_WITHIN_S = 10.0
# A parent's memory is warm when it has served for a while; a life's growth beyond that is a leak.
GROWTH_MIB = 32.0
# A stub's further segments come when they are first needed, and a model's alarm when a request first has to wait.
SPARE = {"/memfd:stubserve (deleted)": 5, "anon_inode:[timerfd]": 4}
MIB = 1 << 20


@dataclass
class Life:
    """One server's. Memory in MiB."""

    end: str
    rss: list[float] = field(default_factory=list)
    descriptors: list[Counter[str]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


@dataclass
class Outcome:
    """What a run showed."""

    clients: list[Client]
    troubles: Counter[str]
    lives: list[Life]
    faults: list[str]

    def total(self, what: str) -> int:
        return sum(client.tally[what] for client in self.clients)


def main() -> None:
    options = parse_arguments()
    # Who ends this ends its server too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("chaos ended"))
    try:
        outcome = run(options.seconds, options.life, not options.no_children, options.pipelines)
    except ServerError as error:
        sys.exit(f"chaos stopped: {error}")
    print(table(outcome))
    sys.exit(1 if outcome.faults else 0)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.chaos", description="Kills and restarts under load.")
    parser.add_argument("--seconds", type=float, default=600, help="length of the run (default: %(default)s)")
    parser.add_argument("--life", type=float, default=LIFE_S, help="how long a server lives (default: %(default)s)")
    parser.add_argument("--no-children", action="store_true", help="models start no processes of their own")
    parser.add_argument(
        "--pipelines", action="store_true", help="ask ensembles only, and kill the stubs of their members, nothing else"
    )
    options = parser.parse_args()
    if options.seconds < 1 or options.life < 1:
        parser.error("--seconds and --life must be at least 1")
    return options


def run(seconds: float, life_s: float, children: bool, pipelines: bool = False) -> Outcome:
    """Servers one after the other, two at least, until the time is up. Raises ServerError when one does not start."""
    world = World()
    crowd = PIPELINE_CLIENTS if pipelines else CLIENTS
    clients = [kind(world, seed) for kind, count in crowd for seed in range(count)]
    troubles = Troubles(world, kills=pipelines)
    lives: list[Life] = []
    deadline = time.monotonic() + seconds
    threading.Thread(target=world.watch_clock, daemon=True).start()
    for client in clients:
        client.start()
    with tempfile.TemporaryDirectory(prefix="stubserve-chaos-") as folder:
        models.write(Path(folder, "models"))
        try:
            while len(lives) < 2 or time.monotonic() < deadline:
                end = signal.SIGKILL if len(lives) % 2 else signal.SIGTERM
                lives.append(live(Path(folder), world, clients, troubles, life_s, end, children))
        finally:
            world.over = True
            world.go.set()
    for client in clients:
        client.join(ANSWER_WITHIN_S + 5)
        if client.is_alive():
            world.fault(f"{client.name}: does not end: {client.whereabouts()}")
    return Outcome(clients, troubles.tally, lives, world.faults)


def live(
    folder: Path,
    world: World,
    clients: list[Client],
    troubles: Troubles,
    life_s: float,
    end: signal.Signals,
    children: bool,
) -> Life:
    """One server: start, load, troubles, a look at it at rest, and its end under load."""
    mark = uuid.uuid4().hex
    temporary = folder / mark
    temporary.mkdir()
    environment = {**os.environ, remains.MARK: mark, "TMPDIR": str(temporary)}
    if children:
        environment["CHAOS_CHILDREN"] = "1"
    program = servers.stubserve(Path(sys.executable))
    flags = ("--model-control-mode", "explicit", "--load-model", "*", "--shm-limit", SHM_LIMIT, "--log-info", "false")
    flags += ("--stub-restart-limit", "1000000", "--exit-timeout-secs", "20")
    program = replace(program, arguments=(*program.arguments, *flags), environment=environment)
    life = Life(end.name)
    with Server(program, folder / "models", folder / f"{mark}.log") as server:
        process = psutil.Process(server.pid)
        world.http_port, world.grpc_port = server.http_port, server.grpc_port
        world.generation += 1
        # The first part warms up what the rest finds warm.
        for part in (life_s / 4, life_s * 3 / 4):
            world.go.set()
            until = time.monotonic() + part
            while time.monotonic() < until:
                time.sleep(TROUBLE_EVERY_S)
                server.require_alive()
                troubles.one(server.pid)
            rest(world, clients, troubles)
            if not until_free(server.http_port):
                world.fault(f"{PROBE_BYTES >> 20} MiB of the shared memory's {SHM_LIMIT} cannot be had any more")
            settle(server, life)
            life.rss.append(process.memory_info().rss / MIB)
        world.go.set()
        time.sleep(min(1.0, life_s / 4))
        world.generation += 1
        os.kill(server.pid, end)
        if not gone(process, world):
            world.fault(f"the server did not end after {end.name}")
    world.go.clear()
    life.left = remains.after(mark, GONE_WITHIN_S)
    if end == signal.SIGTERM:
        life.left += [f"temporary file {path.name}" for path in temporary.iterdir()]
    judge(life, world)
    return life


def rest(world: World, clients: list[Client], troubles: Troubles) -> None:
    """Nobody asks any more, and all models are as they were."""
    world.go.clear()
    for client in clients:
        began = time.monotonic()
        while not client.idle.wait(ANSWER_WITHIN_S + 5):
            if not world.ran_since(began):
                began = time.monotonic()
                continue
            world.fault(f"{client.name}: its request does not end: {client.whereabouts()}")
            break
    troubles.calm_down()


def until_free(port: int) -> bool:
    """Waits until most of the shared memory can be had: in one request, its answer, and what lies between two steps."""
    size = PROBE_BYTES // 2
    tensor = {"name": "X", "datatype": "FP32", "shape": [1, size // 4], "parameters": {"binary_data_size": size}}
    text = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    body = text + bytes(size)
    for _ in range(LOOKS):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_WITHIN_S)
        try:
            connection.request("POST", "/v2/models/works/infer", body, headers)
            response = connection.getresponse()
            response.read()
            if response.status == 200:
                return True
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(1.0)
    return False


def all_serve(server: Server) -> bool:
    """Whether no instance is being started anew."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=ANSWER_WITHIN_S) as answer:
        lines = answer.read().decode().splitlines()
    return all(line.endswith(" 1") for line in lines if line.startswith("stubserve_instance_ready{"))


def settle(server: Server, life: Life) -> None:
    """Waits until all stubs are back and the parent has closed what it no longer needs, and notes what it has."""
    for _ in range(LOOKS):
        if all_serve(server):
            break
        time.sleep(1.0)
    now = remains.descriptors(server.pid)
    for _ in range(LOOKS):
        before, now = now, remains.descriptors(server.pid)
        # The first time there is nothing to compare with; what does not change for a second is at rest.
        if now == before and (not life.descriptors or now.total() <= life.descriptors[0].total()):
            break
        time.sleep(1.0)
    life.descriptors.append(now)


def gone(process: psutil.Process, world: World) -> bool:
    while True:
        began = time.monotonic()
        try:
            process.wait(ANSWER_WITHIN_S)
            return True
        except psutil.TimeoutExpired:
            if world.ran_since(began):
                return False


def judge(life: Life, world: World) -> None:
    for text in life.left:
        world.fault(f"left after {life.end}: {text}")
    if life.rss[-1] - life.rss[0] > GROWTH_MIB:
        world.fault(f"the parent's memory grew in one life from {life.rss[0]:.0f} to {life.rss[-1]:.0f} MiB")
    more = life.descriptors[-1] - life.descriptors[0]
    if any(count > SPARE.get(kind, 0) for kind, count in more.items()):
        world.fault(f"the parent's descriptors grew in one life by {dict(more)}")


def table(outcome: Outcome) -> str:
    words = ["right", "refused", "lost with the server", "stood still", "lost", "hung", "wrong"]
    lines = ["client      " + "  ".join(word.rjust(8) for word in words)]
    by_kind: dict[str, Counter[str]] = {}
    reasons: Counter[str] = Counter()
    for client in outcome.clients:
        by_kind.setdefault(type(client).__name__, Counter()).update(client.tally)
        reasons.update(client.reasons)
    for kind, tally in by_kind.items():
        lines.append(kind.ljust(12) + "  ".join(str(tally[word]).rjust(max(8, len(word))) for word in words))
    lines += ["", "troubles: " + ", ".join(f"{count} {name}" for name, count in outcome.troubles.items())]
    for number, life in enumerate(outcome.lives, 1):
        rss = " -> ".join(f"{size:.0f}" for size in life.rss)
        descriptors = " -> ".join(str(kinds.total()) for kinds in life.descriptors)
        lines.append(f"life {number}: {life.end}, RSS {rss} MiB, descriptors {descriptors}, left {len(life.left)}")
    lines += ["", "refused, the most frequent reasons:"]
    lines += [f"{count:8}  {reason}" for reason, count in reasons.most_common(12)]
    lines += ["", *([f"fault: {text}" for text in outcome.faults[:100]] or ["no faults"])]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
