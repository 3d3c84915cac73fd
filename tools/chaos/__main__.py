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
import re
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from tools.bench import servers
from tools.bench.processes import stubs
from tools.bench.servers import Server, ServerError

from . import remains
from .everything.scene import Everything
from .memory import Kept
from .scenes import SEGMENT, SPARE, Pipelines, Scene
from .strangers.scene import Strangers
from .troubles import Troubles
from .world import ANSWER_WITHIN_S, Client, World

LIFE_S = 40.0
TROUBLE_EVERY_S = 0.5
# What is left of the shared memory at rest has to hold an input and an output of half of PROBE_BYTES each.
SHM_LIMIT = "256M"
PROBE_BYTES = 192 << 20
# A request may wait that long for a stub of each model on its way, of four at most: less than ANSWER_WITHIN_S in all.
RESTART_WAIT_S = 5
FLAGS = (
    f"--shm-limit={SHM_LIMIT}", "--log-info=false", "--stub-restart-limit=1000000", "--exit-timeout-secs=20",
    f"--restart-wait-secs={RESTART_WAIT_S}",
)  # fmt: skip
# What the parent has open for each stub. A model that is loaded at the end of a life may not have been before.
OF_A_STUB = {
    "socket:[N]": 1,
    "pipe:[N]": 2,
    "anon_inode:[eventfd]": 3,
    "anon_inode:[pidfd]": 1,
    SEGMENT: 1,
}
# How often the parent is looked at until it is at rest; not a time, for it may stand still meanwhile.
LOOKS = 10
GONE_WITHIN_S = 10.0
# A parent's memory is warm when it has served for a while; a life's growth beyond that is a leak.
GROWTH_MIB = 32.0
JUDGED = f"""\
A fault is: a success that does not follow from its request; a request that does not end within
{ANSWER_WITHIN_S:.0f} s, in which it may wait {RESTART_WAIT_S} s for a stub of each model on its way
(--restart-wait-secs), unless its client's library has failed to end it then; a connection that is
lost while its server lives; what a server leaves behind; descriptors, or more than
{GROWTH_MIB:.0f} MiB of the server's memory, that a life has more at its end than after a quarter of it. Some
descriptors come with load and stay, and are spared: segments of memory for as many stubs as there were at one
time, alarms, the processes that send traces and read large JSON, up to 16 connections to Redis.
Memory is, while nobody asks, what the C library (mallinfo2) and Python have given out, or what is anonymous (RssAnon)
after malloc_trim: the lesser, as a leak is in both. An answer that is an error is no fault."""


@dataclass
class Life:
    """One server's. Memory in MiB, as `Kept` has it; `most_stubs` is the most that were seen at one time."""

    end: str
    memory: list[float] = field(default_factory=list)
    descriptors: list[Counter[str]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    most_stubs: int = 0


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
    outcome = run(options.seconds, options.life, not options.no_children, options.scene)
    print(table(outcome))
    sys.exit(1 if outcome.faults else 0)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.chaos", description="Kills and restarts under load.", epilog=JUDGED
    )
    parser.add_argument("--seconds", type=float, default=600, help="length of the run (default: %(default)s)")
    parser.add_argument("--life", type=float, default=LIFE_S, help="how long a server lives (default: %(default)s)")
    parser.add_argument("--no-children", action="store_true", help="models start no processes of their own")
    kinds = parser.add_mutually_exclusive_group()
    parser.set_defaults(scene=Scene)
    kinds.add_argument(
        "--pipelines",
        dest="scene",
        action="store_const",
        const=Pipelines,
        help="ask ensembles only, and kill the stubs of their members, nothing else",
    )
    kinds.add_argument(
        "--everything",
        dest="scene",
        action="store_const",
        const=Everything,
        help="use all that a server has, and trouble all that it leans on; each life is set up in another way",
    )
    kinds.add_argument(
        "--strangers",
        dest="scene",
        action="store_const",
        const=Strangers,
        help="have to do with others: servers and sources that lie, a front, OpenAI's clients, requests that kill",
    )
    options = parser.parse_args()
    if options.seconds < 1 or options.life < 1:
        parser.error("--seconds and --life must be at least 1")
    return options


