"""Which request leaves a full queue: one of the client that has most in it.

A full queue with a limit refuses new requests, as upstream does. A client that asks more than the model computes keeps
it full, so that all other clients are refused, however little they ask. Where clients are told apart (`--fair-queues`)
a new request gets a place in a full queue: that of the newest request of the client with the most waiting requests,
unless that is its own client, or would be with one more. For routers this is known as "longest queue drop".

Guarantees:

- while a queue is not full nothing changes. Requests are always served in the order of arrival, because only the newest
  requests of a client leave;
- with n clients that all want more than they get, each has the n-th part of the places, and so of the model;
- a client with at least one place less than its part is never refused. Its wait is bounded by the queue's limit;
- a client that is alone is served and refused exactly as without the flag.

A request without a client (of models, and of warm-up) neither takes a place from a client nor gives one.

A queue that never fills up costs nothing: shares are counted from the moment at which it is full, by one look at all
waiting requests, until it is half empty. Meanwhile a request costs O(1) on its way in and out: clients are grouped by
their number of waiting requests.
"""

# Compiled by mypyc.
from __future__ import annotations

from collections.abc import Hashable, Iterable

from stubserve.inference.request import Request


class FairShares:
    """The requests of each client in one queue; begins with the waiting requests, in their order."""

    def __init__(self, waiting: Iterable[Request]) -> None:
        # The requests of a client, the newest last; and the clients by number of requests, for `_most` (the largest
        # number) and below
        self._of: dict[Hashable, dict[Request, None]] = {}
        self._groups: dict[int, dict[Hashable, None]] = {}
        self._most = 0
        for request in waiting:
            self.add(request)

    def add(self, request: Request) -> None:
        client = request.client
        if client is None:
            return
        requests = self._of.get(client)
        if requests is None:
            requests = self._of[client] = {}
        requests[request] = None
        count = len(requests)
        self._move(client, count - 1, count)
        self._most = max(self._most, count)

    def remove(self, request: Request) -> None:
        client = request.client
        requests = self._of.get(client)
        if requests is None or request not in requests:
            return
        del requests[request]
        count = len(requests)
        self._move(client, count + 1, count)
        if self._most not in self._groups:
            self._most -= 1
        if not requests:
            del self._of[client]

    def gives_way(self, newcomer: Request) -> Request | None:
        """The request that leaves so that the new one may stay; None if the new one must go."""
        client = newcomer.client
        if client is None:
            return None
        own = self._of.get(client)
        # With one request more, the client must not have as many as the client that would lose one.
        if (0 if own is None else len(own)) + 1 >= self._most:
            return None
        heaviest = next(iter(self._groups[self._most]))
        return next(reversed(self._of[heaviest]))

    def _move(self, client: Hashable, before: int, after: int) -> None:
        if before:
            group = self._groups[before]
            del group[client]
            if not group:
                del self._groups[before]
        if after:
            self._groups.setdefault(after, {})[client] = None
