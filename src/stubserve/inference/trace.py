"""What is kept of a request that is traced, and of the requests that it has led to.

A request has the times at which things happened to it anyway; a trace is what is needed beside them. Most requests have
none, and then all that tracing costs them is to look whether they do. A trace begins when its request is submitted
(`Call.submit`, where the model has a sampler), and ends when the last response has been passed on and its batch is
over.

Traces make trees: the steps of an ensemble and the calls of a model are children of the request that they are made for
(`child`). A tree is handed to its collector when all of it has ended. Stubs know a trace by its number (`find`), so
that a model can hand it on with a request of its own; a number that is not under way is nobody's.

What the trees that are under way keep of tensors is bounded (MOST_KEPT). Tensors that come when so much is kept are
left out of their trace, which says how many.

Times are CLOCK_MONOTONIC nanoseconds, 0 for what has not happened.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from random import getrandbits
from typing import NamedTuple

from stubserve.inference.tensor import Tensor

# Of a tensor no more than this is kept.
TENSOR_BYTES = 1 << 20
# What the traces that are under way keep of tensors, together.
MOST_KEPT = 64 << 20
# About what a copy takes beside its name, its dimensions and its data, and what a dimension takes
_COPY_BYTES, _DIMENSION_BYTES = 512, 40

QUEUE_INPUT = "TENSOR_QUEUE_INPUT"
BACKEND_OUTPUT = "TENSOR_BACKEND_OUTPUT"

_live: dict[int, Trace] = {}
# What the tensors of trees that are under way take, in bytes
_kept = 0
_numbers = itertools.count(1)


class Parent(NamedTuple):
    """The span of somebody else's that a request belongs to, as `traceparent` tells it."""

    trace_id: int
    span_id: int


class TensorCopy(NamedTuple):
    """A tensor's bytes at a moment: the first of `nbytes`, as many as the collector wants."""

    activity: str
    name: str
    datatype: int
    shape: tuple[int, ...]
    data: bytes
    nbytes: int


class Sampler:
    """Decides which requests to a model are traced, and takes their trees of traces.

    `tensors` says that tensors are wanted, and `tensor_bytes` how many bytes of each; `spans` that traces are to have
    span ids. It is no Protocol, for each request asks it: compiled, a class costs one jump.
    """

    tensors: bool
    tensor_bytes: int
    spans: bool

    def sample(self, model: str, version: int, protocol: str, context: Callable[[], str | None]) -> Trace | None:
        """The trace of a request that is submitted now, if it is to be traced.

        `context` gives the value of `traceparent` that came with the request.
        """
        raise NotImplementedError

    def collect(self, tree: Sequence[Trace]) -> None:
        """All traces of a tree, in the order in which they ended. Raises nothing."""
        raise NotImplementedError


class Trace:
    """The trace of one request to `model`. `protocol` is "HTTP" or "GRPC" for a client's request, else empty.

    `batch`, `batch_size` and `instance` say what it is or was executed in; 0 and empty where it was not. `wire` is what
    a stub is told of it. `tensors` take about `kept` bytes; `left_out` tensors had no room.
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
        # Whose it is
        self.model = model
        self.version = version
        self.protocol = protocol
        self.request_id = ""
        self.parent = 0 if above is None else above.number
        # Of the tree, in its root: how many traces have not ended, and those that have. None when all have: no circles
        self._sampler = sampler
        root = None if above is None else above._root
        if root is None:
            root = self
        self._root: Trace | None = root
        self._open = 0
        self._ended: list[Trace] = []
        root._open += 1
        # As spans: of the client's request (only at the root), of the model, of its execution
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
            context = f'{{"traceparent":"00-{self.trace_id:032x}-{self.compute_span:016x}-01"}}'
        self.wire = (self.number, context)
        # What it was executed in
        self.instance: str = ""
        self.batch = 0
        self.batch_size = 0
        # What became of it; `cut_off` says that it will not be told when its batch was over
        self.cut_off = False
        self.error = ""
        self.tensors: list[TensorCopy] = []
        self.kept = self.left_out = 0
        # When what happened
        self.begun_ns = begun_ns
        self.answered_ns = self.sent_ns = 0
        self.request_start_ns = self.queue_start_ns = 0
        self.compute_start_ns = self.compute_input_end_ns = self.compute_infer_end_ns = self.compute_end_ns = 0
        _live[self.number] = self

    def child(self, model: str, version: int, begun_ns: int) -> Trace:
        """The trace of a request that was made for this one."""
        return Trace(self._sampler, model, version, "", begun_ns, self)

    def keep(self, activity: str, tensors: Sequence[Tensor]) -> None:
        """Copies tensors, if they are wanted, and while there is room. Their memory is held by the caller.

        Raises ServeError where one lay in a client's region and is gone.
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
            data = bytes(tensor.beginning(most)) if most else b""
            self.tensors.append(
                TensorCopy(activity, tensor.name, tensor.datatype, tuple(tensor.shape), data, tensor.nbytes)
            )
            self.kept += size
            _kept += size

    def join(self, instance: str, batch: int, batch_size: int) -> None:
        """It is executed by an instance, with others, as the stub's batch of this number."""
        self.instance = instance
        self.batch = batch
        self.batch_size = batch_size

    def end(self, request_id: str, request_start_ns: int, queue_start_ns: int, compute_ns: Sequence[int]) -> None:
        """Takes what the request knows; nothing more is told of it. Once.

        `compute_ns` are the times at which its computation began, had its inputs, had computed and was over.
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
    """The sampler of the requests to the versions of one model; None where none is traced. It outlives reloads."""

    def __init__(self) -> None:
        self.sampler: Sampler | None = None
