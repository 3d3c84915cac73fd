"""Minutes of all that a server has: the clients of a chaotic run over everything, and no trouble but what they make.

What they ask for is checked as it is there. A row for each minute says what the server's processes have; its memory is
read while they ask, so it has what is under way in it. At the end a line for each of the stubs that have grown most
since the first minute says what they had after each.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from tools.bench import servers
from tools.bench.processes import MIB, rss_anon, stubs
from tools.bench.servers import Server
from tools.chaos.everything.regions import PREFIX
from tools.chaos.everything.scene import Everything
from tools.chaos.world import ANSWER_WITHIN_S, World

FLAGS = ("--shm-limit=256M", "--exit-timeout-secs=20")
COLUMNS = ["", "right/s", "refused/s", "parent RSS", "its RssAnon", "stubs"]
COLUMNS += ["processes", "fds", "threads", "/dev/shm"]
# How many stubs are named at the end.
MOST_GROWN = 5


@dataclass(frozen=True)
class Figures:
    """What a server has. Memory in MiB; that of stubs is anonymous, and by their names."""

    parent_rss: float
    parent_anon: float
    stubs: dict[str, float]
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
            world.serve(server)
            world.generation += 1
            world.go.set()
            for client in crowd:
                client.start()
            before: Counter[str] = Counter()
            shares = []
            for minute in range(1, options.minutes + 1):
                time.sleep(options.seconds)
                server.require_alive()
                tally = sum((client.tally for client in crowd), Counter[str]())
                more = tally - before
                before = tally
                now = figures(server.pid)
                shares.append(now.stubs)
                print(row(str(minute), more, options.seconds, now), flush=True)
            world.over = True
            for client in crowd:
                client.join(ANSWER_WITHIN_S + 5)
            time.sleep(1.0)
            now = figures(server.pid)
            print(row("at rest", Counter(), options.seconds, now))
            print("\n".join(most_grown([*shares, now.stubs])))
    finally:
        world.over = True
        world.faults += [f"left: {text}" for text in scene.end(True)]
        scene.close()
    print("\n".join(f"fault: {text}" for text in world.faults[:50]) or "no faults")
    return not world.faults


def figures(pid: int) -> Figures:
    parent = psutil.Process(pid)
    parent_anon = 0.0
    names = stubs(pid)
    others: dict[str, float] = defaultdict(float)
    found = [0, 0, 0]
    for process in (parent, *parent.children(recursive=True)):
        with contextlib.suppress(psutil.Error, OSError):
            anonymous = rss_anon(process.pid) / MIB
            if process == parent:
                parent_anon = anonymous
            else:
                others[names.get(process.pid) or " ".join(process.cmdline()[1:3])] += anonymous
            for index, value in enumerate((1, process.num_fds(), process.num_threads())):
                found[index] += value
    return Figures(
        parent.memory_info().rss / MIB,
        parent_anon,
        dict(others),
        *found,
        sum(name.startswith(PREFIX) for name in os.listdir("/dev/shm")),
    )


def most_grown(stubs: list[dict[str, float]]) -> list[str]:
    """Lines of the stubs that have grown most from the first of these to the last, with what they had in each."""
    first, last = stubs[0], stubs[-1]
    names = sorted(first.keys() & last.keys(), key=lambda name: first[name] - last[name])[:MOST_GROWN]
    return [f"stub {name}: " + " ".join(f"{one.get(name, 0):.1f}" for one in stubs) for name in names]


def row(label: str, more: Counter[str], seconds: int, now: Figures) -> str:
    cells = [label, f"{more['right'] / seconds:.0f}", f"{more['refused'] / seconds:.0f}"]
    cells += [f"{size:.1f}" for size in (now.parent_rss, now.parent_anon, sum(now.stubs.values()))]
    cells += [str(count) for count in (now.processes, now.descriptors, now.threads, now.shared_files)]
    return "  ".join(cell.rjust(max(9, len(head))) for cell, head in zip(cells, COLUMNS, strict=True))
