"""The stub's end of the rings: takes requests, sends results, and keeps the memory of both sides straight.

Outputs are placed in the stub's own segment and freed when the parent says that their readers are done (`frees`).
Inputs belong to the parent; it takes them back when a batch's result arrives, except those that the result names as
held. The last view of a held input may die on any thread at any moment (a weak reference's callback), so the callback
only notes the offset and pokes the main thread, which tells the parent.

Only the main thread receives. Any thread may send and place: two locks keep them apart.
"""

from __future__ import annotations

import collections
import threading
import time
import weakref
from typing import Any, Callable, Deque, Dict, List, Sequence, Tuple

from stubserve_stub.patience import Patience
from stubserve_stub.wire import layout, messages
from stubserve_stub.wire.allocator import Allocator
from stubserve_stub.wire.arena import Arena
from stubserve_stub.wire.ring import MAX_RECORD, SPILLED, RingReader, RingWriter, poke, read_doorbell

# States of the health word, readable by the parent at any time.
STARTING = 1
IDLE = 2
EXECUTING = 3
FINALIZING = 4


class Channel:
    """Both rings of one instance, its health word, and its segment's memory."""

    def __init__(self, arena: Arena, index: int, request_doorbell: int, response_doorbell: int) -> None:
        segment = arena.segment(index)
        self.arena = arena
        self._words = segment.words
        self._request_doorbell = request_doorbell
        self._reader = RingReader(segment.view[layout.REQUEST_RING : layout.REQUEST_RING + layout.RING_BYTES])
        self._writer = RingWriter(
            segment.view[layout.RESPONSE_RING : layout.RESPONSE_RING + layout.RING_BYTES], response_doorbell
        )
        self.allocator = Allocator(arena, index, retain=min(64 << 20, arena.limit // 16))
        self._patience = Patience(segment.words)
        self._sending = threading.Lock()
        self._allocating = threading.Lock()
        # What the main thread does after a poke, besides
        self.on_poke: Callable[[], None] = lambda: None
        self._held: Dict[int, List["weakref.ref[Any]"]] = {}
        self._released: Deque[Tuple[int, Any]] = collections.deque()
        self.set_health(STARTING)

    def set_health(self, state: int, batch: int = 0) -> None:
        """Publishes what the stub is doing and since when."""
        words = self._words
        words[layout.HEALTH_BATCH] = batch
        words[layout.HEALTH_SINCE_NS] = time.monotonic_ns()
        words[layout.HEALTH_STATE] = state

    def receive(self) -> List[Tuple[Any, ...]]:
        """Sleeps until there are messages and returns them all."""
        self._patience.look()
        while True:
            count, pokes = read_doorbell(self._request_doorbell)
            if pokes:
                self._report_released()
                self.on_poke()
            if count:
                self._patience.took(count)
                return self._reader.take(count, self._decode)

    def send(self, message: Sequence[Any]) -> None:
        """Sends one message to the parent; waits for room in the ring when the parent is behind."""
        data = messages.pack(message)
        flags = 0
        if len(data) > MAX_RECORD:
            data, flags = messages.pack(self.place(data)), SPILLED
        with self._sending:
            while not self._writer.put(data, flags):
                # The parent drains the ring whenever it runs; it has simply not run yet.
                time.sleep(0.0005)
            self._writer.announce()

    def place(self, data: Any) -> Tuple[int, int]:
        """Copies contiguous bytes into the stub's segment: (offset, nbytes). Raises ArenaFull."""
        source = memoryview(data).cast("B")
        with self._allocating:
            offset = self.allocator.allocate(source.nbytes)
        self.arena.view(offset, source.nbytes)[:] = source
        return offset, source.nbytes

    def free(self, offsets: Sequence[int]) -> None:
        """The parent is done with these outputs."""
        if offsets:
            with self._allocating:
                for offset in offsets:
                    self.allocator.free(offset)

    def hold(self, offset: int, memory: Any) -> None:
        """Tells the parent when `memory`, the base of all views of the input at `offset`, is gone."""

        def gone(reference: Any) -> None:
            self._released.append((offset, reference))
            self.poke()

        # A list: a request that is rescheduled comes again with the same memory.
        self._held.setdefault(offset, []).append(weakref.ref(memory, gone))

    def respond(self, key: Tuple[int, int], start_ns: int, wire: Any, acknowledge: bool) -> None:
        """Sends a response that is not the final one; the parent says when it has passed it on if asked to."""
        self.send((messages.RESPONSE, *key, start_ns, wire, messages.ACKNOWLEDGE if acknowledge else 0, ()))

    def respond_last(self, key: Tuple[int, int], start_ns: int, wire: Any, tensors: List[Tuple[int, Any]]) -> None:
        """Sends a request's final response, with the offsets of those of its inputs that are still held.

        `tensors` are its inputs with their offsets; they are taken out of the list.
        """
        message = (messages.RESPONSE, *key, start_ns, wire, messages.FINAL)
        if not tensors:
            self.send((*message, ()))
            return
        watches = [(offset, tensor._watch()) for offset, tensor in tensors]
        tensors.clear()
        held = [(offset, watch()) for offset, watch in watches if watch is not None]
        held = [(offset, memory) for offset, memory in held if memory is not None]
        self.send((*message, [offset for offset, _ in held]))
        # Only now: nobody may tell of their death before the message that tells that they are alive.
        for offset, memory in held:
            self.hold(offset, memory)

    def poke(self) -> None:
        """Has the main thread look after what is noted for it. Safe from any thread and in a destructor."""
        poke(self._request_doorbell)

    def _report_released(self) -> None:
        offsets = []
        while self._released:
            offset, reference = self._released.popleft()
            references = self._held[offset]
            references.remove(reference)
            if not references:
                del self._held[offset]
                offsets.append(offset)
        if offsets:
            self.send((messages.RELEASED, offsets))

    def _decode(self, data: memoryview, flags: int) -> Tuple[Any, ...]:
        message: Tuple[Any, ...] = messages.unpack(data)
        if flags & SPILLED:
            offset, nbytes = message
            message = messages.unpack(self.arena.view(offset, nbytes))
        return message
