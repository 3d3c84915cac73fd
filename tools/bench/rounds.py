"""Measures workloads on running servers, round by round, and goes on where one of them fails.

Every figure is told as soon as it is there, so a run that is killed has told what it has. A server that fails at a
workload, when its answers are checked or when it is measured, is not asked for that workload again: what it would
still give could not be trusted. It is asked for all others, and the other servers are asked for all.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from . import workloads
from .onnx_loads import OnnxLoad
from .report import Report, number
from .servers import Program
from .targets import AFTERWARDS, BEFORE_LARGE
from .workloads import Figures, Subject, Workload

T = TypeVar("T")

IDLE = "idle afterwards"


def measure(report: Report, subjects: Sequence[Subject], chosen: Sequence[Workload], rounds: int, seconds: int) -> None:
    """Checks, then measures `chosen` on every server that can run it. Figures and failures go into the report."""
    before_large: list[tuple[str, Figures]] = []
    # Memory first without what large tensors leave warm, so they come last here.
    for large in (False, True):
        for workload in chosen:
            for subject in subjects:
                if workload.large is large and serves(workload, subject.program):
                    with _step(report, "checking", workload.name, subject):
                        workload.prepare(subject)
        if not large:
            for subject in subjects:
                with _step(report, "measuring", BEFORE_LARGE, subject):
                    before_large.append((subject.program.name, workloads.measure_memory(subject.server)))

    for turn in range(rounds):
        for workload in chosen:
            for subject in turns(subjects, turn):
                name = subject.program.name
                if serves(workload, subject.program) and not report.has_failed(workload.name, name):
                    with _step(report, f"round {turn + 1} of {rounds}", workload.name, subject):
                        _add(report, workload.name, name, workload.measure(subject, seconds))

    for subject in subjects:
        with _step(report, "measuring", IDLE, subject):
            _add(report, IDLE, subject.program.name, workloads.measure_idle(subject.server))
    for name, figures in before_large:
        _add(report, BEFORE_LARGE, name, figures)
    for subject in subjects:
        with _step(report, "measuring", AFTERWARDS, subject):
            _add(report, AFTERWARDS, subject.program.name, workloads.measure_memory(subject.server))


def serves(workload: Workload, program: Program) -> bool:
    """Whether `program` can run this at all."""
    return workload.serves(program) and (not program.only_onnx or isinstance(workload, OnnxLoad))


def turns(everybody: Sequence[T], turn: int) -> list[T]:
    """Who goes when in a round: everybody is first in turn."""
    first = turn % len(everybody)
    return [*everybody[first:], *everybody[:first]]


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _step(report: Report, what: str, workload: str, subject: Subject) -> Iterator[None]:
    """Tells what is done now. A failure is noted in the report, and told with what the server logged last."""
    server = subject.program.name
    report.stage = f"{what}: {workload}: {server}"
    progress(report.stage)
    try:
        yield
    # Whatever it is, the rows that are left are worth having.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        report.fail(workload, server, reason)
        progress(f"    failed: {reason}")
        for copy in (subject.server, *subject.beside.values()):
            progress(f"    end of the log of {copy.name}:\n{copy.log_tail()}")


def _add(report: Report, workload: str, server: str, figures: Figures) -> None:
    report.add(workload, server, figures)
    progress("    " + ", ".join(f"{metric.name}: {number(value)}" for metric, value in figures.items()))
