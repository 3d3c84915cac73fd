"""Releases responses in the order of their requests: `dynamic_batching { preserve_ordering: true }`."""

# Compiled by mypyc.
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from stubserve.inference.request import Request, Response


class ResponseOrderer:
    """Holds responses back until those of all requests that were expected earlier have been released.

    A decoupled model may give a request any number of responses. Those of the first request in the order go out as they
    come; the next request is first after its final response. Every answer counts, also a scheduler's answer to an
    expired or cancelled request: without it the later ones would wait for ever. Costs O(1) amortised per response.
    """

    def __init__(self) -> None:
        self._expected: OrderedDict[Request, list[Response]] = OrderedDict()

    def expect(self, request: Request) -> None:
        """Appends a request to the order; to be called once it is queued."""
        self._expected[request] = []

    def complete(self, request: Request, response: Response) -> list[tuple[Request, Response]]:
        """Takes a response; returns the responses that may go out now, in order.

        Raises KeyError if the request was not expected, ValueError for a response after the final one.
        """
        expected = self._expected
        held = expected[request]
        if held and held[-1].final:
            raise ValueError(f"{request} was answered after its final response")
        held.append(response)
        released: list[tuple[Request, Response]] = []
        while expected:
            first = next(iter(expected))
            ready = expected[first]
            released += [(first, response) for response in ready]
            if not ready or not ready[-1].final:
                ready.clear()
                break
            del expected[first]
        return released

    def held(self, request: Request) -> Sequence[Response]:
        return self._expected.get(request, ())

    def ahead_of(self, request: Request) -> list[Request]:
        """The requests that hold back the responses of this one: O(n); empty if nothing is held back."""
        if not self._expected.get(request):
            return []
        ahead = []
        for other in self._expected:
            if other is request:
                break
            ahead.append(other)
        return ahead

    def __len__(self) -> int:
        """Requests whose final responses are not released yet."""
        return len(self._expected)
