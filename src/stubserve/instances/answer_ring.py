"""Answers on their way back to a stub whose model called other models.

Whoever waits in the stub reads the ring, and nobody may wait for a while: a model does what it likes between two
answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from stubserve_stub.wire import layout, messages
from stubserve_stub.wire.places import InArena
from stubserve_stub.wire.ring import MAX_RECORD, SPILLED, RingWriter

from stubserve.errors import ServeError
from stubserve.instances.memory import Memory
from stubserve.instances.patient_ring import PatientRing
from stubserve.instances.stub_memory import StubMemory


class AnswerRing:
    """The answer ring of one stub. `words` are the parent's in its segment, `memory` its accounts, `shared` the
    server's memory.

    Answers are announced at once, or where they go `together`, at the end of the event loop's turn. `on_broken` is
    called when the stub has written over its side of the ring: nothing can be sent to it any more.
    """

    def __init__(
        self,
        ring: RingWriter,
        words: memoryview,
        memory: StubMemory,
        shared: Memory,
        on_broken: Callable[[], None],
        together: bool = False,
    ) -> None:
        self._together = together
        self._announcement_is_due = False
        # Whoever waits for an answer has no part in a broken ring, and would wait for ever.
        self._ring = PatientRing(ring, on_broken, self._on_announced)
        self._words = words
        self._memory = memory
        self._shared = shared
        self._announced = 0

    def send(self, number: int, final: bool, wire: tuple[Any, ...] | None) -> None:
        """An answer (`messages.WireResponse`) to the call of this number, None for nothing but the end."""
        frees = self._memory.take_frees()
        data, flags = messages.pack_answer(number, final, wire, frees), 0
        if len(data) > MAX_RECORD:
            try:
                block = self._shared.store(data)
            except ServeError as full:
                self._memory.keep_frees(frees)
                self.send(number, final, ((full.message, int(full.code)), (), None))
                return
            # The stub lets go of the message as it does of an output.
            self._memory.hold(block.offset, block.whole())
            block.drop()
            data, flags = messages.pack_spilled(InArena(block.offset, block.nbytes)), SPILLED
        self._ring.put(data, flags)
        if not self._together:
            self._ring.announce()
        elif not self._announcement_is_due:
            self._announcement_is_due = True
            asyncio.get_running_loop().call_soon(self._announce_together)

    def say_whether_alone(self, alone: bool) -> None:
        """Whether nobody is at work but those whom the stub waits for; its next call may go by it."""
        self._words[layout.WAITS_ALONE] = alone

    def close(self) -> None:
        """The stub is gone."""
        self._ring.close()

    def _announce_together(self) -> None:
        self._announcement_is_due = False
        self._ring.announce()

    def _on_announced(self, count: int) -> None:
        self._announced += count
        self._words[layout.ANSWERED] = self._announced
