"""The records of a traced request, and of the requests that it has led to.

Each request has the times of its events anyway; a trace holds the rest. Most requests have no trace, and tracing costs
them one check. A trace begins when its request is submitted (`Call.submit`, if the model has a sampler). It ends when
the last response has been passed on and its batch is over.

Traces form trees: the steps of an ensemble and the calls of a model are children of the request that caused them
(`child`). The collector gets a tree when all of its traces have ended. Stubs know a trace by its number (`find`), so
that a model can pass it on with its own request. A number that is not under way has no trace.

Copied tensors of all trees under way are bounded (MOST_KEPT). Tensors above the bound are left out, and counted in
their trace.

Times are CLOCK_MONOTONIC nanoseconds, 0 for events that have not happened.
"""

# Compiled by mypyc.
from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from random import getrandbits
from typing import NamedTuple

from stubserve.inference.tensor import Tensor
from stubserve.memory.device_pools import DeviceSpan

# The most bytes that are kept of one tensor.
TENSOR_BYTES = 1 << 20
# The most bytes of tensors that all traces under way keep together.
MOST_KEPT = 64 << 20
# About the bytes of a copy, without its name, dimensions and data; and the bytes of a dimension
_COPY_BYTES, _DIMENSION_BYTES = 512, 40

QUEUE_INPUT = "TENSOR_QUEUE_INPUT"
BACKEND_OUTPUT = "TENSOR_BACKEND_OUTPUT"

_live: dict[int, Trace] = {}
# The bytes of the copied tensors of all trees under way
_kept = 0
_numbers = itertools.count(1)


class Parent(NamedTuple):
    """The span, of another program, that a request belongs to, as `traceparent` names it."""

    trace_id: int
    span_id: int


def _context(trace_id: int, span_id: int) -> str:
    return f'{{"traceparent":"00-{trace_id:032x}-{span_id:016x}-01"}}'


class TensorCopy(NamedTuple):
    """A copy of a tensor's bytes: the first of `nbytes`, as many as the collector wants."""

    activity: str
    name: str
    datatype: int
    shape: tuple[int, ...]
    data: bytes
    nbytes: int


class Sampler:
    """Decides which requests to a model are traced, and takes their trees of traces.

    `tensors`: the collector wants tensors, `tensor_bytes` of each. `spans`: traces get span ids. This is no Protocol,
    since each request calls it: compiled, a class costs one jump.
    """

    tensors: bool
    tensor_bytes: int
    spans: bool

    def sample(self, model: str, version: int, protocol: str, context: Callable[[], str | None]) -> Trace | None:
        """The trace of a request that is submitted now; None if it is not traced.

        `context` gives the request's `traceparent`.
        """
        raise NotImplementedError

    def collect(self, tree: Sequence[Trace]) -> None:
        """All traces of a tree, in the order in which they ended. Raises nothing."""
        raise NotImplementedError


