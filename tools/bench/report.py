"""Collects figures and failures over the rounds and prints them as medians, ranges and ratios."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from .workloads import Figures, Metric

REFERENCE, CANDIDATE = "triton", "stubserve"
FAILED = "failed"
LONGEST_REASON = 300


@dataclass(frozen=True)
class Row:
    """One line of the table: the samples of each server that gave any, and who failed at the workload."""

    workload: str
    metric: Metric
    samples: Mapping[str, Sequence[float]]
    target: float | None
    bound: float | None = None
    failed: Collection[str] = ()

    def summary(self, server: str) -> str:
        return FAILED if server in self.failed else summary(self.samples.get(server, ()))

    def lead(self, server: str) -> str:
        """How many times better the candidate is than `server`; empty where there is nothing to compare."""
        return ratio(self.metric, self.samples.get(server, ()), self.samples.get(CANDIDATE, ()))

    def verdict(self) -> str:
        """The target against the reference, or the bound, and whether the median reaches it; empty without one."""
        if self.bound is not None:
            return self._bound(self.bound)
        if self.target is None:
            return ""
        reached = quotient(self.metric, self.samples.get(REFERENCE, ()), self.samples.get(CANDIDATE, ()))
        if reached is None:
            return f"{self.target:g}x"
        return f"{self.target:g}x {'met' if reached >= self.target else 'missed'}"

    def _bound(self, bound: float) -> str:
        own = self.samples.get(CANDIDATE, ())
        text = f"{'at least' if self.metric.more_is_better else 'at most'} {bound:g}"
        if not own:
            return text
        reached = median(own) >= bound if self.metric.more_is_better else median(own) <= bound
        return f"{text} {'met' if reached else 'missed'}"


class Report:
    """The samples of a run, in the order in which their workloads and metrics were first seen.

    `stage` says what is done now, `unfinished` why the run ended there, if it did. A server that has failed at a
    workload has no figure for it, not even from rounds in which all went well.
    """

    def __init__(
        self,
        header: Sequence[str],
        servers: Sequence[str],
        targets: Mapping[tuple[str, Metric], float],
        bounds: Mapping[tuple[str, Metric], float] | None = None,
    ) -> None:
        self.header = header
        self.servers = servers
        self._targets = targets
        self._bounds = bounds or {}
        self.stage = self.unfinished = ""
        self._samples: dict[tuple[str, Metric], dict[str, list[float]]] = {}
        # By workload, then by server: why it failed
        self._failures: dict[str, dict[str, str]] = {}

    @property
    def complete(self) -> bool:
        """Whether all was measured that was to be measured."""
        return not self.unfinished and not self._failures

    def add(self, workload: str, server: str, figures: Figures) -> None:
        for metric, value in figures.items():
            self._samples.setdefault((workload, metric), {}).setdefault(server, []).append(value)

    def fail(self, workload: str, server: str, reason: str) -> None:
        self._failures.setdefault(workload, {})[server] = " ".join(reason.split())[:LONGEST_REASON]

    def has_failed(self, workload: str, server: str) -> bool:
        return server in self._failures.get(workload, ())

    def notes(self) -> list[str]:
        """What a reader must know of a run that is not complete, one thing a line."""
        notes = [f"not finished: {self.unfinished}, at this point: {self.stage}"] if self.unfinished else []
        for workload, reasons in self._failures.items():
            notes += [f"failed: {workload}: {server}: {reason}" for server, reason in reasons.items()]
        return notes

    def rows(self) -> list[Row]:
        return [self._row(workload, metric, samples) for (workload, metric), samples in self._samples.items()]

    def _row(self, workload: str, metric: Metric, samples: Mapping[str, Sequence[float]]) -> Row:
        failed = self._failures.get(workload, {})
        kept = {server: figures for server, figures in samples.items() if server not in failed}
        key = (workload, metric)
        return Row(workload, metric, kept, self._targets.get(key), self._bounds.get(key), failed)

    def text(self) -> str:
        """The table for a terminal, columns aligned."""
        lines = [self._titles(), *([row.workload, *self._cells(row)] for row in self.rows())]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        ]
        return "\n".join([*self.header, *self.notes(), "", *table, "", self.footnote()])

    def markdown(self) -> str:
        header = [f"- {line}" for line in (*self.header, *self.notes())]
        return "\n".join([*header, "", *self.table(), "", self.footnote(), ""])

    def table(self) -> list[str]:
        """The table as lines of Markdown. A workload's name stands once, before its first metric."""
        titles = self._titles()
        lines = [row_of(titles), row_of(["---"] * len(titles))]
        previous = ""
        for row in self.rows():
            lines.append(row_of([row.workload if row.workload != previous else "", *self._cells(row)]))
            previous = row.workload
        return lines

    def _others(self) -> list[str]:
        return [name for name in self.servers if name != CANDIDATE]

    def _titles(self) -> list[str]:
        titles = ["workload", "figure", *self.servers]
        for name in self._others():
            titles += [f"better than {name}"] if name == REFERENCE else [f"than {name}"]
        return [*titles, "target"]

    def _cells(self, row: Row) -> list[str]:
        cells = [row.metric.name, *(row.summary(name) for name in self.servers)]
        return [*cells, *(row.lead(name) for name in self._others()), row.verdict()]

    def footnote(self) -> str:
        return (
            f"Medians with (lowest-highest) over the rounds. Above 1x {CANDIDATE} is better, below 1x the other; "
            "~ marks differences that may be chance, because the ranges overlap."
        )


def row_of(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def summary(samples: Sequence[float]) -> str:
    """The median, and the range where there is more than one sample; a dash for none."""
    if not samples:
        return "-"
    middle = number(median(samples))
    return middle if len(samples) == 1 else f"{middle} ({number(min(samples))}-{number(max(samples))})"


def ratio(metric: Metric, reference: Sequence[float], candidate: Sequence[float]) -> str:
    """How many times better the candidate's median is than the reference's, whichever direction is better.

    A `~` follows where the ranges overlap: the next run may well turn such a difference round.
    """
    value = quotient(metric, reference, candidate)
    if value is None:
        return ""
    overlap = min(candidate) <= max(reference) and min(reference) <= max(candidate)
    return f"{value:.2f}x{' ~' if overlap and len(reference) > 1 else ''}"


def quotient(metric: Metric, reference: Sequence[float], candidate: Sequence[float]) -> float | None:
    """None where there is nothing to compare. Two servers of which one uses nothing at all cannot be divided."""
    if not reference or not candidate or metric.more_is_better is None:
        return None
    above, below = median(candidate), median(reference)
    if not metric.more_is_better:
        above, below = below, above
    return above / below if above and below else None


def number(value: float) -> str:
    """About three digits: `12,345`, `123`, `12.3`, `1.23`, `0.0123`."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.3g}"
