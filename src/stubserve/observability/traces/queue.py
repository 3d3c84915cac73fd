"""Traces on their way out of the event loop: the samplers, a bounded queue, and the thread that writes them.

The event loop only appends. The thread may write to something slow, full or gone: when the queue is full, traces are
dropped, and now and then a line in the log says how many.
"""

# Compiled by mypyc.
from __future__ import annotations

import collections
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from stubserve.inference.trace import TENSOR_BYTES, Parent, Sampler, Trace
from stubserve.settings.groups import TENSORS, TIMESTAMPS

log = logging.getLogger("stubserve.tracing")

_SAY_AGAIN_S = 60.0
_CLOSE_S = 2.0
_BYTES = 64 << 20

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")


@dataclass(frozen=True)
class TraceRules:
    """The settings that can change while the server runs. `levels` are of TRACE_LEVELS; a `count` of -1 has no end."""

    levels: tuple[str, ...] = ()
    rate: int = 1000
    count: int = -1
    log_frequency: int = 0


class Tracer(Sampler):
    """Samples requests by one set of rules, and passes on their traces."""

    def __init__(self, rules: TraceRules, destination: TraceQueue | None, spans: bool) -> None:
        self.rules = rules
        self.tensors = TENSORS in rules.levels
        self.timestamps = TIMESTAMPS in rules.levels
        # Spans have only the names and shapes of tensors.
        self.tensor_bytes = 0 if spans else TENSOR_BYTES
        self.spans = spans
        self._destination = destination
        # How many requests to pass over before the next trace
        self._ahead = rules.rate
        self.left = rules.count

    def sample(self, model: str, version: int, protocol: str, context: Callable[[], str | None]) -> Trace | None:
        self._ahead -= 1
        given = context() if self.spans else None
        if self._ahead and given is None:
            return None
        wanted = not self._ahead
        parent = parent_of(given if self.spans else context())
        if wanted:
            self._ahead = self.rules.rate
            wanted = self.left != 0
            if self.left > 0:
                self.left -= 1
        if not wanted and parent is None:
            return None
        return Trace(self, model, version, protocol, time.monotonic_ns(), parent=parent)

    def collect(self, tree: Sequence[Trace]) -> None:
        if self._destination is not None:
            self._destination.put(tree, self)


# The traces of a tree and their tracer; no traces: nothing more comes from that tracer
Item = tuple[Sequence[Trace], Tracer]


class TraceQueue:
    """At most `limit` traces, and 64 MiB of their ids and tensors. A subclass writes them, on a thread of its own.

    `write` gets the traces of `delay_s`, or of less time once there are `enough`. Its exceptions are logged.
    """

    def __init__(self, limit: int, enough: int, delay_s: float) -> None:
        self._limit = limit
        self._enough = enough
        self._delay_s = delay_s
        self._news = threading.Condition()
        self._items: collections.deque[Item] = collections.deque()
        self._traces = 0
        self._bytes = 0
        self._closing = False
        self._writer: threading.Thread | None = None
        # The number of lost traces, and those that the log has not mentioned
        self.dropped = 0
        self._untold = 0
        self._told_at = 0.0

    def put(self, tree: Sequence[Trace], tracer: Tracer) -> None:
        nbytes = _nbytes(tree)
        with self._news:
            if self._traces + len(tree) > self._limit or self._bytes + nbytes > _BYTES:
                self._lose(len(tree))
                return
            self._append((tree, tracer), len(tree), nbytes)

    def retire(self, tracer: Tracer) -> None:
        with self._news:
            if self._writer is not None:
                self._append(((), tracer), 0, 0)

    def close(self) -> None:
        with self._news:
            self._closing = True
            self._news.notify()
        if self._writer is not None:
            self._writer.join(_CLOSE_S)
            if self._writer.is_alive():
                log.warning("traces that could not be written within %g s are lost", _CLOSE_S)

    def write(self, items: Sequence[Item]) -> None:
        """Writes traces; on the thread."""
        raise NotImplementedError

    def finish(self) -> None:
        """Nothing more comes; on the thread."""

    def lose(self, count: int, why: str) -> None:
        """Reports `count` lost traces; on the thread."""
        with self._news:
            self._lose(count, why)

    def _append(self, item: Item, traces: int, nbytes: int) -> None:
        self._items.append(item)
        was_enough = self._traces >= self._enough
        self._traces += traces
        self._bytes += nbytes
        if self._writer is None:
            self._writer = threading.Thread(target=self._run, name="stubserve-traces", daemon=True)
            self._writer.start()
        elif len(self._items) == 1 or (not was_enough and self._traces >= self._enough):
            self._news.notify()

    def _lose(self, count: int, why: str = "they are not written fast enough") -> None:
        self.dropped += count
        self._untold += count
        now = time.monotonic()
        if now - self._told_at >= _SAY_AGAIN_S or not self._told_at:
            log.warning("%d traces are lost: %s", self._untold, why)
            self._untold, self._told_at = 0, now

    def _run(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._items or self._closing)
                self._news.wait_for(lambda: self._traces >= self._enough or self._closing, self._delay_s)
                items = list(self._items)
                closing = self._closing
            for part in self._parts(items):
                try:
                    self.write(part)
                except Exception as error:
                    self.lose(sum(len(tree) for tree, _ in part), str(error))
            with self._news:
                # Only now, because traces being written count as well.
                for _ in items:
                    tree, _tracer = self._items.popleft()
                    self._traces -= len(tree)
                    self._bytes -= _nbytes(tree)
                done = closing and not self._items
            if done:
                try:
                    self.finish()
                except Exception as error:
                    log.warning("the last traces could not be written: %s", error)
                return

    def _parts(self, items: Sequence[Item]) -> Iterator[list[Item]]:
        """Splits what is written at a time: at most `enough` traces, or a single tree.

        Compiled code keeps the interpreter's lock from one call of the system to the next.
        """
        part: list[Item] = []
        traces = 0
        for item in items:
            traces += len(item[0])
            if part and traces > self._enough:
                yield part
                part, traces = [], len(item[0])
            part.append(item)
        if part:
            yield part


def _nbytes(tree: Sequence[Trace]) -> int:
    """The rough size of a tree's traces, as far as clients and models can make it large."""
    nbytes = 0
    for trace in tree:
        nbytes += trace.kept
        if trace.request_id:
            nbytes += sys.getsizeof(trace.request_id)
        if trace.error:
            nbytes += sys.getsizeof(trace.error)
    return nbytes


def parent_of(text: str | None) -> Parent | None:
    """The span that a `traceparent` names; None if it is not valid."""
    match = None if text is None else _TRACEPARENT.fullmatch(text)
    if match is None:
        return None
    parent = Parent(int(match[1], 16), int(match[2], 16))
    return parent if all(parent) else None
