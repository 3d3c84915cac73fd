"""The slots of all instances, in which sequences run: the free ones, and the requests that wait in them."""

# Compiled by mypyc.
from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Sequence

from stubserve.inference.request import Request
from stubserve.inference.tensor import Tensor
from stubserve.inference.work import Instance

# A sequence's id as clients give it; a number and a text are never equal.
SequenceId = int | str


class SequenceSlot:
    """One slot of an instance, which joined as number `joined`.

    `queue` are the requests of the slot's sequence, in order. `over`: the sequence gets no further request, so the slot
    is free behind the last one. `number` is the sequence's own, since clients use their ids again; 0 when the slot is
    free. `running` is the request that keeps the next one from running, in a strategy that has this. `again` is a
    request that has executed before and is to execute once more. `gone`: the slot's instance is gone.

    `last_ns` is when the last request came, `watched` whether a check for idleness is planned. `controls` are the
    control inputs of a request in the middle of a sequence, with its id, once they have been made.
    """

    def __init__(self, instance: Instance, joined: int, index: int) -> None:
        self.instance = instance
        self.joined = joined
        self.index = index
        self.gone = False
        self.watched = False
        # The last sequence in this slot, over or not
        self.sequence: SequenceId = 0
        self.number = 0
        self.queue: deque[Request] = deque()
        self.over = True
        self.running: Request | None = None
        self.again: Request | None = None
        self.last_ns = 0
        self.controls: tuple[SequenceId, Sequence[Tensor]] | None = None

    def __repr__(self) -> str:
        return f"<Slot {self.index} of {self.instance}: {self.sequence!r}, {len(self.queue)} queued>"


class SlotQueues:
    """The queues of all slots. Others read them as `slot.queue`; only this class changes them."""

    def __init__(self) -> None:
        self._slot_of: dict[Request, SequenceSlot] = {}

    def add(self, slot: SequenceSlot, requests: Collection[Request]) -> None:
        slot.queue.extend(requests)
        self._slot_of.update(dict.fromkeys(requests, slot))

    def put_back(self, slot: SequenceSlot, request: Request) -> None:
        """Puts a request that is to execute again before all others."""
        slot.queue.appendleft(request)
        self._slot_of[request] = slot

    def take(self, slot: SequenceSlot) -> Request:
        request = slot.queue.popleft()
        del self._slot_of[request]
        return request

    def slot_of(self, request: Request) -> SequenceSlot | None:
        """The slot in which a request waits; None if it waits in no slot."""
        return self._slot_of.get(request)

    def cut(self, slot: SequenceSlot, request: Request) -> list[Request]:
        """Removes a request and all requests behind it from a slot."""
        behind = [slot.queue.pop()]
        while behind[-1] is not request:
            behind.append(slot.queue.pop())
        for one in behind:
            del self._slot_of[one]
        return behind[::-1]

    def clear(self, slot: SequenceSlot) -> list[Request]:
        queued = list(slot.queue)
        for request in queued:
            del self._slot_of[request]
        slot.queue.clear()
        return queued

    def __len__(self) -> int:
        return len(self._slot_of)


class _Row:
    """The slots of one instance. Slots with high indexes are made when they are first needed."""

    def __init__(self, instance: Instance, joined: int) -> None:
        self.instance = instance
        self.joined = joined
        self.slots: list[SequenceSlot] = []
        self.closed = False
        self.taken = 0


class Slots:
    """`each` slots of every instance. Taking or giving back a slot costs the logarithm of the number of free slots."""

    def __init__(self, each: int) -> None:
        self.each = each
        self._rows: dict[Instance, _Row] = {}
        self._joined = 0
        # A heap of (index, number of the instance, its row, the slot). The last entry of a row has no slot yet; entries
        # of closed rows may remain.
        self._free: list[tuple[int, int, _Row, SequenceSlot | None]] = []
        # Closed instances that `take_vacant` has not returned yet
        self._closing: set[Instance] = set()

    def join(self, instance: Instance) -> bool:
        """Adds the slots of an instance; False if it has slots already."""
        if instance in self._rows:
            return False
        self._joined += 1
        row = self._rows[instance] = _Row(instance, self._joined)
        heapq.heappush(self._free, (0, row.joined, row, None))
        return True

    def leave(self, instance: Instance) -> Sequence[SequenceSlot] | None:
        """Removes the slots of an instance and returns those that were ever used; None if it has none."""
        row = self._rows.pop(instance, None)
        if row is None:
            return None
        row.closed = True
        self._free = [entry for entry in self._free if not entry[2].closed]
        heapq.heapify(self._free)
        for slot in row.slots:
            slot.gone = True
        return row.slots

    def close(self, instance: Instance) -> bool:
        """Gives out no more slots of this instance. Returns whether any is taken; then see `take_vacant`."""
        row = self._rows.get(instance)
        if row is None:
            return False
        row.closed = True
        if row.taken:
            self._closing.add(instance)
        return row.taken > 0

    def is_closing(self, instance: Instance) -> bool:
        """Whether an instance is closed, and `take_vacant` has not returned it yet."""
        return instance in self._closing

    def take_vacant(self) -> list[Instance]:
        """The closed instances without a taken slot, and those that are gone: each once."""
        if not self._closing:
            return []
        taken = [instance for instance in self._closing if (row := self._rows.get(instance)) is not None and row.taken]
        vacant = self._closing.difference(taken)
        self._closing.intersection_update(taken)
        return list(vacant)

    def take(self) -> SequenceSlot | None:
        """The free slot with the lowest index; among equals, that of the instance that joined first."""
        free = self._free
        while free:
            index, joined, row, slot = heapq.heappop(free)
            if row.closed:
                continue
            if slot is None:
                slot = SequenceSlot(row.instance, joined, index)
                row.slots.append(slot)
                if index + 1 < self.each:
                    heapq.heappush(free, (index + 1, joined, row, None))
            row.taken += 1
            return slot
        return None

    def give_back(self, slot: SequenceSlot) -> None:
        slot.number = 0
        slot.again = None
        row = self._rows[slot.instance]
        row.taken -= 1
        if not row.closed:
            heapq.heappush(self._free, (slot.index, slot.joined, row, slot))

    def __contains__(self, instance: Instance) -> bool:
        return instance in self._rows

    def used(self) -> list[SequenceSlot]:
        return [slot for row in self._rows.values() for slot in row.slots]


class Departures:
    """The slots of sequences that are over without an END: free when no request of them executes any more.

    The sequence's number is kept with its slot: a slot that has been free in the meantime, and may belong to another
    sequence, is left alone.
    """

    def __init__(self) -> None:
        self._leaving: dict[SequenceSlot, int] = {}

    def add(self, slot: SequenceSlot) -> None:
        """A slot has no request left to hand out, and will get none."""
        self._leaving[slot] = slot.number

    def take(self, at_rest: Callable[[SequenceSlot], bool]) -> list[SequenceSlot]:
        if not self._leaving:
            return []
        free = []
        leaving, self._leaving = self._leaving, {}
        for slot, number in leaving.items():
            if slot.number == number and not slot.gone:
                if at_rest(slot):
                    free.append(slot)
                else:
                    self._leaving[slot] = number
        return free
