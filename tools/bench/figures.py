"""Puts the figures of raw pages of the bench into docs/versus.md, and draws the page's chart.

`make bench ARGS='... --versus raw.md'` writes a raw page, and `python -m tools.bench.figures raw.md` takes its figures.
Where several raw pages have a row, the last of them counts. A row of docs/versus.md that no raw page has stays as it
is. Without a raw page only the chart is drawn. The words of the page are written by hand: read them again when figures
have changed.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from .report import CANDIDATE, REFERENCE, number, row_of
from .streaming import CALLS, RESPONSES
from .targets import AFTERWARDS, BEFORE_LARGE
from .workloads import CPU, P50, PARENT_RSS, PSS, RATE, START, STUB_RSS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "versus.md"
CHART = DOCS / "images" / "versus.svg"

# What a row of the page says (what is done, which figure), and the workload and figure of the bench that it has
SOURCES = {
    ("binary, 1 at a time", "requests/s"): ("varied binary, 1 connection", RATE),
    ("binary, 1 at a time", "p50 in µs"): ("varied binary, 1 connection", P50),
    ("binary, 16 at a time", "requests/s"): ("varied binary, 16 connections", RATE),
    ("binary to 20 models, 64 at a time", "requests/s"): ("varied binary to 20 models, 64 connections", RATE),
    ("numbers as JSON, 16 at a time", "requests/s"): ("varied numbers as JSON, 16 connections", RATE),
    ("booleans and integers as JSON, 16 at a time", "requests/s"): (
        "varied booleans and integers as JSON, 16 connections",
        RATE,
    ),
    ("one text as JSON, 16 at a time", "requests/s"): ("varied one text as JSON, 16 connections", RATE),
    ("32 texts as JSON, 16 at a time", "requests/s"): ("varied 32 texts as JSON, 16 connections", RATE),
    ("`generate`, text in and out, 16 at a time", "requests/s"): (
        "varied generate, text in and out, 16 connections",
        RATE,
    ),
    ("gRPC, 16 at a time", "requests/s"): ("varied gRPC, 16 connections", RATE),
    ("text classifier, 16 at a time", "texts/s"): ("varied text classifier, 16 connections", RATE),
    ("sentence embedder, 16 at a time", "texts/s"): ("varied sentence embedder, 16 connections", RATE),
    ("256 floats as JSON, 16 at a time", "requests/s"): ("256 floats as JSON, 16 connections", RATE),
    ("1,000 strings, 16 at a time", "requests/s"): ("1000 strings, 16 connections", RATE),
    ("16 floats over gRPC, 16 at a time", "requests/s"): ("gRPC 16 floats, 16 connections", RATE),
    ("batches of 8, 4 instances of 2 ms, 64 at a time", "requests/s"): (
        "dynamic batching, 4 instances of 2 ms, 64 connections",
        RATE,
    ),
    ("1 MiB, 4 at a time", "requests/s"): ("1 MiB, 4 connections", RATE),
    ("4 MiB, 1 at a time", "requests/s"): ("4 MiB, 1 connection", RATE),
    ("4 MiB, 4 at a time", "requests/s"): ("4 MiB, 4 connections", RATE),
    ("16 MiB, 2 at a time", "requests/s"): ("16 MiB, 2 connections", RATE),
    ("4 MiB over gRPC, 1 at a time", "requests/s"): ("gRPC 4 MiB, 1 connection", RATE),
    ("4 MiB over gRPC, 4 at a time", "requests/s"): ("gRPC 4 MiB, 4 connections", RATE),
    ("4 MiB in shared memory, HTTP, 1 at a time", "requests/s"): ("shared memory, HTTP, 4 MiB, 1 connection", RATE),
    ("4 MiB in shared memory, HTTP, 4 at a time", "requests/s"): ("shared memory, HTTP, 4 MiB, 4 connections", RATE),
    ("4 MiB in shared memory, gRPC, 4 at a time", "requests/s"): ("shared memory, gRPC, 4 MiB, 4 connections", RATE),
    ("the same by perf_analyzer, HTTP, 4 at a time", "requests/s"): (
        "shared memory, perf_analyzer HTTP, 4 MiB, 4 in flight",
        RATE,
    ),
    ("the same by perf_analyzer, gRPC, 4 at a time", "requests/s"): (
        "shared memory, perf_analyzer gRPC, 4 MiB, 4 in flight",
        RATE,
    ),
    ("1 gRPC stream", "responses/s"): ("decoupled, 1 gRPC stream", RESPONSES),
    ("16 gRPC streams", "responses/s"): ("decoupled, 16 gRPC streams", RESPONSES),
    ("1 event stream (`generate_stream`)", "responses/s"): ("decoupled, 1 event stream", RESPONSES),
    ("16 event streams", "responses/s"): ("decoupled, 16 event streams", RESPONSES),
    ("one call in each request, 8 at a time", "requests/s"): (
        "varied one call of another model, 8 connections",
        RATE,
    ),
    ("three models that call each other in a chain, 8 at a time", "requests/s"): (
        "varied chain of 3 calling models, 8 connections",
        RATE,
    ),
    ("many calls of 16 floats in one request", "calls/s"): ("calls between models, 16 floats", CALLS),
    ("many calls of 4 MiB in one request", "calls/s"): ("calls between models, 4 MiB", CALLS),
    ("chain of 3, 16 floats, 8 at a time", "requests/s"): ("ensemble of 3, 16 floats, 8 connections", RATE),
    ("chain of 3, 16 floats, 64 at a time", "requests/s"): ("ensemble of 3, 16 floats, 64 connections", RATE),
    ("one step, four side by side, one step; 8 at a time", "requests/s"): (
        "ensemble 1-4-1, 16 floats, 8 connections",
        RATE,
    ),
    ("one step, four side by side, one step; 64 at a time", "requests/s"): (
        "ensemble 1-4-1, 16 floats, 64 connections",
        RATE,
    ),
    ("chain of 3, 4 MiB, 1 at a time", "requests/s"): ("ensemble of 3, 4 MiB, 1 connection", RATE),
    ("chain of 3, 4 MiB, 4 at a time", "requests/s"): ("ensemble of 3, 4 MiB, 4 connections", RATE),
    ("direct, HTTP", "requests/s"): ("sequences, direct, HTTP, 64 connections", RATE),
    ("direct, gRPC streams", "requests/s"): ("sequences, direct, 64 gRPC streams", RATE),
    ("oldest, batches up to 32, HTTP", "requests/s"): ("sequences, oldest, HTTP, 64 connections", RATE),
    ("oldest, batches up to 32, gRPC streams", "requests/s"): ("sequences, oldest, 64 gRPC streams", RATE),
    ("hits, each with another id", "requests/s"): ("cache hits, other ids, 16 connections", RATE),
    ("hits, each with another id", "processor ms per 1,000"): ("cache hits, other ids, 16 connections", CPU),
    ("hits over gRPC", "requests/s"): ("cache hits, gRPC, 16 connections", RATE),
    ("1 model", "ms from exec to ready"): ("start with 1 model", START),
    ("20 models", "ms from exec to ready"): ("start with 20 models", START),
    ("parent (resident), after small requests", "MiB"): (BEFORE_LARGE, PARENT_RSS),
    ("all processes (PSS), after small requests", "MiB"): (BEFORE_LARGE, PSS),
    ("parent (resident), after tensors of 16 MiB", "MiB"): (AFTERWARDS, PARENT_RSS),
    ("largest other process (resident), after tensors of 16 MiB", "MiB"): (AFTERWARDS, STUB_RSS),
    ("all processes (PSS), after tensors of 16 MiB", "MiB"): (AFTERWARDS, PSS),
    ("64 floats, 1 ms for a batch of 32, 128 at a time", "requests/s"): (
        "onnxruntime dense_1ms, 64 floats, 128 connections",
        RATE,
    ),
    ("64 floats, 10 ms for a batch of 32, 128 at a time", "requests/s"): (
        "onnxruntime dense_10ms, 64 floats, 128 connections",
        RATE,
    ),
    ("image of 600 KiB, 1 ms each, 16 at a time", "requests/s"): (
        "onnxruntime image_1ms, image of 600 KiB, 16 connections",
        RATE,
    ),
    ("image of 600 KiB, 10 ms each, 16 at a time", "requests/s"): (
        "onnxruntime image_10ms, image of 600 KiB, 16 connections",
        RATE,
    ),
}
# Figures that the page has in another unit than the bench
TIMES = {"processor ms per 1,000": 1000.0}

# The bars of the chart, and the rows whose ratios they are
BARS = {
    "binary": ("binary, 16 at a time", "requests/s"),
    "one text as JSON": ("one text as JSON, 16 at a time", "requests/s"),
    "32 texts as JSON": ("32 texts as JSON, 16 at a time", "requests/s"),
    "gRPC": ("gRPC, 16 at a time", "requests/s"),
    "1 MiB over HTTP": ("1 MiB, 4 at a time", "requests/s"),
    "4 MiB over gRPC": ("4 MiB over gRPC, 4 at a time", "requests/s"),
    "4 MiB, shared memory": ("4 MiB in shared memory, HTTP, 4 at a time", "requests/s"),
    "16 gRPC streams": ("16 gRPC streams", "responses/s"),
    "one call (BLS)": ("one call in each request, 8 at a time", "requests/s"),
    "ensemble of three": ("chain of 3, 16 floats, 8 at a time", "requests/s"),
    "sequences, direct": ("direct, HTTP", "requests/s"),
    "start with 20 models": ("20 models", "ms from exec to ready"),
}

# By workload and figure: what each server has, and how many times better the candidate is than the reference
Raw = dict[tuple[str, str], tuple[dict[str, str], str]]


def read(raw: str) -> Raw:
    """The figures of a raw page."""
    found: Raw = {}
    for workload, table in re.findall(r"^### (.+)\n\n((?:\|.*\n)+)", raw, re.MULTILINE):
        titles, _, *lines = [_cells(line) for line in table.splitlines()]
        for column, figure in enumerate(titles[1:], 1):
            values, lead = {}, ""
            for cells in lines:
                middle, _, ratio = cells[column].partition(" · ")
                middle = middle.partition(" ")[0]
                if re.fullmatch(r"[\d.,]+(e[+-]\d+)?", middle):
                    values[cells[0]] = middle
                    lead = ratio.partition(" ")[0] if cells[0] == REFERENCE else lead
            if CANDIDATE in values:
                found[workload, figure] = values, lead
    return found


def filled(page: str, raw: Raw) -> str:
    """The page with the figures that there are. A row has figures of one run: who was not measured in it has a dash."""
    lines, titles = [], [""]
    for line in page.splitlines():
        cells = _cells(line)
        if not line.startswith("|"):
            titles = [""]
        elif titles == [""]:
            titles = cells
        elif (source := SOURCES.get(key := _key(titles, cells))) and (source[0], source[1].name) in raw:
            values, lead = raw[source[0], source[1].name]
            line = row_of([_cell(title, cell, values, lead, key[1]) for title, cell in zip(titles, cells, strict=True)])
        lines.append(line)
    return "\n".join(lines) + "\n"


def ratios(page: str) -> dict[tuple[str, str], float]:
    """By row: how many times better the candidate is."""
    found, titles = {}, [""]
    for line in page.splitlines():
        cells = _cells(line)
        if not line.startswith("|"):
            titles = [""]
        elif titles == [""]:
            titles = cells
        elif "ratio" in titles and re.fullmatch(r"[\d.]+x", ratio := cells[titles.index("ratio")]):
            found[_key(titles, cells)] = float(ratio[:-1])
    return found


def chart(bars: Mapping[str, float]) -> str:
    """Bars by their names, as SVG. It is narrow, so that it can be read on a phone, and follows dark and light."""
    names, width, step = 170, 480, 26
    scale = (width - names - 60) / max(bars.values())
    height = step * len(bars) + 48
    one = names + scale
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        "<title>How many times better stubserve is than Triton</title>",
        "<style>",
        "text { font: 14px sans-serif; fill: #333 } .paper { fill: #fff } .bar { fill: #4051b5 }",
        "line { stroke: #f57c00; stroke-width: 2 }",
        "@media (prefers-color-scheme: dark) {",
        "text { fill: #ddd } .paper { fill: #1e2129 } .bar { fill: #8c9eff }",
        "}",
        "</style>",
        f'<rect class="paper" width="{width}" height="{height}" rx="4"/>',
        f'<text x="{one:.1f}" y="22" text-anchor="middle">Triton: 1</text>',
    ]
    for place, (name, ratio) in enumerate(bars.items()):
        top = 34 + step * place
        parts += [
            f'<text x="{names - 8}" y="{top + 15}" text-anchor="end">{name}</text>',
            f'<rect class="bar" x="{names}" y="{top}" width="{scale * ratio:.1f}" height="20"/>',
            f'<text x="{names + scale * ratio + 6:.1f}" y="{top + 15}">{ratio:.1f}</text>',
        ]
    parts += [f'<line x1="{one:.1f}" x2="{one:.1f}" y1="28" y2="{height - 10}"/>', "</svg>"]
    return "\n".join(parts) + "\n"


def chart_of(page: str) -> str:
    """The chart of the page's own rows."""
    known = ratios(page)
    return chart({name: known[row] for name, row in BARS.items()})


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def _key(titles: Sequence[str], cells: Sequence[str]) -> tuple[str, str]:
    """What a row says. A table without a column for it has requests per second."""
    return cells[0], cells[1] if titles[1] == "figure" else "requests/s"


def _cell(title: str, cell: str, values: Mapping[str, str], lead: str, figure: str) -> str:
    if title in ("workload", "model", "figure"):
        return cell
    if title == "ratio":
        return lead or "-"
    value = values.get(title.lower(), "-")
    return number(float(value.replace(",", "")) * TIMES[figure]) if figure in TIMES and value != "-" else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("raw", nargs="*", type=Path, help="pages that --versus of the bench has written")
    options = parser.parse_args()
    raw: Raw = {}
    for path in options.raw:
        raw |= read(path.read_text())
    known = {(workload, metric.name) for workload, metric in SOURCES.values()}
    print(f"{len(known & set(raw))} of {len(known)} rows are new", file=sys.stderr)
    page = filled(PAGE.read_text(), raw)
    PAGE.write_text(page)
    CHART.write_text(chart_of(page))


if __name__ == "__main__":
    main()
