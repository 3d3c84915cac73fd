"""Runs the benchmark: `python -m tools.bench --help`."""

from __future__ import annotations

import argparse
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path
from types import FrameType
from typing import TypeVar

import psutil

from . import machine, repository, servers, table, versus, workloads, wrk
from .onnx_loads import OnnxLoad
from .payloads import WrongAnswerError
from .report import CANDIDATE, REFERENCE, Report
from .rivals import RIVALS, program
from .servers import Program, Server, ServerError
from .targets import AFTERWARDS, BEFORE_LARGE, BOUNDS, TARGETS
from .workloads import Subject, Workload
from .wrk import LoadError

T = TypeVar("T")

# The name of a second stubserve, which shows what a change has cost or given
BEFORE = "before"


class BenchmarkError(Exception):
    """A measurement could not be trusted; says which one and why."""


def main() -> None:
    options = parse_arguments()
    # Ended by `timeout` or a CI runner, it must not leave servers behind.
    signal.signal(signal.SIGTERM, leave)
    chosen = [workload for workload in table.all_workloads() if re.search(options.only, workload.name)]
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
    if options.versus:
        options.versus.write_text(versus.page(report, f"make bench ARGS='{flags(options)}'"))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench", description="Measures stubserve beside real Triton and prints medians and ratios."
    )
    known = [REFERENCE, CANDIDATE, *(rival.name for rival in RIVALS)]
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each workload (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=2, help="length of one measurement (default: %(default)s)")
    parser.add_argument("--only", metavar="REGEX", default="", help="only workloads whose name matches")
    parser.add_argument(
        "--servers",
        metavar="NAME,...",
        default=[REFERENCE, CANDIDATE],
        type=lambda text: text.split(","),
        help=f"which to measure, of {', '.join(known)} (default: {REFERENCE},{CANDIDATE})",
    )
    parser.add_argument("--rivals", dest="servers", action="store_const", const=known, help="measure all servers")
    parser.add_argument(
        "--python",
        metavar="PATH",
        # Not resolved: the link in an environment is what names the environment.
        type=lambda text: Path(text).absolute(),
        default=Path(sys.executable),
        help="the interpreter whose environment stubserve runs in (default: this one)",
    )
    parser.add_argument(
        "--before",
        metavar="PATH",
        type=lambda text: Path(text).absolute(),
        help="measure a second stubserve beside, that of this interpreter's environment: another commit's checkout",
    )
    parser.add_argument("--quick", action="store_true", help="one round of one second: shows that all works, no more")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the table there too")
    parser.add_argument("--versus", metavar="FILE", type=Path, help="write the page with a table per workload there")
    options = parser.parse_args()
    if options.quick:
        options.rounds = options.seconds = 1
    if options.rounds < 1 or options.seconds < 1:
        parser.error("--rounds and --seconds must be at least 1")
    if unknown := [name for name in options.servers if name not in known]:
        parser.error(f"--servers: no server {', '.join(unknown)}; there are {', '.join(known)}")
    if options.before:
        options.servers = [*(name for name in options.servers if name != CANDIDATE), BEFORE, CANDIDATE]
    return options


def flags(options: argparse.Namespace) -> str:
    """The flags that decide what is measured, as they would be typed."""
    text = f"--rounds {options.rounds} --seconds {options.seconds} --servers {','.join(options.servers)}"
    return text + (f' --only "{options.only}"' if options.only else "")


def programs(options: argparse.Namespace) -> Iterator[Program]:
    rivals = {rival.name: rival for rival in RIVALS}
    for name in options.servers:
        if name == REFERENCE:
            yield servers.triton()
        elif name == CANDIDATE:
            yield servers.stubserve(options.python)
        elif name == BEFORE:
            yield replace(servers.stubserve(options.before), name=BEFORE)
        else:
            yield program(rivals[name])


def run(stack: ExitStack, options: argparse.Namespace, chosen: list[Workload]) -> Report:
    """Starts the servers, measures everything, and leaves stopping them to `stack`."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stubserve-bench-")))
    models = folder / "models"
    repository.write_serving(models)

    subjects = []
    for each in programs(options):
        progress(f"starting {each.name}")
        server = stack.enter_context(Server(each, models, folder / f"{each.name}.log"))
        server.sleep()
        subjects.append(Subject(each, server, folder, stack))
    report = Report(machine.describe(subjects, flags(options)), options.servers, TARGETS, BOUNDS)

    # Memory first without what large tensors leave warm, so they come last here.
    for large in (False, True):
        for workload in chosen:
            for subject in subjects:
                if workload.large is large and serves(workload, subject.program):
                    progress(f"checking {workload.name}: {subject.program.name}")
                    with named(workload, subject):
                        workload.prepare(subject)
        if not large:
            before_large = {subject.program.name: workloads.measure_memory(subject.server) for subject in subjects}

    for number in range(options.rounds):
        for workload in chosen:
            for subject in turns(subjects, number):
                if serves(workload, subject.program):
                    progress(f"round {number + 1} of {options.rounds}: {workload.name}: {subject.program.name}")
                    with named(workload, subject):
                        report.add(workload.name, subject.program.name, workload.measure(subject, options.seconds))

    for subject in subjects:
        report.add("idle afterwards", subject.program.name, workloads.measure_idle(subject.server))
    for name, figures in before_large.items():
        report.add(BEFORE_LARGE, name, figures)
    for subject in subjects:
        report.add(AFTERWARDS, subject.program.name, workloads.measure_memory(subject.server))
    return report


def serves(workload: Workload, program: Program) -> bool:
    """Whether `program` can run this at all."""
    return workload.serves(program) and (not program.only_onnx or isinstance(workload, OnnxLoad))


def turns(everybody: list[T], number: int) -> list[T]:
    """Who goes when in round `number`: everybody is first in turn."""
    first = number % len(everybody)
    return everybody[first:] + everybody[:first]


@contextmanager
def named(workload: Workload, subject: Subject) -> Iterator[None]:
    """Makes a failure say which workload it was, of which server, and what the server logged last."""
    try:
        yield
    except (LoadError, ServerError, WrongAnswerError, OSError, HTTPException, psutil.Error) as error:
        logs = "\n".join(
            f"end of its log:\n{server.log_tail()}" for server in (subject.server, *subject.beside.values())
        )
        raise BenchmarkError(f"{workload.name}: {subject.server.name}: {error}\n{logs}") from error


def leave(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
