"""What a strategy of the sequence batcher defines: the meaning of a slot, and which requests share a batch."""

# Compiled by mypyc.
from __future__ import annotations

import abc
from collections.abc import Iterable

from stubserve.inference.request import Request
from stubserve.inference.work import Decision, Instance
from stubserve.schedulers.base import Scheduler
from stubserve.sequences.slots import SequenceId, SequenceSlot


class Strategy(Scheduler):
    """The functions that `batcher.SequenceBatcher` calls."""

    @abc.abstractmethod
    def _filled(self, slot: SequenceSlot) -> None:
        """The queue of a slot has requests that may run, unless one of them is `running`."""

    @abc.abstractmethod
    def _joins(self, instance: Instance) -> None:
        """There is a new instance."""

    @abc.abstractmethod
    def _leaves(self, instance: Instance, slots: Iterable[SequenceSlot]) -> list[tuple[Request, SequenceId, int]]:
        """An instance is gone; returns requests of these slots that wait outside of the slots' queues.

        With each the id and the number of its sequence.
        """

    @abc.abstractmethod
    def _idles(self, instance: Instance) -> None:
        """An instance can be given work."""

    @abc.abstractmethod
    def _at_rest(self, slot: SequenceSlot) -> bool:
        """Whether no request of the slot's sequence executes or is about to."""

    @abc.abstractmethod
    def _rests(self, instance: Instance) -> None:
        """An instance can be given no work for now."""

    @abc.abstractmethod
    def _run(self, now_ns: int, decision: Decision) -> None:
        """Forms batches for idle instances; sets when to look again."""

    def _cancel_elsewhere(self, request: Request) -> None:  # for strategies with such requests
        """Handles a cancelled request that waits neither in a slot's queue nor in the backlog, if it waits at all."""

    def _drain_elsewhere(self) -> list[Request]:
        """Takes back all requests that wait elsewhere, and ends their sequences."""
        return []