class Trace:
    """The trace of one request to `model`. `protocol` is "HTTP" or "GRPC" for a client's request, else empty.

    `batch`, `batch_size` and `instance` are those of the execution; 0 and empty without one. `wire` is what the stub
    gets of the trace. `tensors` take about `kept` bytes; `left_out` tensors had no room.
    """

    __slots__ = (
        "_ended",
        "_open",
        "_root",
        "_sampler",
        "answered_ns",
        "batch",
        "batch_size",
        "begun_ns",
        "compute_end_ns",
        "compute_infer_end_ns",
        "compute_input_end_ns",
        "compute_span",
        "compute_start_ns",
        "cut_off",
        "error",
        "instance",
        "kept",
        "left_out",
        "model",
        "number",
        "outer_span",
        "parent",
        "parent_span",
        "protocol",
        "queue_start_ns",
        "request_id",
        "request_start_ns",
        "sent_ns",
        "span",
        "tensors",
        "trace_id",
        "version",
        "wire",
    )

    def __init__(
        self,
        sampler: Sampler,
        model: str,
        version: int,
        protocol: str,
        begun_ns: int,
        above: Trace | None = None,
        parent: Parent | None = None,
    ) -> None:
        self.number = next(_numbers)
        self.model = model
        self.version = version
        self.protocol = protocol
        self.request_id = ""
        self.parent = 0 if above is None else above.number
        # In a tree's root: how many traces have not ended, and the ended ones. None after the last: no circles
        self._sampler = sampler
        root = None if above is None else above._root
        if root is None:
            root = self
        self._root: Trace | None = root
        self._open = 0
        self._ended: list[Trace] = []
        root._open += 1
        # Span ids: of the client's request (only at the root), of the model, of its execution
        self.trace_id = self.outer_span = self.span = self.compute_span = self.parent_span = 0
        context: str | None = None
        if sampler.spans:
            self.span = getrandbits(64) | 1
            self.compute_span = getrandbits(64) | 1
            if above is not None:
                self.trace_id = above.trace_id
                self.parent_span = above.compute_span if above.instance else above.span
            else:
                self.trace_id = getrandbits(128) | 1 if parent is None else parent.trace_id
                self.outer_span = getrandbits(64) | 1
                self.parent_span = 0 if parent is None else parent.span_id
            context = _context(self.trace_id, self.compute_span)
        elif parent is not None:
            context = _context(*parent)
        elif above is not None:
            context = above.wire[1]
        self.wire: tuple[int, str | None] = (self.number, context)
        # The execution
        self.instance: str = ""
        self.batch = 0
        self.batch_size = 0
        # `cut_off`: the trace is not told when its batch is over
        self.cut_off = False
        self.error = ""
        self.tensors: list[TensorCopy] = []
        self.kept = self.left_out = 0
        self.begun_ns = begun_ns
        self.answered_ns = self.sent_ns = 0
        self.request_start_ns = self.queue_start_ns = 0
        self.compute_start_ns = self.compute_input_end_ns = self.compute_infer_end_ns = self.compute_end_ns = 0
        _live[self.number] = self

    def child(self, model: str, version: int, begun_ns: int) -> Trace:
        """The trace of a request that was made for this trace's request."""
        return Trace(self._sampler, model, version, "", begun_ns, self)

    def capture(self, activity: str, tensors: Sequence[Tensor]) -> None:
        """Copies tensors if they are wanted and there is room. The caller holds their memory.

        Raises ServeError if a tensor lay in a client's region that is gone.
        """
        global _kept
        if not self._sampler.tensors:
            return
        most = self._sampler.tensor_bytes
        for tensor in tensors:
            size = min(most, tensor.nbytes) + sys.getsizeof(tensor.name) + _DIMENSION_BYTES * len(tensor.shape)
            size += _COPY_BYTES
            if _kept + size > MOST_KEPT:
                self.left_out += 1
                continue
            data = bytes(tensor.beginning(most)) if most and not isinstance(tensor.span, DeviceSpan) else b""
            self.tensors.append(
                TensorCopy(activity, tensor.name, tensor.datatype, tuple(tensor.shape), data, tensor.nbytes)
            )
            self.kept += size
            _kept += size

    def set_batch(self, instance: str, batch: int, batch_size: int) -> None:
        """An instance executes the request, in the stub's batch of this number."""
        self.instance = instance
        self.batch = batch
        self.batch_size = batch_size

    def end(self, request_id: str, request_start_ns: int, queue_start_ns: int, compute_ns: Sequence[int]) -> None:
        """Takes the request's own data. Nothing may follow. To be called once.

        `compute_ns` are the times at which the computation began, had its inputs, had computed and was over.
        """
        global _kept
        del _live[self.number]
        self.request_id = request_id
        self.request_start_ns = request_start_ns
        self.queue_start_ns = queue_start_ns
        if self.instance:
            self.compute_start_ns, self.compute_input_end_ns, self.compute_infer_end_ns, self.compute_end_ns = (
                compute_ns
            )
        root = self._root
        assert root is not None
        root._ended.append(self)
        root._open -= 1
        if not root._open:
            tree, root._ended = root._ended, []
            for trace in tree:
                trace._root = None
                _kept -= trace.kept
            self._sampler.collect(tree)

    def __repr__(self) -> str:
        return f"<Trace {self.number} of {self.model!r}>"


def find(number: int) -> Trace | None:
    """The trace of that number if it is under way."""
    return _live.get(number)


class ModelTracing:
    """The sampler of the requests to the versions of one model; None if none is traced. It outlives reloads."""

    def __init__(self) -> None:
        self.sampler: Sampler | None = None
