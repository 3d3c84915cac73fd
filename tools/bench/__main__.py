"""Runs the benchmark: `python -m tools.bench --help`."""

from __future__ import annotations

import argparse
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from pathlib import Path
from types import FrameType

import psutil

from . import machine, repository, servers, workloads, wrk
from .payloads import WrongAnswerError
from .report import CANDIDATE, REFERENCE, Report
from .servers import Server, ServerError
from .workloads import Subject, Workload
from .wrk import LoadError


class BenchmarkError(Exception):
    """A measurement could not be trusted; says which one and why."""


def main() -> None:
    options = parse_arguments()
    # Ended by `timeout` or a CI runner, it must not leave two servers behind.
    signal.signal(signal.SIGTERM, leave)
    chosen = [workload for workload in workloads.all_workloads() if re.search(options.only, workload.name)]
    if not chosen:
        sys.exit(f"no workload matches --only {options.only!r}")
    if not wrk.available():
        progress("wrk is not installed, so most workloads are left out: apt-get install wrk")
    try:
        with ExitStack() as stack:
            report = run(stack, options, chosen)
    except (BenchmarkError, ServerError) as error:
        sys.exit(f"benchmark stopped: {error}")
    print(report.text())
    if options.markdown:
        options.markdown.write_text(report.markdown())


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench", description="Measures stubserve beside real Triton and prints medians and ratios."
    )
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each workload (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=3, help="length of one measurement (default: %(default)s)")
    parser.add_argument("--only", metavar="REGEX", default="", help="only workloads whose name matches")
    parser.add_argument("--only-server", choices=[REFERENCE, CANDIDATE], help="measure one server, compare nothing")
    parser.add_argument("--quick", action="store_true", help="one round of one second: shows that all works, no more")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the table there too")
    options = parser.parse_args()
    if options.quick:
        options.rounds = options.seconds = 1
    if options.rounds < 1 or options.seconds < 1:
        parser.error("--rounds and --seconds must be at least 1")
    return options


def run(stack: ExitStack, options: argparse.Namespace, chosen: list[Workload]) -> Report:
    """Starts the servers, measures everything, and leaves stopping them to `stack`."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stubserve-bench-")))
    models = folder / "models"
    repository.write_serving(models)

    subjects = []
    programs = {REFERENCE: servers.triton, CANDIDATE: servers.stubserve}
    for name, make in programs.items():
        if options.only_server in (None, name):
            program = make()
            progress(f"starting {name}")
            server = stack.enter_context(Server(program, models, folder / f"{name}.log"))
            subjects.append(Subject(program, server, folder))

    flags = f"--rounds {options.rounds} --seconds {options.seconds}" + (
        f" --only {options.only}" if options.only else ""
    )
    report = Report(machine.describe(subjects, flags), [subject.server.name for subject in subjects])

    for workload in chosen:
        for subject in subjects:
            progress(f"checking {workload.name}: {subject.server.name}")
            with named(workload, subject):
                workload.prepare(subject)
    for number in range(options.rounds):
        order = subjects if number % 2 == 0 else subjects[::-1]
        for workload in chosen:
            for subject in order:
                progress(f"round {number + 1} of {options.rounds}: {workload.name}: {subject.server.name}")
                with named(workload, subject):
                    report.add(workload.name, subject.server.name, workload.measure(subject, options.seconds))

    for name, figures in workloads.measure_idle([subject.server for subject in subjects]).items():
        report.add("idle afterwards", name, figures)
    for subject in subjects:
        report.add("memory afterwards", subject.server.name, workloads.measure_memory(subject.server))
    return report


@contextmanager
def named(workload: Workload, subject: Subject) -> Iterator[None]:
    """Makes a failure say which workload it was, of which server, and what the server logged last."""
    try:
        yield
    except (LoadError, ServerError, WrongAnswerError, OSError, HTTPException, psutil.Error) as error:
        log = subject.server.log_tail()
        raise BenchmarkError(f"{workload.name}: {subject.server.name}: {error}\nend of its log:\n{log}") from error


def leave(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
