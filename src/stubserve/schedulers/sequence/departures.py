"""Sequences that are over without an END: their slots are free when nothing of them executes any more."""

from __future__ import annotations

from collections.abc import Callable

from stubserve.schedulers.base import Instance
from stubserve.schedulers.sequence.slot import Slot


class Departures:
    """The slots that they leave. Each is looked at once, and again whenever its instance has executed something."""

    __slots__ = ("_later", "_leaving")

    def __init__(self) -> None:
        self._leaving: dict[Slot, None] = {}
        # By instance those of which something still executed
        self._later: dict[Instance, list[Slot]] = {}

    def add(self, slot: Slot) -> None:
        """A slot has nothing left to hand out, and nothing will come."""
        self._leaving[slot] = None

    def instance_idle(self, instance: Instance) -> None:
        if self._later:
            self._leaving.update(dict.fromkeys(self._later.pop(instance, ())))

    def instance_gone(self, instance: Instance) -> None:
        self._later.pop(instance, None)

    def take(self, at_rest: Callable[[Slot], bool]) -> list[Slot]:
        """Removes the slots that are free: those at rest."""
        if not self._leaving:
            return []
        free = []
        for slot in self._leaving:
            if slot.gone:
                continue
            if at_rest(slot):
                free.append(slot)
            else:
                self._later.setdefault(slot.instance, []).append(slot)
        self._leaving.clear()
        return free
