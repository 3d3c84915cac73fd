"""What a reader must know to judge the figures: the machine, the versions, the flags."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil

from . import perf_analyzer, wrk
from .workloads import Subject


def describe(subjects: Sequence[Subject], flags: str) -> list[str]:
    """One fact a line, of the moment before the first measurement."""
    memory = psutil.virtual_memory().total / (1 << 30)
    lines = [
        f"date: {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC",
        f"machine: {processor()}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}",
        f"load average before the start: {os.getloadavg()[0]:.2f} (others' work on the machine blurs the figures)",
        f"load generators: {wrk.version() if wrk.available() else 'no wrk'}, perf_analyzer {perf_analyzer.version()}",
        f"flags: {flags}",
    ]
    for subject in subjects:
        version = subject.server.get("/v2")["version"]
        lines.append(f"{subject.program.name} {version}: {subject.program}")
        lines.append(f"{subject.program.name} models run in: {interpreter(subject)}")
    return [*lines, f"commit: {commit()}"]


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def interpreter(subject: Subject) -> str:
    """Python's and numpy's versions as the server's models see them."""
    code = "import platform, numpy; print(f'Python {platform.python_version()}, numpy {numpy.__version__}')"
    shown = subprocess.run(
        [subject.program.python, "-c", code],
        env=subject.program.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return shown.stdout.strip()


def commit() -> str:
    shown = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True)
    return shown.stdout.strip() or "not a git checkout"
