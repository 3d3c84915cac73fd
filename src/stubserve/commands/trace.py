"""`stubserve trace FILE`: draws the traces that an OpenTelemetry collector has received, as trees in text.

FILE has a line of JSON per export, as the collector's file exporter writes them (OTLP's JSON form). The bar of a span
shows when it began and ended within its trace.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_WIDTH = 40


class DrawnSpan(NamedTuple):
    """One span. Times are nanoseconds since 1970; `attributes` have plain values."""

    trace: str
    id: str
    parent: str
    name: str
    start: int
    end: int
    attributes: dict[str, Any]
    events: list[str]
    error: str


def run(words: Sequence[str]) -> int:
    """Prints the trees; 1 if the file cannot be read, else 0."""
    parser = argparse.ArgumentParser(
        prog="stubserve trace",
        description="Draws the traces that an OpenTelemetry collector has written to a file as trees, in text.",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="a line of OTLP's JSON for each export")
    options = parser.parse_args(words)
    try:
        with options.file.open(encoding="utf-8") as file:
            print(draw(read_spans(file)))
    except OSError as error:
        print(f"error: {options.file} cannot be read: {error.strerror}", file=sys.stderr)
        return 1
    except (ValueError, LookupError, TypeError, AttributeError):
        print(f"error: {options.file} has no traces in OTLP's JSON form, an export in each line", file=sys.stderr)
        return 1
    return 0


def read_spans(lines: Iterable[str]) -> Iterator[DrawnSpan]:
    """The spans in exports in OTLP's JSON form."""
    for line in lines:
        for of_resource in json.loads(line).get("resourceSpans", []):
            for of_scope in of_resource["scopeSpans"]:
                for span in of_scope["spans"]:
                    yield DrawnSpan(
                        span["traceId"],
                        span["spanId"],
                        span.get("parentSpanId", ""),
                        span["name"],
                        int(span["startTimeUnixNano"]),
                        int(span["endTimeUnixNano"]),
                        {one["key"]: next(iter(one["value"].values())) for one in span.get("attributes", [])},
                        [event["name"] for event in span.get("events", [])],
                        span.get("status", {}).get("message", ""),
                    )


def draw(spans: Iterable[DrawnSpan]) -> str:
    traces: dict[str, list[DrawnSpan]] = defaultdict(list)
    for span in spans:
        traces[span.trace].append(span)
    return "\n".join(line for trace in traces.values() for line in _drawn(trace))


def _drawn(trace: list[DrawnSpan]) -> Iterator[str]:
    children: dict[str, list[DrawnSpan]] = defaultdict(list)
    known = {span.id for span in trace}
    for span in sorted(trace, key=lambda span: span.start):
        children[span.parent if span.parent in known else ""].append(span)
    begin, end = min(span.start for span in trace), max(span.end for span in trace)
    yield f"trace {trace[0].trace}, {(end - begin) / 1e6:.2f} ms"

    def below(parent: str, indent: str) -> Iterator[str]:
        for number, span in enumerate(children[parent]):
            last = number == len(children[parent]) - 1
            label = f"{indent}{'└─ ' if last else '├─ '}{span.name}"
            yield f"{label:<34} {_bar(span, begin, end)} {(span.end - span.start) / 1e6:8.3f} ms{_batch(span)}"
            yield from below(span.id, indent + ("   " if last else "│  "))

    yield from below("", "")


def _bar(span: DrawnSpan, begin: int, end: int) -> str:
    scale = _WIDTH / max(end - begin, 1)
    at = min(int((span.start - begin) * scale), _WIDTH - 1)
    length = max(min(round((span.end - span.start) * scale), _WIDTH - at), 1)
    return "·" * at + "█" * length + "·" * (_WIDTH - at - length)


def _batch(span: DrawnSpan) -> str:
    told = span.attributes
    if "stubserve.instance" not in told:
        return f"  {span.error}" if span.error else ""
    return f"  {told['stubserve.instance']}, batch {told['stubserve.batch.id']}, size {told['stubserve.batch.size']}"
