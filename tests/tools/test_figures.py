"""The page of figures: its chart is drawn of its own table, and a run of the bench fills the table."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tools.bench import figures, versus
from tools.bench.report import Report, row_of
from tools.bench.table import all_workloads
from tools.bench.targets import AFTERWARDS, BEFORE_LARGE
from tools.bench.workloads import CPU, P50, PSS, RATE

PAGE = """\
| workload | figure | Triton | stubserve | ratio | FastAPI |
|---|---|---|---|---|---|
| **Requests that differ** | | | | | |
| binary, 1 at a time | requests/s | 1 | 2 | 2.00x | 3 |
| binary, 1 at a time | p50 in µs | 4 | 2 | 2.00x | - |
| hits, each with another id | processor ms per 1,000 | 31.5 | 18.9 | 1.67x | - |
| all processes (PSS), after small requests | MiB | 231 | 183 | 1.26x | 42.4 |

| model | FastAPI | stubserve |
|---|---|---|
| 64 floats, 1 ms for a batch of 32, 128 at a time | 4,742 | 20,927 |
"""


def test_the_chart_is_that_of_the_table() -> None:
    assert figures.CHART.read_text() == figures.chart_of(figures.PAGE.read_text())


def test_each_row_of_the_page_is_known_and_each_is_measured() -> None:
    """So no row is left behind, by a word that was changed, when figures are taken over."""
    page = figures.PAGE.read_text()
    everything = {(workload, metric.name): ({"stubserve": "0"}, "") for workload, metric in figures.SOURCES.values()}
    # Other tables tell of other servers.
    parts = figures.filled(page, everything).split("\n\n")
    tables = [part for part in parts if part.startswith(("| workload |", "| model |"))]
    rows = [line for table in tables for line in table.splitlines() if line.startswith("| ")]
    untouched = [line for line in rows if " 0 |" not in line and not line.startswith("| **")]
    assert [line.split(" | ")[0] for line in untouched] == ["| workload", "| model"]
    assert len(rows) - len(untouched) - sum(line.startswith("| **") for line in rows) == len(figures.SOURCES)
    names = {workload.name for workload in all_workloads(installed=False)} | {BEFORE_LARGE, AFTERWARDS}
    assert {workload for workload, _ in figures.SOURCES.values()} <= names


def test_a_run_fills_the_rows_that_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = Report(["machine"], ["triton", "stubserve", "fastapi"], {})
    for turn in (0, 1, 2):
        report.add("varied binary, 1 connection", "triton", {RATE: 4000 + turn, P50: 200})
        report.add("varied binary, 1 connection", "stubserve", {RATE: 8100 + turn, P50: 100})
    report.add("cache hits, other ids, 16 connections", "triton", {CPU: 0.0315})
    report.add("cache hits, other ids, 16 connections", "stubserve", {CPU: 0.021})
    report.add("onnxruntime dense_1ms, 64 floats, 128 connections", "stubserve", {RATE: 9})
    report.add(BEFORE_LARGE, "triton", {PSS: 200})
    page = figures.filled(PAGE, figures.read(versus.page(report, "make bench")))
    for cells in (
        ["binary, 1 at a time", "requests/s", "4,001", "8,101", "2.02x", "-"],
        ["binary, 1 at a time", "p50 in µs", "200", "100", "2.00x", "-"],
        ["hits, each with another id", "processor ms per 1,000", "31.5", "21.0", "1.50x", "-"],
        ["all processes (PSS), after small requests", "MiB", "231", "183", "1.26x", "42.4"],
        ["64 floats, 1 ms for a batch of 32, 128 at a time", "-", "9"],
    ):
        assert row_of(cells) in page.splitlines()
    assert len(page.splitlines()) == len(PAGE.splitlines())


def test_a_bar_is_as_long_as_its_ratio() -> None:
    drawing = ElementTree.fromstring(figures.chart({"a": 1.0, "b": 4.0}))
    bars = [float(bar.attrib["width"]) for bar in drawing.iter() if bar.attrib.get("class") == "bar"]
    assert bars[1] == pytest.approx(4 * bars[0], rel=0.01)
