"""A model with sequence batching: sequences outlive their requests, and end where they began.

When a model is loaded again, its sequences would be lost with the instances that hold their states. So the new model
takes over from the old one. It passes on requests of sequences that run there, until the last of these has ended or has
been idle for too long; only then the old instances go. New sequences begin on the new ones. That needs equal inputs and
outputs: with others the old model is replaced at once, and its sequences have to begin again. Where the server keeps
the states of sequences, a sequence moves to the new model with the first request that comes while none is under way.

If only its instances change, leaving instances keep their sequences to the end of each, and get no new ones; the others
are not disturbed.

A model does not fall asleep while a sequence is under way.
"""

# Compiled by mypyc.
from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from stubserve.inference.request import SEQUENCE_START, Request
from stubserve.inference.served_model import ServedModel
from stubserve.inference.tensor import Tensor
from stubserve.instances.instance import Instance
from stubserve.sequences.batcher import SequenceBatcher
from stubserve.serving.answering import StageMaker
from stubserve.serving.dispatcher import Dispatcher
from stubserve.serving.instance_model import InstanceModel


class SequenceModel(InstanceModel):
    """An `InstanceModel` whose scheduler is a sequence batcher."""

    def __init__(
        self,
        name: str,
        version: int,
        config: Any,
        scheduler: SequenceBatcher,
        clock: Callable[[], int] = time.monotonic_ns,
        make_queue: Callable[..., Dispatcher] = Dispatcher,
        restart_wait_s: float = 0.0,
        quarantine_s: float = 0.0,
        front: Sequence[StageMaker] = (),
    ) -> None:
        super().__init__(name, version, config, scheduler, clock, make_queue, restart_wait_s, quarantine_s, front)
        self._sequences = scheduler
        # The model whose sequences are passed on, and the model that passes them on
        self._former: SequenceModel | None = None
        self._successor: SequenceModel | None = None
        self._quiet = asyncio.Event()
        scheduler.when_quiet = self._quiet.set
        self._leaving: dict[Hashable, asyncio.Event] = {}
        scheduler.when_vacant = self._on_vacant

    def takes_over_from(self, former: ServedModel) -> None:
        """Passes on the requests of sequences that run in `former`, if both models take the same requests."""
        old, new = former.config, self.config
        if (
            isinstance(former, SequenceModel)
            and list(old.input) == list(new.input)
            and list(old.output) == list(new.output)
            and old.max_batch_size == new.max_batch_size
            and old.sequence_batching.control_input == new.sequence_batching.control_input
        ):
            self._former, former._successor = former, self

    def holds(self, request: Request) -> bool:
        """Whether the sequence of a request runs here, or in the model that this one takes over from."""
        former = self._former
        return self._sequences.holds(request.options.correlation_id) or (former is not None and former.holds(request))

    def enqueue(self, request: Request) -> None:
        if self._former is None or not self._passes_on(request, self._former):
            super().enqueue(request)

    def _passes_on(self, request: Request, former: SequenceModel) -> bool:
        options = request.options
        if options.flags & SEQUENCE_START or self._sequences.holds(options.correlation_id) or not former.holds(request):
            return False
        if self._goes_on(options.correlation_id, former):
            return False
        former.submit(request)
        return True

    def _goes_on(self, sequence: int | str, former: SequenceModel) -> bool:
        """Moves a sequence of the former model here, if it can be moved now."""
        own = self._sequences.states
        states = None if own is None else former.part_with(sequence)
        if own is None or states is None:
            return False
        own.adopt(sequence, states)
        return True

    def part_with(self, sequence: int | str) -> Sequence[Tensor] | None:
        """The states of a sequence that goes on in another model; None if it has to stay (`SequenceBatcher`)."""
        states = self._sequences.part_with(sequence)
        if states is None:
            return None if self._former is None else self._former.part_with(sequence)
        self._first.poll_soon()
        return states

    def cancel(self, request: Request) -> None:
        super().cancel(request)
        if self._former is not None:
            self._former.cancel(request)

    def _refuse_if_down(self) -> None:
        """Sequences go on in the model that takes over, if this model has no instance and will have none."""
        super()._refuse_if_down()
        successor, states = self._successor, self._sequences.states
        if successor is not None and states is not None and self.down() and not self._restarting():
            for sequence in states.waiting():
                successor._goes_on(sequence, self)
            successor._first.poll_soon()
            self._quiet.set()

    def _let_go(self, instance: Instance, stop_timeout_s: float) -> Sequence[asyncio.Task[None]]:
        if not self._sequences.close_instance(instance):
            return super()._let_go(instance, stop_timeout_s)
        self._leaving[instance] = asyncio.Event()
        self.retire(instance, stop_timeout_s, functools.partial(self._end_sequences, instance))
        return ()

    async def _end_sequences(self, instance: Instance) -> None:
        """Waits until the sequences of a leaving instance have ended; it then gets no more work."""
        await self._leaving[instance].wait()
        del self._leaving[instance]
        self._dispatcher.leave(instance, finishing=True)
        self._refuse_if_down()

    def _on_vacant(self, instance: Hashable) -> None:
        self._leaving[instance].set()

    @property
    def in_use(self) -> int:
        return self.under_way + self._sequences.sequences

    async def drained(self, patience_s: float = 0.0) -> bool:
        """As of other models; also waits for a model that passes sequences on."""
        if self._former is not None:
            self._former.let_go()
        while True:
            if not await super().drained(patience_s):
                return False
            if self._successor is None:
                return True
            if not self._sequences.sequences:
                self._successor._former = None
                return True
            self._quiet.clear()
            await self._quiet.wait()

    async def stop(self, timeout_s: float) -> None:
        await super().stop(timeout_s)
        if self._sequences.states is not None:
            self._sequences.states.close()

    def let_go(self) -> None:
        if self._former is not None:
            self._former.let_go()
        self._successor = None
        self._quiet.set()
