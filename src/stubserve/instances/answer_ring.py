"""Answers on their way back to a stub whose model called other models.

Whoever waits in the stub reads the ring, and nobody may wait for a while: a model does what it likes between two
answers. The parent can neither wait for room nor throw answers away. So what the ring has no room for is kept, in
order, and tried again.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable

from stubserve_stub.wire import messages
from stubserve_stub.wire.messages import WireResponse
from stubserve_stub.wire.places import InArena
from stubserve_stub.wire.ring import MAX_RECORD, SPILLED, RingBroken, RingWriter

from stubserve.errors import ServeError
from stubserve.memory.server_memory import Memory
from stubserve.memory.stub_memory import StubMemory

_RETRY_S = 0.001


class AnswerRing:
    """The answer ring of one stub. `memory` are its accounts, `shared` the server's memory.

    `on_broken` is called when the stub has written over its side of the ring: nothing can be sent to it any more.
    """

    def __init__(
        self,
        ring: RingWriter,
        memory: StubMemory,
        shared: Memory,
        on_broken: Callable[[], None],
    ) -> None:
        self._ring = ring
        self._memory = memory
        self._shared = shared
        self._on_broken = on_broken
        # What the ring had no room for
        self._overflow: collections.deque[tuple[bytes, int]] = collections.deque()
        self._retry: asyncio.TimerHandle | None = None
        self._closed = False

    def send(self, number: int, final: bool, wire: WireResponse | None) -> None:
        """An answer to the call of this number, None for nothing but the end."""
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
        if self._overflow or not self._put(data, flags):
            self._overflow.append((data, flags))
            if self._retry is None:
                self._try_again_later()
        self._announce()

    def close(self) -> None:
        """The stub is gone."""
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
        self._overflow.clear()

    def _put(self, data: bytes, flags: int) -> bool:
        try:
            return self._ring.put(data, flags)
        except RingBroken:
            # A call that waits for an answer has no part in a broken ring, and would wait for ever.
            self._on_broken()
            return False

    def _announce(self) -> None:
        if not self._closed:
            self._ring.announce()

    def _try_again_later(self) -> None:
        self._retry = asyncio.get_running_loop().call_later(_RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        while self._overflow and self._put(*self._overflow[0]):
            self._overflow.popleft()
        self._announce()
        if self._overflow and not self._closed:
            self._try_again_later()
