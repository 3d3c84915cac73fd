"""Sequences that are over without an END: their slots are free when nothing of them executes any more."""

from __future__ import annotations

from collections.abc import Callable

from stubserve.inference.work import Instance
from stubserve.schedulers.sequence.slot import SequenceSlot


class Departures:
    """The slots that they leave. Each is looked at once, and again whenever its instance has executed something.

    A slot may be added again before its instance is idle. So it is kept whose departure each is: a slot that has been
    free in the meantime, and may be another sequence's by now, is left alone.
    """

    __slots__ = ("_later", "_leaving")

    def __init__(self) -> None:
        # With the numbers of their sequences
        self._leaving: dict[SequenceSlot, int] = {}
        # By instance those of which something still executed
        self._later: dict[Instance, dict[SequenceSlot, int]] = {}

    def add(self, slot: SequenceSlot) -> None:
        """A slot has nothing left to hand out, and nothing will come."""
        self._leaving[slot] = slot.number

    def instance_idle(self, instance: Instance) -> None:
        if self._later:
            for slot, number in self._later.pop(instance, {}).items():
                self._leaving.setdefault(slot, number)

    def instance_gone(self, instance: Instance) -> None:
        self._later.pop(instance, None)

    def take(self, at_rest: Callable[[SequenceSlot], bool]) -> list[SequenceSlot]:
        """Removes the slots that are free: those at rest."""
        if not self._leaving:
            return []
        free = []
        for slot, number in self._leaving.items():
            if slot.gone or slot.number != number:
                continue
            if at_rest(slot):
                free.append(slot)
            else:
                self._later.setdefault(slot.instance, {})[slot] = number
        self._leaving.clear()
        return free
