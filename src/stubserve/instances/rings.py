"""Messages to a stub: batches through one ring, and answers to requests of its model through another.

A message that is too long for its ring lies in the arena, and the ring has its place. The two rings treat a message
without room differently:

- The sender of a batch learns whether the stub has got it. There is room for all batches that may be in flight, so a
  ring without room has been overwritten by the stub, or its model. Writing a batch and announcing it are separate,
  because the doorbell is a system call, and one announces all batches that are handed out together.
- Answers are read by the waiting code in the stub, and for a while there may be none: a model does what it likes
  between two answers. The parent can neither wait for room nor drop answers. So answers without room are kept, in
  order, and tried again.
"""

# Compiled by mypyc.
from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable, Sequence, Sized

from stubserve_stub.wire import layout, messages
from stubserve_stub.wire.messages import WireResponse
from stubserve_stub.wire.places import InArena
from stubserve_stub.wire.ring import MAX_RECORD, SPILLED, RingBroken, RingWriter

from stubserve.errors import ServeError, internal
from stubserve.inference.request import Request
from stubserve.memory.blocks import Block
from stubserve.memory.regions import RegionSpan
from stubserve.memory.server_memory import Memory
from stubserve.memory.stub_memory import StubMemory

# Many batches may be in flight (`schedulers.depth`). The ring has room for two records of any size, and for all others
# up to this size; longer ones go through the arena.
_CROWDED = 2
_CROWDED_RECORD = 4 << 10

# From this size on, moving a request's bytes takes longer than a stub would look for its next message. Bytes in a
# client's shared memory are not moved.
_LARGE_BYTES = 128 << 10

_RETRY_S = 0.001


def _spilled(message: bytes, memory: Memory) -> tuple[bytes, Block]:
    """The record in place of a message, and the block with the message. Raises ServeError (503)."""
    block = memory.store(message)
    return messages.pack_spilled(InArena(block.offset, block.nbytes)), block


class RequestRing:
    """The request ring of one stub, which is called `stub`. `in_flight` are the batches that the stub has.

    `words` are the parent's in its segment, `memory` the server's memory. `on_broken` is called when the stub has
    overwritten its side of the ring: no further message can be sent.
    """

    def __init__(
        self,
        stub: str,
        ring: RingWriter,
        words: memoryview,
        memory: Memory,
        in_flight: Sized,
        on_broken: Callable[[], None],
    ) -> None:
        self._stub = stub
        self._ring = ring
        self._words = words
        self._memory = memory
        self._in_flight = in_flight
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        # How many records have been announced, and whether more will be in this turn
        self._announced = 0
        self._announcement_is_due = False
        self._closed = False

    def put(self, message: bytes, requests: Sequence[Request] = ()) -> Block | None:
        """Writes a message, that of a batch with these requests.

        Returns the message's block if it is not in the ring. After a ServeError, which is raised (503) when there is no
        memory for the message, the stub has not got it.
        """
        # Whether the stub may look for its next message (`stubserve_stub.runtime.busy_poll`)
        alone = len(requests) == 1 and self._memory.stubs_at_work == 0
        if alone:
            for tensor in requests[0].inputs:
                if tensor.nbytes >= _LARGE_BYTES and not isinstance(tensor.span, RegionSpan):
                    alone = False
        self._words[layout.ALONE] = alone
        flags, block = 0, None
        if len(message) > (MAX_RECORD if len(self._in_flight) < _CROWDED else _CROWDED_RECORD):
            message, block = _spilled(message, self._memory)
            flags = SPILLED
        try:
            has_room = self._ring.put(message, flags)
        except RingBroken:
            has_room = False
        if not has_room:
            if block is not None:
                block.drop()
            self._on_broken()
            raise internal(f"the request ring of stub '{self._stub}' cannot be written to")
        return block

    def announce(self) -> None:
        """Tells the stub that messages have been written."""
        self._announcement_is_due = False
        count = 0 if self._closed else self._ring.announce()
        if count:
            self._announced += count
            self._words[layout.ANNOUNCED] = self._announced

    def announce_soon(self) -> None:
        """Announces at once if the stub has nothing else to execute, else with all messages of this turn."""
        if self._ring.unannounced == len(self._in_flight):
            self.announce()
        elif not self._announcement_is_due:
            self._announcement_is_due = True
            self._loop.call_soon(self.announce)

    def close(self) -> None:
        self._closed = True


class AnswerRing:
    """The answer ring of one stub. `memory` are its accounts, `shared` the server's memory.

    `on_broken` is called when the stub has overwritten its side of the ring: no further message can be sent.
    """

    def __init__(self, ring: RingWriter, memory: StubMemory, shared: Memory, on_broken: Callable[[], None]) -> None:
        self._ring = ring
        self._memory = memory
        self._shared = shared
        self._on_broken = on_broken
        # Answers that found no room in the ring
        self._overflow: collections.deque[tuple[bytes, int]] = collections.deque()
        self._retry: asyncio.TimerHandle | None = None
        self._closed = False

    def send(self, number: int, final: bool, wire: WireResponse | None) -> None:
        """Sends an answer to the call of this number; None for only the final flag."""
        frees = self._memory.take_frees()
        message, flags = messages.pack_answer(number, final, wire, frees), 0
        if len(message) > MAX_RECORD:
            try:
                message, block = _spilled(message, self._shared)
            except ServeError as full:
                self._memory.keep_frees(frees)
                self.send(number, final, ((full.message, int(full.code)), (), None))
                return
            # The stub releases the message as it releases an output.
            self._memory.hold(block.offset, block.whole())
            block.drop()
            flags = SPILLED
        if self._overflow or not self._put(message, flags):
            self._overflow.append((message, flags))
            if self._retry is None:
                self._try_again_later()
        self._announce()

    def close(self) -> None:
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
        self._overflow.clear()

    def _put(self, message: bytes, flags: int) -> bool:
        try:
            return self._ring.put(message, flags)
        except RingBroken:
            # A waiting call does not notice a broken ring, and would wait for ever.
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
