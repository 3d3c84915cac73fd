"""The plain queue: what waits where the config sets no priorities, no timeouts and no limits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from stubserve.errors import Code, ServeError
from stubserve.inference.request import Request


class FifoQueue:
    """First in, first out; leaving from the middle, for a cancelled request, costs no more than from the front.

    A request may be in the queue once. Iteration is in service order and must not overlap with a change.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        # An ordered set. OrderedDict and not dict, whose deleted entries make every look at the front slower.
        self._waiting: OrderedDict[Request, None] = OrderedDict()

    def push(self, request: Request) -> None:
        self._waiting[request] = None

    def remove(self, request: Request) -> bool:
        """Takes a request out; False if it is not there."""
        if request not in self._waiting:
            return False
        del self._waiting[request]
        return True

    def take(self, count: int) -> list[Request]:
        """Removes and returns the first `count` requests."""
        pop = self._waiting.popitem
        return [pop(False)[0] for _ in range(count)]

    def last(self) -> Request:
        """The one that came last, of a queue that is not empty."""
        return next(reversed(self._waiting))

    def __iter__(self) -> Iterator[Request]:
        return iter(self._waiting)

    def __len__(self) -> int:
        return len(self._waiting)


def cancellation(request: Request) -> ServeError:
    """The answer to a request that was cancelled while it waited. Upstream sends the same code with an empty text."""
    return request.refuse(Code.CANCELLED, "Request was cancelled while it waited in the queue")
