"""Sequences that wait for a slot, as a whole, in the order of arrival."""

# Compiled by mypyc.
from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Iterable

from stubserve.inference.request import Request
from stubserve.sequences.slots import SequenceId

_MOST_RESTING = 1 << 14


class Waiting:
    """One sequence. Of several with the same id, all but the last have their END.

    `complete`: its END is here, too. `expires_ns` is when the first of its requests expires, None for never. A sequence
    that has run before, and goes on in another slot, has its `number` and perhaps no request. Others have 0.
    """

    __slots__ = ("complete", "expires_ns", "number", "requests", "sequence")

    def __init__(self, sequence: SequenceId, number: int = 0, complete: bool = False) -> None:
        self.sequence = sequence
        self.number = number
        self.requests: list[Request] = []
        self.complete = complete
        self.expires_ns: int | None = None


class Backlog:
    """The sequences without a slot. Adding, taking or cancelling costs the same for any number of them."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Waiting, None] = OrderedDict()
        # Sequences that do not wait before their next request, and when their last one came, the longest idle first
        self._resting: dict[Waiting, int] = {}
        # Sequences that may get further requests
        self._open: dict[SequenceId, Waiting] = {}
        self._of_request: dict[Request, Waiting] = {}
        # A heap; it may still hold sequences that have been taken or have got an earlier time
        self._expiring: list[tuple[int, int, Waiting]] = []
        self._number = itertools.count()

    def collects(self, sequence: SequenceId) -> bool:
        """Whether a request of this sequence belongs here."""
        return sequence in self._open

    def add(self, sequence: SequenceId, request: Request, now_ns: int, is_last: bool) -> None:
        """Puts a request behind the others of its sequence, or a new sequence behind all others."""
        waiting = self._open.get(sequence)
        if waiting is None:
            waiting = self._open[sequence] = Waiting(sequence)
            self._waiting[waiting] = None
        elif self._resting.pop(waiting, None) is not None:
            self._waiting[waiting] = None
            self._waiting.move_to_end(waiting, last=False)
        self._put(waiting, request, now_ns)
        if is_last:
            waiting.complete = True
            del self._open[sequence]

    def add_moved(self, waiting: Waiting, requests: Iterable[Request] = ()) -> None:
        """Puts a sequence that has run before, with its requests, before all others."""
        self._waiting[waiting] = None
        self._waiting.move_to_end(waiting, last=False)
        if not waiting.complete:
            self._open[waiting.sequence] = waiting
        for request in requests:
            self._put(waiting, request, request.queue_start_ns)

    def rest(self, waiting: Waiting, last_ns: int) -> None:
        """Keeps an idle sequence, which has run before. Its next request puts it before all others."""
        self._resting[waiting] = last_ns
        self._open[waiting.sequence] = waiting

    def take_idle(self, until_ns: int) -> list[Waiting]:
        """The resting sequences that are idle since then or for longer, and those that are too many."""
        idle: list[Waiting] = []
        for waiting, last_ns in self._resting.items():
            if last_ns > until_ns and len(self._resting) - len(idle) <= _MOST_RESTING:
                break
            idle.append(waiting)
        for waiting in idle:
            self._remove(waiting)
        return idle

    def idle_since_ns(self) -> int | None:
        """Since when the sequence is idle that rests for longest."""
        return next(iter(self._resting.values()), None)

    def _put(self, waiting: Waiting, request: Request, now_ns: int) -> None:
        waiting.requests.append(request)
        self._of_request[request] = waiting
        if request.options.timeout_us:
            expires_ns = now_ns + request.options.timeout_us * 1000
            if waiting.expires_ns is None or expires_ns < waiting.expires_ns:
                waiting.expires_ns = expires_ns
                heapq.heappush(self._expiring, (expires_ns, next(self._number), waiting))

    def take(self) -> Waiting | None:
        for waiting in self._waiting:
            self._remove(waiting)
            return waiting
        return None

    def take_all(self) -> list[Waiting]:
        waiting = list(self._waiting)
        for one in waiting:
            self._remove(one)
        return waiting

    def take_without_requests(self, sequence: SequenceId) -> Waiting | None:
        """Removes a sequence that has run before and waits without any request; None if there is none."""
        waiting = self._open.get(sequence)
        if waiting is None or waiting.requests or not waiting.number:
            return None
        self._remove(waiting)
        return waiting

    def open_sequences(self) -> list[SequenceId]:
        """The sequences that may get further requests."""
        return list(self._open)

    def take_with(self, request: Request) -> Waiting | None:
        waiting = self._of_request.get(request)
        if waiting is not None:
            self._remove(waiting)
        return waiting

    def take_expired(self, now_ns: int) -> list[Waiting]:
        expired = []
        while self._expiring and self._expiring[0][0] <= now_ns:
            waiting = heapq.heappop(self._expiring)[2]
            if waiting in self._waiting:
                self._remove(waiting)
                expired.append(waiting)
        return expired

    def next_deadline_ns(self) -> int | None:
        """The next time at which `take_expired` has work."""
        while self._expiring and self._expiring[0][2] not in self._waiting:
            heapq.heappop(self._expiring)
        return self._expiring[0][0] if self._expiring else None

    def _remove(self, waiting: Waiting) -> None:
        if self._resting.pop(waiting, None) is None:
            del self._waiting[waiting]
        for request in waiting.requests:
            del self._of_request[request]
        if self._open.get(waiting.sequence) is waiting:
            del self._open[waiting.sequence]

    @property
    def sequences(self) -> int:
        """How many sequences may get further requests."""
        return len(self._open)

    @property
    def waiting(self) -> int:
        """How many sequences wait for a slot."""
        return len(self._waiting)

    def __len__(self) -> int:
        """How many requests wait."""
        return len(self._of_request)

    def __bool__(self) -> bool:
        """Whether any sequence waits."""
        return bool(self._waiting)