def run(seconds: float, life_s: float, children: bool, kind: type[Scene] = Scene) -> Outcome:
    """Servers one after the other, two at least, until the time is up or one ends by itself."""
    world = World()
    clients = [client(world, seed) for client, count in kind.crowd for seed in range(count)]
    lives: list[Life] = []
    deadline = time.monotonic() + seconds
    threading.Thread(target=world.watch_clock, daemon=True).start()
    for client in clients:
        client.start()
    with tempfile.TemporaryDirectory(prefix="stubserve-chaos-") as folder:
        scene = kind(Path(folder), world, children)
        try:
            while len(lives) < 2 or time.monotonic() < deadline:
                lives.append(live(scene, clients, len(lives), life_s))
                print(row(len(lives), lives[-1]), file=sys.stderr, flush=True)
        except ServerError as error:
            world.fault(str(error))
        finally:
            world.over = True
            world.go.set()
            scene.close()
    for client in clients:
        if client.forsaken:
            continue
        client.join(ANSWER_WITHIN_S + 5)
        if client.is_alive():
            world.fault(f"{client.name}: does not end: {client.whereabouts()}")
    return Outcome(clients, scene.tally, lives, world.faults)


def live(scene: Scene, clients: list[Client], number: int, life_s: float) -> Life:
    """One server: start, load, troubles, a look at it at rest, and its end under load."""
    world, folder = scene.world, scene.folder
    end = signal.SIGKILL if number % 2 else signal.SIGTERM
    mark = uuid.uuid4().hex
    temporary = folder / mark
    temporary.mkdir()
    start = scene.begin(number)
    troubles = scene.troubles()
    site = folder / f"{mark}-site"
    site.mkdir()
    kept = Kept(site)
    environment = {**start.environment, **kept.environment, remains.MARK: mark, "TMPDIR": str(temporary)}
    program = servers.stubserve(Path(sys.executable))
    program = replace(program, arguments=(*program.arguments, *FLAGS, *start.flags), environment=environment)
    life = Life(end.name)
    with Server(program, start.repository, folder / f"{mark}.log") as server:
        process = psutil.Process(server.pid)
        world.serve(server)
        scene.started()
        world.generation += 1
        # The first part warms up what the rest finds warm.
        for part in (life_s / 4, life_s * 3 / 4):
            world.go.set()
            until = time.monotonic() + part
            while time.monotonic() < until:
                time.sleep(TROUBLE_EVERY_S)
                server.require_alive()
                life.most_stubs = max(life.most_stubs, len(stubs(server.pid)))
                troubles.one(server.pid)
            rest(world, clients, troubles)
            if text := until_free(world):
                what = f"{PROBE_BYTES >> 20} MiB of the shared memory's {SHM_LIMIT}"
                world.fault(f"{what} cannot be had any more: {text}")
            settle(server, world, life, scene.spare)
            for text in scene.at_rest(mark):
                world.fault(f"at rest: {text}")
            life.memory.append(kept.mib(server.pid))
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
    life.left += scene.end(end == signal.SIGTERM)
    scene.tally.update(troubles.tally)
    judge(life, world, scene.spare)
    return life


def rest(world: World, clients: list[Client], troubles: Troubles) -> None:
    """Nobody asks any more, and all models are as they were.

    A request may outlive its deadline though its library ends it then, whatever the server does: one call of grpcio
    stood through 25 minutes and the ends of 22 servers. That is the library's doing; another client takes over.
    """
    world.go.clear()
    for client in [client for client in clients if not client.forsaken]:
        began = time.monotonic()
        while not client.idle.wait(ANSWER_WITHIN_S + 5):
            if not world.ran_since(began):
                began = time.monotonic()
                continue
            if client.keeps_deadlines:
                client.forsaken = True
                clients.append(type(client)(world, client.seed))
                clients[-1].start()
            else:
                world.fault(f"{client.name}: its request does not end: {client.whereabouts()}")
            break
    troubles.calm_down()


