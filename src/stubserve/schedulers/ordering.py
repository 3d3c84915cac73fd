"""Releases responses in the order of their requests: `dynamic_batching { preserve_ordering: true }`."""

from __future__ import annotations

from collections import OrderedDict

from stubserve.inference.request import Request, Response


class ResponseOrderer:
    """Holds a response back until those of all requests that were expected earlier have been released.

    Every answer counts, also those that a scheduler gives to an expired or cancelled request: without it the later
    ones would wait for ever. Costs O(1) amortised per request.
    """

    __slots__ = ("_expected",)

    def __init__(self) -> None:
        self._expected: OrderedDict[Request, Response | None] = OrderedDict()

    def expect(self, request: Request) -> None:
        """Appends a request to the order; to be called once it is queued."""
        self._expected[request] = None

    def complete(self, request: Request, response: Response) -> list[tuple[Request, Response]]:
        """Takes a response; returns what may go out now, in order. Raises KeyError if it was not expected."""
        expected = self._expected
        if expected[request] is not None:
            raise ValueError(f"{request} was answered twice")
        expected[request] = response
        released: list[tuple[Request, Response]] = []
        while expected:
            first = next(iter(expected))
            ready = expected[first]
            if ready is None:
                break
            del expected[first]
            released.append((first, ready))
        return released

    def __len__(self) -> int:
        """Requests whose responses are not released yet."""
        return len(self._expected)
