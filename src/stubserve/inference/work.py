"""What an instance executes at once."""

from __future__ import annotations

from collections.abc import Sequence

from stubserve.inference.request import Request, unanswered
from stubserve.inference.tensor import Tensor


class Work:
    """The places of a batch, and what is in them.

    `slots` has a request for each place, or None where the place is empty; the model sees the places in this order.
    `requests` are those that are there. In the usual case no place is empty and both are the same object.

    `extra_inputs`, if it is not None, has for each place the tensors that the scheduler adds to those of the request
    (controls, states); those of an empty place are all that the model sees there. They belong to the scheduler, which
    keeps their memory until it hears that the work is done, or that the instance is gone.
    """

    __slots__ = ("extra_inputs", "requests", "slots")

    def __init__(self, requests: Sequence[Request]) -> None:
        self.slots: Sequence[Request | None] = requests
        self.requests = requests
        self.extra_inputs: Sequence[Sequence[Tensor]] | None = None

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

    def as_sent(self) -> Sequence[Request]:
        """A request for each place as the model is to see it, with the extra inputs among its own.

        In the usual case the requests themselves. Otherwise some are stand-ins, which are good for nothing but to be
        described to a stub, and to find the tensors by which it may answer.
        """
        if self.extra_inputs is None and self.slots is self.requests:
            return self.requests
        extra_inputs = self.extra_inputs or ((),) * len(self.slots)
        return [
            request if request is not None and not extra else _stand_in(request, extra)
            for request, extra in zip(self.slots, extra_inputs, strict=True)
        ]

    def __repr__(self) -> str:
        return f"<Work {list(self.slots)}>"


def _stand_in(request: Request | None, extra: Sequence[Tensor]) -> Request:
    if request is None:
        return Request(list(extra), unanswered)
    return Request(
        [*request.inputs, *extra], unanswered, request.id, request.correlation_id, request.flags, request.priority,
        request.timeout_us, request.parameters, request.requested_outputs, request.batch_size,
    )  # fmt: skip
