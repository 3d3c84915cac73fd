"""Runs the benchmark: `python -m tools.bench --help`."""

from __future__ import annotations

import argparse
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import FrameType

from . import machine, repository, rounds, servers, table, versus, wrk
from .neighbour import Neighbour
from .report import CANDIDATE, REFERENCE, Report
from .rivals import RIVALS, program
from .rounds import progress
from .servers import Program, Server, ServerError
from .targets import BOUNDS, TARGETS
from .workloads import Subject

# The name of a second stubserve, which shows what a change has cost or given
BEFORE = "before"


class Ended(SystemExit):
    """A signal ends the run. The exit status is the one that a shell gives for it."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self._name = signal.Signals(number).name

    def __str__(self) -> str:
        return f"ended by {self._name}"


def main() -> None:
    options = parse_arguments()
    # Ended by ctrl-C, `timeout` or a CI runner it says what it has, and leaves no servers behind.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
    chosen = [workload for workload in table.all_workloads() if re.search(options.only, workload.name)]
    if not chosen:
        sys.exit(f"no workload matches --only {options.only!r}")
    if not wrk.available():
        progress("wrk is not installed, so most workloads are left out: apt-get install wrk")
    with ExitStack() as stack:
        try:
            report, subjects = begin(stack, options)
        except ServerError as error:
            sys.exit(f"benchmark stopped: {error}")
        try:
            stack.enter_context(Neighbour(options.neighbour))
            rounds.measure(report, subjects, chosen, options.rounds, options.seconds)
        except BaseException as error:
            report.unfinished = str(error) or type(error).__name__
            raise
        finally:
            # Before the servers are stopped, which takes them some seconds: nobody may wait so long for the end.
            publish(report, options)
    sys.exit(0 if report.complete else 1)


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
    parser.add_argument("--neighbour", action="store_true", help="measure beside a process that walks through memory")
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
    text += " --neighbour" if options.neighbour else ""
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


def begin(stack: ExitStack, options: argparse.Namespace) -> tuple[Report, list[Subject]]:
    """An empty report, and the servers, started; `stack` stops them."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stubserve-bench-")))
    models = folder / "models"
    repository.write_serving(models)

    subjects = []
    for each in programs(options):
        progress(f"starting {each.name}")
        server = stack.enter_context(Server(each, models, folder / f"{each.name}.log"))
        server.sleep()
        subjects.append(Subject(each, server, folder, stack))
    return Report(machine.describe(subjects, flags(options)), options.servers, TARGETS, BOUNDS), subjects


def publish(report: Report, options: argparse.Namespace) -> None:
    print(report.text(), flush=True)
    if options.markdown:
        options.markdown.write_text(report.markdown())
    if options.versus:
        options.versus.write_text(versus.page(report, f"make bench ARGS='{flags(options)}'"))


def leave(number: int, _: FrameType | None) -> None:
    raise Ended(number)


if __name__ == "__main__":
    main()
