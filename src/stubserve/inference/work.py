"""Work: the requests that an instance executes at once, which of them may share it, and decisions on it."""

# Compiled by mypyc.
from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Any

from stubserve_stub.wire.options import RequestOptions

from stubserve.errors import ServeError
from stubserve.inference.request import Request
from stubserve.inference.tensor import Tensor

# A scheduler only compares instances.
Instance = Hashable


class Work:
    """The places of a batch, and their requests.

    `slots` has a request for each place, or None for an empty place; the model sees the places in this order.
    `requests` are the requests in them. Usually no place is empty and both are the same object.

    `extra_inputs`, if not None, has for each place the tensors that the scheduler adds to the request's own (controls).
    At an empty place the model sees only these. The executor of the work holds their memory as long as the model may
    read it.

    `options`, if not None, has for each place the options that replace the request's own, or None to keep these.

    `sequences`, if not None, has for each place the number of the sequence whose implicit states the stub keeps; 0 for
    an empty place.

    `number` is the stub's number for the batch, 0 before there is one.
    """

    __slots__ = ("extra_inputs", "number", "options", "requests", "sequences", "slots")

    def __init__(self, requests: Sequence[Request]) -> None:
        self.slots: Sequence[Request | None] = requests
        self.requests = requests
        self.extra_inputs: Sequence[Sequence[Tensor]] | None = None
        self.options: Sequence[RequestOptions | None] | None = None
        self.number = 0
        self.sequences: Sequence[int] | None = None

    @classmethod
    def of_slots(cls, slots: Sequence[Request | None], extra_inputs: Sequence[Sequence[Tensor]] | None = None) -> Work:
        """Work with places that may be empty. Raises ValueError if no place has a request."""
        requests = [request for request in slots if request is not None]
        if not requests:
            raise ValueError("work without a request")
        work = cls(requests)
        if len(requests) < len(slots):
            work.slots = slots
        work.extra_inputs = extra_inputs
        return work

    @property
    def empty(self) -> int:
        return len(self.slots) - len(self.requests)

    @property
    def size(self) -> int:
        """The size of the batch; an empty place counts as one."""
        return self.empty + sum(request.batch_size for request in self.requests)

    def __repr__(self) -> str:
        return f"<Work {list(self.slots)}>"


class Grouping:
    """The inputs in which all requests of one batch must be equal.

    `variable` inputs have a dimension of -1 and do not allow ragged batches: their shapes without the batch dimension
    must be equal. `shape_tensors` must be equal in shape and values. With `optional_inputs` all requests must give the
    same inputs.
    """

    def __init__(
        self, variable: Collection[str] = (), shape_tensors: Collection[str] = (), optional_inputs: bool = False
    ) -> None:
        self._variable = frozenset(variable)
        self._shape_tensors = frozenset(shape_tensors)
        self._optional_inputs = optional_inputs

    @classmethod
    def from_config(cls, config: Any) -> Grouping:
        """The demands of a `ModelConfig` message."""
        shape_tensors = [i.name for i in config.input if i.is_shape_tensor]
        variable = [i.name for i in config.input if -1 in i.dims and not i.allow_ragged_batch]
        return cls(variable, shape_tensors, any(i.optional for i in config.input))

    @property
    def trivial(self) -> bool:
        """Whether any two requests may share a batch."""
        return not (self._variable or self._shape_tensors or self._optional_inputs)

    def key(self, request: Request) -> dict[str, object]:
        """Requests with equal keys may share a batch. Only for requests with a batch dimension.

        A request's key is made once: nothing in the key changes until the request has run.
        """
        if request.grouping_key is not None:
            return request.grouping_key
        key: dict[str, object] = {}
        for tensor in request.inputs:
            name = tensor.name
            if name in self._shape_tensors:
                key[name] = (tuple(tensor.shape), bytes(tensor.buffer))
            elif name in self._variable:
                key[name] = tuple(tensor.shape[1:])
            elif self._optional_inputs:
                key[name] = None
        request.grouping_key = key
        return key


class Decision:
    """What to do now.

    `run`: work for instances, in this order. Each instance appears as often as the owner has said that it has room, and
    gets no further work until the owner reports it idle again. `answer`: requests that end here with this error
    (expired, cancelled). `ended_sequences`: sequences that have ended without an end request, by instance and number.
    Report them before `run`, which may hold the next sequences. `wake_at_ns`: the latest time for the next poll, None
    if only an event can change anything.
    """

    __slots__ = ("answer", "ended_sequences", "run", "wake_at_ns")

    def __init__(self) -> None:
        self.run: list[tuple[Instance, Work]] = []
        self.answer: list[tuple[Request, ServeError]] = []
        self.ended_sequences: Sequence[tuple[Instance, int]] = ()
        self.wake_at_ns: int | None = None

    def wake_by(self, at_ns: int | None) -> None:
        """Polls again at this time at the latest, if a time is given."""
        if at_ns is not None and (self.wake_at_ns is None or at_ns < self.wake_at_ns):
            self.wake_at_ns = at_ns