def until_free(world: World) -> str:
    """Waits until most of the shared memory can be had: in one request, its answer, and what lies between two steps.
    Why it cannot, or nothing.
    """
    size = PROBE_BYTES // 2
    tensor = {"name": "X", "datatype": "FP32", "shape": [1, size // 4], "parameters": {"binary_data_size": size}}
    text = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(text)), **world.headers}
    body = text + bytes(size)
    why = ""
    for _ in range(LOOKS):
        connection = world.http()
        try:
            connection.request("POST", "/v2/models/works/infer", body, headers)
            response = connection.getresponse()
            answer = response.read()
            if response.status == 200:
                return ""
            why = answer.decode(errors="replace")[:500]
        except (OSError, http.client.HTTPException) as error:
            why = repr(error)
        finally:
            connection.close()
        time.sleep(1.0)
    return why


def all_serve(world: World) -> bool:
    """Whether no instance is being started anew."""
    connection = world.http(world.metrics_port)
    try:
        connection.request("GET", "/metrics", headers=world.headers)
        lines = connection.getresponse().read().decode().splitlines()
    finally:
        connection.close()
    return all(line.endswith(" 1") for line in lines if line.startswith("stubserve_instance_ready{"))


def settle(server: Server, world: World, life: Life, spare: dict[str, int]) -> None:
    """Waits until all stubs are back and the parent has closed what it no longer needs, and notes what it has."""
    for _ in range(LOOKS):
        if all_serve(world):
            break
        time.sleep(1.0)
    now = remains.descriptors(server.pid)
    for _ in range(LOOKS):
        before, now = now, remains.descriptors(server.pid)
        # The first time there is nothing to compare with; what does not change for a second is at rest.
        if now == before and (not life.descriptors or not grown(life, now, spare)):
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


def grown(life: Life, now: Counter[str], spare: dict[str, int]) -> dict[str, int]:
    """Descriptors that there are more of than at the first rest, and than there may be.

    With more stubs there are more of what each stub has. The parent keeps a stub's segment for the next stub, so the
    segments are as many as there were stubs at one time: a model that changes over has its stubs twice for a moment.
    """
    before = life.descriptors[0]
    more = now - before
    for kind, count in OF_A_STUB.items():
        stubs = max(now[remains.STUBS], life.most_stubs if kind == SEGMENT else 0) - before[remains.STUBS]
        more[kind] -= count * max(stubs, 0)
    del more[remains.STUBS]
    more = +more
    return dict(more) if any(count > spare.get(kind, 0) for kind, count in more.items()) else {}


def judge(life: Life, world: World, spare: dict[str, int] = SPARE) -> None:
    for text in life.left:
        world.fault(f"left after {life.end}: {text}")
    if life.memory[-1] - life.memory[0] > GROWTH_MIB:
        world.fault(f"the parent's memory grew in one life from {life.memory[0]:.0f} to {life.memory[-1]:.0f} MiB")
    if more := grown(life, life.descriptors[-1], spare):
        world.fault(f"the parent's descriptors grew in one life by {more}")


def row(number: int, life: Life) -> str:
    memory = " -> ".join(f"{size:.0f}" for size in life.memory)
    descriptors = " -> ".join(str(kinds.total() - kinds[remains.STUBS]) for kinds in life.descriptors)
    return f"life {number}: {life.end}, memory {memory} MiB, descriptors {descriptors}, left {len(life.left)}"


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
    if forsaken := [client.name for client in outcome.clients if client.forsaken]:
        lines.append(f"past the deadline that their library keeps, and replaced: {', '.join(forsaken)}")
    lines += ["", "troubles: " + ", ".join(f"{count} {name}" for name, count in outcome.troubles.items())]
    lines += [row(number, life) for number, life in enumerate(outcome.lives, 1)]
    lines += ["", "refused, the most frequent reasons:"]
    lines += [f"{count:8}  {reason}" for reason, count in reasons.most_common(12)]
    # The same again and again is said once: by its text without the time and the numbers.
    alike = Counter(re.sub(r"[0-9]+", "N", text) for text in outcome.faults)
    first = {re.sub(r"[0-9]+", "N", text): text for text in reversed(outcome.faults)}
    faults = [f"fault: {text} ({alike[kind]} times)" for kind, text in first.items()][::-1]
    lines += ["", *(faults[:100] or ["no faults"])]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
