"""NVIDIA's own load generator, perf_analyzer: one run, its figures."""

from __future__ import annotations

import csv
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .servers import ServerError, peers_environment
from .wrk import Load, LoadError

# perf_analyzer repeats a window until three in a row agree within this many percent. Any three will do here: the
# benchmark takes its medians over rounds, and both servers must get the same time.
STABILITY_PERCENT = 999
WINDOWS = 3


def version() -> str:
    """With its name; that there is none, where the peers are not installed: not all workloads need it."""
    try:
        shown = subprocess.run([_program(), "--version"], env=_environment(), capture_output=True, text=True)
    except ServerError:
        return "no perf_analyzer"
    # "Perf Analyzer Version 2.51.0 (commit ...)", on either stream.
    return f"perf_analyzer {(shown.stdout + shown.stderr).partition('Version')[2].split()[0]}"


def run(
    port: int, model: str, shape: str, concurrency: int, seconds: int, report: Path, more: Sequence[str] = ()
) -> Load:
    """Sends random tensors of `shape` (such as `INPUT0:16`) for about `seconds`: over HTTP, if `more` says nothing.

    Raises LoadError when perf_analyzer reports a failed request or no figures.
    """
    command = [_program(), "-m", model, "-u", f"127.0.0.1:{port}", "--shape", shape]
    command += ["--concurrency-range", str(concurrency), "--measurement-interval", str(seconds * 1000 // WINDOWS)]
    command += ["--stability-percentage", str(STABILITY_PERCENT), "--max-trials", str(WINDOWS), "-f", str(report)]
    command += more
    finished = subprocess.run(command, env=_environment(), capture_output=True, text=True, timeout=60 + 10 * seconds)
    if finished.returncode != 0:
        raise LoadError(
            f"perf_analyzer exited with {finished.returncode}: {(finished.stdout + finished.stderr)[-800:]}"
        )
    return parse(report.read_text(), seconds)


def parse(report: str, seconds: float) -> Load:
    """The figures in perf_analyzer's CSV report. It gives a rate only; `requests` is that rate times `seconds`."""
    rows = list(csv.DictReader(report.splitlines()))
    if len(rows) != 1:
        raise LoadError(f"perf_analyzer reported {len(rows)} measurements where one was asked for: {report!r}")
    rate = float(rows[0]["Inferences/Second"])
    if rate == 0:
        raise LoadError("perf_analyzer got no answer in the time given: raise --seconds")
    return Load(
        requests=round(rate * seconds),
        requests_per_s=rate,
        p50_us=float(rows[0]["p50 latency"]),
        p99_us=float(rows[0]["p99 latency"]),
    )


def _program() -> str:
    return peers_environment()["PERF_ANALYZER"]


def _environment() -> dict[str, str]:
    return {**os.environ, "LD_LIBRARY_PATH": peers_environment()["PA_LIBS"]}
