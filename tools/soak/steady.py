"""Shows that nothing grows: minutes of steady small requests, with latency and memory for each.

Every minute is one run of wrk on the same server, so its percentiles are of that minute alone; memory is read when it
ends. The first minute warms up what later ones find warm. A server that leaks shows it in RSS, and one whose garbage
collector has ever more to look at in the p99 of the last minutes against the first.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.bench import machine, payloads, repository, servers, wrk
from tools.bench.processes import Memory
from tools.bench.report import number
from tools.bench.servers import Server
from tools.bench.workloads import Subject
from tools.bench.wrk import Load

COLUMNS = ["", "requests/s", "p50 µs", "p99 µs", "CPU s", "parent RSS", "its RssAnon", "stub RSS", "its RssAnon", "PSS"]


def run(options: argparse.Namespace, folder: Path) -> None:
    """Prints a line per minute as it ends, and what changed from the first to the last."""
    repository.write_model(folder / "models", "identity_fp32")
    program = servers.stubserve(options.python)
    payload = payloads.numbers("identity_fp32", 16)
    script = folder / "load.lua"
    wrk.write_script(script, payload)
    with Server(program, folder / "models", folder / "server.log") as server:
        flags = f"--minutes {options.minutes} --seconds {options.seconds} --connections {options.connections}"
        print("\n".join(machine.describe([Subject(program, server, folder)], flags)), end="\n\n")
        payloads.send(server.http_port, payload)
        tree = server.processes()
        print(line("start", None, 0, tree.memory(), title=True), flush=True)
        loads: list[Load] = []
        memories: list[Memory] = []
        for minute in range(1, options.minutes + 1):
            before = tree.cpu_seconds()
            loads.append(wrk.run(server.http_port, script, payload, options.connections, options.seconds))
            memories.append(tree.memory())
            print(line(str(minute), loads[-1], tree.cpu_seconds() - before, memories[-1]), flush=True)
    print("\n" + verdict(loads, memories))


def line(label: str, load: Load | None, cpu: float, memory: Memory, title: bool = False) -> str:
    """One row, with the column titles before it where `title` asks for them. Memory is in MiB."""
    cells = [label, *([number(x) for x in (load.requests_per_s, load.p50_us, load.p99_us, cpu)] if load else [""] * 4)]
    sizes = (memory.parent_rss, memory.parent_anon, memory.stub_rss, memory.stub_anon, memory.total_pss)
    rows = [COLUMNS] if title else []
    rows.append([*cells, *(f"{size:.1f}" for size in sizes)])
    return "\n".join(
        "  ".join(cell.rjust(max(6, len(head))) for cell, head in zip(row, COLUMNS, strict=True)) for row in rows
    )


def verdict(loads: list[Load], memories: list[Memory]) -> str:
    first, last = loads[0], loads[-1]
    begin, end = memories[0], memories[-1]
    return (
        f"last minute beside the first: p99 {last.p99_us / first.p99_us:.2f}x, "
        f"requests/s {last.requests_per_s / first.requests_per_s:.2f}x, "
        f"parent RSS {end.parent_rss - begin.parent_rss:+.1f} MiB, stub RSS {end.stub_rss - begin.stub_rss:+.1f} MiB"
    )
