"""A trace as the process that exports spans is told of it."""

from __future__ import annotations

from typing import NamedTuple


class SpanRecord(NamedTuple):
    """A trace as JSON can have it: numbers, texts, and times in nanoseconds of CLOCK_MONOTONIC, 0 for none.

    Ids of spans are 0 where there is none; the trace's own, of 16 bytes, is in hexadecimal digits. `events` are what
    happened, in order; `tensors` the names and looks of those that were kept.
    """

    number: int
    parent: int
    model: str
    version: int
    request_id: str
    error: str
    batch: int
    batch_size: int
    instance: str
    trace_id: str
    parent_span: int
    outer_span: int
    span: int
    compute_span: int
    # From and to, of the client's request, of the model's, and of its execution
    outer_times: tuple[int, int]
    times: tuple[int, int]
    compute_times: tuple[int, int]
    events: list[tuple[str, int]]
    tensors: dict[str, str]
