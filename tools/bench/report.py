"""Collects figures over the rounds and prints them as medians, ranges and ratios."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from .workloads import Figures, Metric

REFERENCE, CANDIDATE = "triton", "stubserve"


@dataclass(frozen=True)
class Row:
    """One line of the table. `cells` has a text for each server; `ratio` is empty where there is nothing to compare."""

    workload: str
    metric: str
    cells: tuple[str, ...]
    ratio: str


class Report:
    """The samples of a run, in the order in which their workloads and metrics were first seen."""

    def __init__(self, header: Sequence[str], servers: Sequence[str]) -> None:
        self._header = header
        self._servers = servers
        self._samples: dict[tuple[str, Metric], dict[str, list[float]]] = {}

    def add(self, workload: str, server: str, figures: Figures) -> None:
        for metric, value in figures.items():
            by_server = self._samples.setdefault((workload, metric), {name: [] for name in self._servers})
            by_server[server].append(value)

    def rows(self) -> list[Row]:
        rows = []
        for (workload, metric), by_server in self._samples.items():
            cells = tuple(summary(by_server[name]) for name in self._servers)
            rows.append(Row(workload, metric.name, cells, ratio(metric, by_server)))
        return rows

    def text(self) -> str:
        """The table for a terminal, columns aligned."""
        lines = [self._titles(), *([row.workload, row.metric, *row.cells, row.ratio] for row in self.rows())]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        ]
        return "\n".join([*self._header, "", *table, "", self._footnote()])

    def markdown(self) -> str:
        titles = self._titles()
        lines = [f"- {line}" for line in self._header] + ["", row_of(titles), row_of(["---"] * len(titles))]
        previous = ""
        for row in self.rows():
            # A workload's name stands once, before its first metric.
            lines.append(row_of([row.workload if row.workload != previous else "", row.metric, *row.cells, row.ratio]))
            previous = row.workload
        return "\n".join([*lines, "", self._footnote(), ""])

    def _titles(self) -> list[str]:
        return ["workload", "figure", *self._servers, f"{CANDIDATE} better by"]

    def _footnote(self) -> str:
        return (
            f"Medians with (lowest-highest) over the rounds. Above 1x {CANDIDATE} is better, below 1x {REFERENCE}; "
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


def ratio(metric: Metric, by_server: dict[str, list[float]]) -> str:
    """How many times better the candidate's median is than the reference's, whichever direction is better.

    A `~` follows where the ranges overlap: the next run may well turn such a difference round.
    """
    reference, candidate = by_server.get(REFERENCE), by_server.get(CANDIDATE)
    if not reference or not candidate or metric.more_is_better is None:
        return ""
    above, below = median(candidate), median(reference)
    if not metric.more_is_better:
        above, below = below, above
    # Two servers of which one uses nothing at all cannot be divided.
    if not above or not below:
        return ""
    overlap = min(candidate) <= max(reference) and min(reference) <= max(candidate)
    return f"{above / below:.2f}x{' ~' if overlap and len(reference) > 1 else ''}"


def number(value: float) -> str:
    """About three digits: `12,345`, `123`, `12.3`, `1.23`, `0.0123`."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.3g}"
