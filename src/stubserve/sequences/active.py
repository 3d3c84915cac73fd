"""The sequences that have a slot and may get further requests, and the sequences that are lost.

All but a batch costs the same for any number of sequences: dictionaries find them, and heaps hold the free slots and
the times of the checks. Idleness is not checked with each request. A slot records the time of its last request, and is
checked at the time when its sequence would have been idle for too long without further requests. A slot is in that heap
once, however many sequences it has had meanwhile.
"""

# Compiled by mypyc.
from __future__ import annotations

import heapq
import itertools

from stubserve.sequences.slots import SequenceId, SequenceSlot


class ActiveSequences:
    """The slot of each of these sequences. They end after `max_idle_ns` without a request, unless that is None."""

    def __init__(self, max_idle_ns: int | None) -> None:
        self.max_idle_ns = max_idle_ns
        self._slots: dict[SequenceId, SequenceSlot] = {}
        self.slot_of = self._slots.get
        self._numbers = itertools.count(1)
        # A heap of (time of the check, number of the instance, index, slot)
        self._checks: list[tuple[int, int, int, SequenceSlot]] = []
        # Lost sequences: the name of the instance that is gone, and until when their clients are told
        self._lost: dict[SequenceId, tuple[str, int]] = {}

    def new_number(self) -> int:
        """The number of a sequence that has none yet."""
        return next(self._numbers)

    def begin(
        self, sequence: SequenceId, slot: SequenceSlot, now_ns: int, number: int = 0, complete: bool = False
    ) -> None:
        """`number` is that of a sequence which has run in another slot; 0 for a new one.

        A `complete` one has all of its requests, and is over at once. Its client may have begun it anew elsewhere.
        """
        slot.sequence = sequence
        slot.number = number or self.new_number()
        slot.over = complete
        slot.last_ns = now_ns
        if complete:
            return
        self._slots[sequence] = slot
        if not slot.watched and self.max_idle_ns is not None:
            self._watch(slot, now_ns + self.max_idle_ns)

    def end(self, slot: SequenceSlot) -> None:
        """Ends the sequence of a slot, if it is not over already."""
        if not slot.over:
            slot.over = True
            del self._slots[slot.sequence]

    def take_idle(self, now_ns: int) -> list[SequenceSlot]:
        """Ends the sequences that have been idle for too long; returns their slots, the longest idle first."""
        checks = self._checks
        if not checks or checks[0][0] > now_ns:
            return []
        idle = []
        assert self.max_idle_ns is not None
        while checks and checks[0][0] <= now_ns:
            slot = heapq.heappop(checks)[3]
            slot.watched = False
            if slot.gone or slot.over:
                continue
            until_ns = slot.last_ns + self.max_idle_ns
            if until_ns <= now_ns:
                self.end(slot)
                idle.append(slot)
            else:
                self._watch(slot, until_ns)
        return sorted(idle, key=lambda slot: (slot.last_ns, slot.joined, slot.index))

    def next_check_ns(self) -> int | None:
        return self._checks[0][0] if self._checks else None

    def lose(self, slot: SequenceSlot, instance: str) -> None:
        """The instance of a slot is gone, and its sequence with it; the sequence's next request is to be told."""
        if slot.over:
            return
        self.end(slot)
        if self.max_idle_ns is not None:
            self._lost[slot.sequence] = (instance, slot.last_ns + self.max_idle_ns)

    def lost_with(self, sequence: SequenceId, now_ns: int) -> str | None:
        """The instance that a sequence was lost with, unless it has begun again, or would now be idle for too long."""
        instance, until_ns = self._lost.get(sequence, ("", 0))
        return instance if until_ns > now_ns else None

    def forget(self, sequence: SequenceId) -> None:
        if self._lost:
            self._lost.pop(sequence, None)

    def tidy(self, now_ns: int) -> None:
        """Removes slots that are gone, and losses that no client needs to be told of any more."""
        self._checks = [check for check in self._checks if not check[3].gone]
        heapq.heapify(self._checks)
        self._lost = {sequence: lost for sequence, lost in self._lost.items() if lost[1] > now_ns}

    def _watch(self, slot: SequenceSlot, at_ns: int) -> None:
        slot.watched = True
        heapq.heappush(self._checks, (at_ns, slot.joined, slot.index, slot))

    def __contains__(self, sequence: SequenceId) -> bool:
        return sequence in self._slots

    def __len__(self) -> int:
        return len(self._slots)
