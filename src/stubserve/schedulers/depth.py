"""How much work an instance may have at a time: the one that it executes, or the next one besides.

Whether work is handed out ahead of time is decided here and nowhere else:

- never where the queue has rules (priorities, timeouts, slots): what is handed out early cannot be overtaken, nor
  expire;
- never past another instance, which might be idle sooner: only while a single one serves;
- only to an instance that is always quick. Where executing takes less time than telling parent and stub of each
  other, the stub would mostly wait. A slower model is better served with the larger batch that gathers while it
  executes;
- one work ahead, not more.

Costs a dictionary lookup when work is handed out, and one when it is done.
"""

from __future__ import annotations

from collections.abc import Hashable

from stubserve.inference.work import Work

# Executions that take less time than this are quick, and an instance is once this many in a row have been.
QUICK_NS = 200_000
QUICK_IN_A_ROW = 32


class _Load:
    """What one instance has."""

    __slots__ = ("quick_in_a_row", "works")

    def __init__(self) -> None:
        self.works = 0
        self.quick_in_a_row = 0


class Depth:
    """The works that each instance has. `early` says that the scheduler's rules let work be formed ahead of time."""

    __slots__ = ("_early", "_loads")

    def __init__(self, early: bool) -> None:
        self._early = early
        self._loads: dict[Hashable, _Load] = {}

    def join(self, instance: Hashable) -> None:
        """An instance serves from now on; it has nothing."""
        self._loads[instance] = _Load()

    def leave(self, instance: Hashable) -> None:
        """An instance gets no more work."""
        self._loads.pop(instance, None)

    def handed_out(self, instance: Hashable) -> bool:
        """An instance has got work; whether it may have more at once. Raises KeyError if it does not serve."""
        load = self._loads[instance]
        load.works += 1
        return load.quick_in_a_row >= QUICK_IN_A_ROW and self._has_room(load)

    def handed_back(self, instance: Hashable) -> bool:
        """The work last handed out did not get there; whether the instance may have some now."""
        load = self._loads.get(instance)
        if load is None:
            return False
        load.works -= 1
        return self._has_room(load)

    def done(self, instance: Hashable, work: Work) -> bool:
        """An instance has executed work, whose times are set; whether it may have more now."""
        load = self._loads.get(instance)
        if load is None:
            return False
        load.works -= 1
        first = work.requests[0]
        quick = first.compute_infer_end_ns - first.compute_input_end_ns < QUICK_NS
        load.quick_in_a_row = load.quick_in_a_row + 1 if quick else 0
        return not load.works or self._has_room(load)

    def idle(self) -> list[Hashable]:
        """The instances that have nothing."""
        return [instance for instance, load in self._loads.items() if not load.works]

    def __len__(self) -> int:
        """How many instances serve."""
        return len(self._loads)

    def _has_room(self, load: _Load) -> bool:
        works = load.works
        if not works:
            return True
        return works == 1 and self._early and load.quick_in_a_row >= QUICK_IN_A_ROW and len(self._loads) == 1
