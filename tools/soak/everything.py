"""Minutes of all that a server has: the clients of a chaotic run over everything, and no trouble but what they make.

What they ask for is checked as it is there. A row for each minute says what the server's processes have; its memory is
read while they ask, so it has what is under way in it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from tools.bench import servers
from tools.bench.processes import MIB, rss_anon
from tools.bench.servers import Server
from tools.chaos.everything.regions import PREFIX
from tools.chaos.everything.scene import Everything
from tools.chaos.world import ANSWER_WITHIN_S, World

FLAGS = ("--shm-limit=256M", "--exit-timeout-secs=20")
COLUMNS = ["", "right/s", "refused/s", "parent RSS", "its RssAnon", "workers", "stubs"]
COLUMNS += ["processes", "fds", "threads", "/dev/shm"]


@dataclass(frozen=True)
class Figures:
    """What a server has. Memory in MiB; that of workers and stubs is anonymous, and of all of them."""

    parent_rss: float
    parent_anon: float
    workers: float
    stubs: float
    processes: int
    descriptors: int
    threads: int
    shared_files: int


def run(options: argparse.Namespace, folder: Path) -> bool:
    """Prints a row for each minute, and what was wrong. Whether nothing was."""
    world = World()
    scene = Everything(folder, world, children=False)
    start = scene.begin(options.everything)
    crowd = [kind(world, seed) for kind, count in scene.crowd for seed in range(count)]
    program = servers.stubserve(options.python)
    program = replace(program, arguments=(*program.arguments, *FLAGS, *start.flags), environment=start.environment)
    print("  ".join(column.rjust(9) for column in COLUMNS), flush=True)
    threading.Thread(target=world.watch_clock, daemon=True).start()
    try:
        with Server(program, start.repository, folder / "server.log") as server:
            world.http_port, world.grpc_port, world.metrics_port = (
                server.http_port,
                server.grpc_port,
                server.metrics_port,
            )
            world.generation += 1
            world.go.set()
            for client in crowd:
                client.start()
            before: Counter[str] = Counter()
            for minute in range(1, options.minutes + 1):
                time.sleep(options.seconds)
                server.require_alive()
                tally = sum((client.tally for client in crowd), Counter[str]())
                more = tally - before
                before = tally
                print(row(str(minute), more, options.seconds, figures(server.pid)), flush=True)
            world.over = True
            for client in crowd:
                client.join(ANSWER_WITHIN_S + 5)
            time.sleep(1.0)
            print(row("at rest", Counter(), options.seconds, figures(server.pid)))
    finally:
        world.over = True
        world.faults += [f"left: {text}" for text in scene.end(True)]
        scene.close()
    print("\n".join(f"fault: {text}" for text in world.faults[:50]) or "no faults")
    return not world.faults


def figures(pid: int) -> Figures:
    parent = psutil.Process(pid)
    memory: Counter[str] = Counter()
    found = [0, 0, 0]
    for process in (parent, *parent.children(recursive=True)):
        with contextlib.suppress(psutil.Error, OSError):
            kind = "parent" if process == parent else "worker" if "stubserve.ingress" in process.cmdline() else "stub"
            memory[kind] += rss_anon(process.pid)
            for index, value in enumerate((1, process.num_fds(), process.num_threads())):
                found[index] += value
    return Figures(
        parent.memory_info().rss / MIB,
        *(memory[kind] / MIB for kind in ("parent", "worker", "stub")),
        *found,
        sum(name.startswith(PREFIX) for name in os.listdir("/dev/shm")),
    )


def row(label: str, more: Counter[str], seconds: int, now: Figures) -> str:
    cells = [label, f"{more['right'] / seconds:.0f}", f"{more['refused'] / seconds:.0f}"]
    cells += [f"{size:.1f}" for size in (now.parent_rss, now.parent_anon, now.workers, now.stubs)]
    cells += [str(count) for count in (now.processes, now.descriptors, now.threads, now.shared_files)]
    return "  ".join(cell.rjust(max(9, len(head))) for cell, head in zip(cells, COLUMNS, strict=True))
