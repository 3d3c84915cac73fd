"""The queues of the slots, and the slot of each request."""

from __future__ import annotations

from collections.abc import Collection

from stubserve.inference.request import Request
from stubserve.schedulers.sequence.slot import SequenceSlot


class SlotQueues:
    """The queues of all slots. They are read as `slot.queue`, and changed here alone."""

    __slots__ = ("_slot_of",)

    def __init__(self) -> None:
        self._slot_of: dict[Request, SequenceSlot] = {}

    def add(self, slot: SequenceSlot, request: Request) -> None:
        """A request comes behind the others."""
        slot.queue.append(request)
        self._slot_of[request] = slot

    def add_all(self, slot: SequenceSlot, requests: Collection[Request]) -> None:
        slot.queue.extend(requests)
        self._slot_of.update(dict.fromkeys(requests, slot))

    def put_back(self, slot: SequenceSlot, request: Request) -> None:
        """A request is to be executed again, before all that came behind it."""
        slot.queue.appendleft(request)
        self._slot_of[request] = slot

    def take(self, slot: SequenceSlot) -> Request:
        """The oldest request of a slot, which does not wait any more."""
        request = slot.queue.popleft()
        del self._slot_of[request]
        return request

    def slot_of(self, request: Request) -> SequenceSlot | None:
        """Where a request waits; None if it waits in no slot."""
        return self._slot_of.get(request)

    def cut(self, slot: SequenceSlot, request: Request) -> list[Request]:
        """Takes a request and all behind it out of a slot."""
        behind = [slot.queue.pop()]
        while behind[-1] is not request:
            behind.append(slot.queue.pop())
        for one in behind:
            del self._slot_of[one]
        return behind[::-1]

    def clear(self, slot: SequenceSlot) -> list[Request]:
        """Takes everything out of a slot."""
        queued = list(slot.queue)
        for request in queued:
            del self._slot_of[request]
        slot.queue.clear()
        return queued

    def __len__(self) -> int:
        return len(self._slot_of)
