"""The slots of all instances, and which of them are free."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from stubserve.inference.work import Instance
from stubserve.schedulers.sequence.slot import SequenceSlot


class _Row:
    """The slots of one instance, of which those with the highest indexes are made when they are first needed."""

    __slots__ = ("closed", "instance", "joined", "slots", "taken")

    def __init__(self, instance: Instance, joined: int) -> None:
        self.instance = instance
        self.joined = joined
        self.slots: list[SequenceSlot] = []
        # No further sequence is to begin here
        self.closed = False
        # How many slots are not free
        self.taken = 0


class Slots:
    """`each` slots of every instance. Taking one and giving it back costs the logarithm of how many are free."""

    __slots__ = ("_closing", "_each", "_free", "_joined", "_rows")

    def __init__(self, each: int) -> None:
        self._each = each
        self._rows: dict[Instance, _Row] = {}
        self._joined = 0
        # A heap of (index, when its instance joined, its row, the slot). There is no slot yet in the last entry of a
        # row; entries of rows that are closed may be there.
        self._free: list[tuple[int, int, _Row, SequenceSlot | None]] = []
        # Instances that are closed, until it is told that they are vacant
        self._closing: set[Instance] = set()

    def join(self, instance: Instance) -> bool:
        """Adds the slots of an instance; False if they are there."""
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
        """No slot of this instance is to be taken any more. Whether any is; then `take_vacant` tells when none is."""
        row = self._rows.get(instance)
        if row is None:
            return False
        row.closed = True
        if row.taken:
            self._closing.add(instance)
        return row.taken > 0

    def is_closing(self, instance: Instance) -> bool:
        """Whether an instance is closed, and `take_vacant` has still to tell of it."""
        return instance in self._closing

    def take_vacant(self) -> list[Instance]:
        """The instances that are closed and have no slot any more that is taken, or are gone: each once."""
        if not self._closing:
            return []
        vacant = [instance for instance in self._closing if self._is_vacant(instance)]
        self._closing.difference_update(vacant)
        return vacant

    def take(self) -> SequenceSlot | None:
        """The free slot with the lowest index; of equal ones, that of the instance that joined first."""
        free = self._free
        while free:
            index, joined, row, slot = heapq.heappop(free)
            if row.closed:
                continue
            if slot is None:
                slot = SequenceSlot(row.instance, joined, index)
                row.slots.append(slot)
                if index + 1 < self._each:
                    heapq.heappush(free, (index + 1, joined, row, None))
            row.taken += 1
            return slot
        return None

    def give_back(self, slot: SequenceSlot) -> None:
        """A slot is free again."""
        slot.number = 0
        row = self._rows[slot.instance]
        row.taken -= 1
        if not row.closed:
            heapq.heappush(self._free, (slot.index, slot.joined, row, slot))

    def __contains__(self, instance: Instance) -> bool:
        return instance in self._rows

    def used(self) -> list[SequenceSlot]:
        """All that were ever used."""
        return [slot for row in self._rows.values() for slot in row.slots]

    def _is_vacant(self, instance: Instance) -> bool:
        row = self._rows.get(instance)
        return row is None or not row.taken
