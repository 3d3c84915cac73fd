"""Work: the requests that an instance executes at once."""

from __future__ import annotations

from collections.abc import Sequence

from stubserve.inference.request import Request
from stubserve.inference.tensor import Tensor


class Work:
    """The places of a batch, and what is in them.

    `slots` has a request for each place, or None where the place is empty; the model sees the places in this order.
    `requests` are those that are there. In the usual case no place is empty and both are the same object.

    `extra_inputs`, if it is not None, has for each place the tensors that the scheduler adds to those of the request
    (controls); those of an empty place are all that the model sees there. Whoever executes the work holds their
    memory for as long as the model may read it.

    `sequences`, if it is not None, has for each place the number of the sequence whose implicit states go with it, 0
    where it is empty. The stub keeps them.

    `number` is the stub's for the batch, 0 before it has it.
    """

    __slots__ = ("extra_inputs", "number", "requests", "sequences", "slots")

    def __init__(self, requests: Sequence[Request]) -> None:
        self.slots: Sequence[Request | None] = requests
        self.requests = requests
        self.extra_inputs: Sequence[Sequence[Tensor]] | None = None
        self.number = 0
        self.sequences: Sequence[int] | None = None

    @classmethod
    def of_slots(cls, slots: Sequence[Request | None], extra_inputs: Sequence[Sequence[Tensor]] | None = None) -> Work:
        """Work with places that may be empty. Raises ValueError where no place has a request."""
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
        """How many places are empty."""
        return len(self.slots) - len(self.requests)

    @property
    def size(self) -> int:
        """The size of the batch; an empty place counts as one."""
        return self.empty + sum(request.batch_size for request in self.requests)

    def __repr__(self) -> str:
        return f"<Work {list(self.slots)}>"
