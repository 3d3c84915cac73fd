"""What a reader must know to judge the figures: the machine, the versions, the flags."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil

from . import interpreters, perf_analyzer, rivals, wrk
from .workloads import Subject


def describe(subjects: Sequence[Subject], flags: str) -> list[str]:
    """One fact a line, of the moment before the first measurement."""
    memory = psutil.virtual_memory().total / (1 << 30)
    lines = [
        f"date: {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC",
        f"machine: {processor()}, {os.cpu_count()} cores, {memory:.0f} GiB, {kernel()}",
        f"load average before the start: {os.getloadavg()[0]:.2f} (others' work on the machine blurs the figures)",
        f"load generators: {wrk.version()}, {perf_analyzer.version()}",
        f"flags: {flags}",
    ]
    for subject in subjects:
        program = subject.program
        version = subject.server.get("/v2")["version"] if program.kserve else rivals.version(program.package)
        lines.append(f"{program.name} {version}: {program}")
        python = interpreters.describe(program.python, program.environment)
        lines.append(f"{program.name} {'models run' if program.kserve else 'runs'} in: {python}")
    if not all(subject.program.kserve for subject in subjects):
        lines.append(f"packages of the rivals: {rivals.versions()}")
    return [*lines, f"commit: {commit()}"]


def kernel() -> str:
    """Such as `Linux 6.18.44`, without the marks of whoever built it."""
    return f"{platform.system()} {platform.release().partition('-')[0]}"


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def commit() -> str:
    shown = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True)
    return shown.stdout.strip() or "not a git checkout"
