"""The stub's end of the rings: takes requests, sends results, and keeps the memory of both sides straight.

Outputs are placed in the stub's own segment and freed when the parent says that their readers are done (`frees`).
Inputs belong to the parent; it takes them back when a batch's result arrives, except those that the result names as
held. A model keeps held inputs, and outputs in answers to its own requests, until their last view dies, on any thread
at any moment. The code that runs then only notes the offset and pokes the main thread, which tells the parent, unless
another message does so first.

Only the main thread receives. Any thread may send, place and free, under two locks. `sending` may be held over several
sends, so that nothing comes in between.
"""

from __future__ import annotations

import collections
import itertools
import mmap
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple

from stubserve_stub.runtime.busy_poll import BusyPoll
from stubserve_stub.runtime.outputs import OutputMemory, no_memory, own_offsets
from stubserve_stub.wire import layout, messages, strings
from stubserve_stub.wire.budget import ArenaFull
from stubserve_stub.wire.messages import Answer, Message, WireResponse
from stubserve_stub.wire.places import DEVICE_BASE, AsList, Place, are_listed
from stubserve_stub.wire.ring import MAX_RECORD, SPILLED, RingReader, RingWriter, poke, read_doorbell
from stubserve_stub.wire.stub_arena import StubArena

if TYPE_CHECKING:
    from stubserve_stub.runtime.devices import DeviceMemory, Devices
    from stubserve_stub.runtime.region_batch import RegionInputs

# States of the health word, readable by the parent at any time.
STARTING = 1
IDLE = 2
EXECUTING = 3
FINALIZING = 4


class Channel:
    """The rings of one instance, its health word, and its segment's memory."""

    def __init__(self, arena: StubArena, request_doorbell: int, response_doorbell: int, answer_doorbell: int) -> None:
        segment = arena.segment(arena.own)
        theirs, self._words = segment.parent_words, segment.stub_words
        self.arena = arena
        self._request_doorbell = request_doorbell
        self._reader = RingReader(segment.ring(layout.REQUEST_RING), self._words, layout.REQUESTS_READ)
        self._writer = RingWriter(segment.ring(layout.RESPONSE_RING), theirs, layout.RESPONSES_READ, response_doorbell)
        self.answer_doorbell = answer_doorbell
        self._answers = RingReader(segment.ring(layout.ANSWER_RING), self._words, layout.ANSWERS_READ)
        self.memory = OutputMemory(arena)
        self.free = self.memory.free
        # None on servers without GPUs
        self.devices: Optional[Devices] = None
        self._log_levels = theirs[layout.LOG_LEVELS : layout.LOG_LEVELS + 1]
        self._busy_poll = BusyPoll(theirs)
        self.sending = threading.RLock()
        # What else the main thread does after a poke
        self.on_poke: Callable[[], None] = lambda: None
        # The inputs in regions of open requests, by batch and slot
        self.region_inputs: Dict[Tuple[int, int], RegionInputs] = {}
        # Weak references to the memory of held inputs; they only have to be kept
        self._held: Dict[int, "weakref.ref[Any]"] = {}
        self._held_keys = itertools.count()
        self._released: Deque[int] = collections.deque()
        self._afterthoughts: Deque[bytes] = collections.deque()
        self._poked = False
        self.set_health(STARTING)

    def set_health(self, state: int, batch: int = 0) -> int:
        """Publishes what the stub is doing; returns since when: CLOCK_MONOTONIC in ns."""
        words = self._words
        words[layout.HEALTH_BATCH] = batch
        words[layout.HEALTH_SINCE_NS] = now = time.monotonic_ns()
        words[layout.HEALTH_STATE] = state
        return now

    def log_levels(self) -> int:
        """The levels that the server logs, as bits."""
        return self._log_levels[0]

    def receive(self) -> List[Message]:
        """Sleeps until there are messages and returns them all, for `messages.deliver`."""
        self._busy_poll.wait()
        while True:
            count, pokes = read_doorbell(self._request_doorbell)
            if pokes:
                self._report_released()
                self.on_poke()
            if count:
                self._busy_poll.on_taken(count)
                return self._reader.take(count, self._decode)

    def send(self, message: bytes) -> None:
        """Sends a packed message; waits for room in the ring while the parent is behind. Raises ArenaFull."""
        flags = 0
        if len(message) > MAX_RECORD:
            message, flags = messages.pack_spilled(self.memory.place(message)), SPILLED
        with self.sending:
            while not self._writer.put(message, flags):
                # The parent drains the ring whenever it runs; it has not run yet.
                time.sleep(0.0005)
            self._writer.announce()

    def receive_answers(self) -> List[Answer]:
        """Sleeps until there are answers to requests of the model and returns them all."""
        self._busy_poll.on_call()
        count, _ = read_doorbell(self.answer_doorbell)
        return self._answers.take(count, self._decode_answer)

    def place(self, buffer: Any) -> Place:
        """The place of a contiguous buffer or list of strings: in the message if it is small. Raises ArenaFull."""
        if isinstance(buffer, list):
            if len(buffer) <= layout.LISTED_STRINGS and are_listed(len(buffer), AsList(buffer).nbytes):
                return AsList(buffer)
            buffer = strings.join(buffer)
        if isinstance(buffer, bytes):
            if len(buffer) <= layout.INLINE_BYTES:
                return buffer
        elif buffer.nbytes <= layout.INLINE_BYTES:
            small: bytes = buffer.tobytes()
            return small
        return self.memory.place(buffer)

    def use_devices(self, devices: Devices) -> None:
        """Lets tensors lie in memory of GPUs from now on."""
        self.devices = devices
        self.memory.free_on_device = devices.free
        self.memory.pin = devices.pin
        self.arena.segment(self.arena.own).before_release = devices.unpin

    def place_device(self, memory: DeviceMemory, stays: bool, holder: str) -> Place:
        """The place of a copy of memory of a GPU: there if it `stays`, else on the host. Raises ArenaFull, DriverError.

        `holder` is what errors call it.
        """
        if stays and self.devices is not None:
            return self.devices.put(memory, holder)
        return memory.tobytes() if memory.nbytes <= layout.INLINE_BYTES else self.memory.place_device(memory)

    def hold(self, offset: int, memory: Any) -> None:
        """Tells the parent when `memory`, the base of all views of the input at `offset`, is gone."""

        key = next(self._held_keys)

        def gone(_: Any) -> None:
            self._held.pop(key, None)
            self.drop(offset)

        self._held[key] = weakref.ref(memory, gone)

    def drop(self, offset: int) -> None:
        """The last view of memory that the stub was given at `offset` is gone. Safe in a finalizer."""
        self._released.append(offset)
        self.poke()

    def respond(self, key: Tuple[int, int], start_ns: int, wire: WireResponse, acknowledge: bool) -> None:
        """Sends a response that is not the final one. With `acknowledge` the parent says when it has passed it on."""
        self._respond(key, start_ns, wire, messages.ACKNOWLEDGE if acknowledge else 0, ())

    def respond_last(
        self, key: Tuple[int, int], start_ns: int, wire: Optional[WireResponse], tensors: List[Tuple[int, Any]]
    ) -> None:
        """Sends a request's final response, with the offsets of those of its inputs that are still held.

        `tensors` are its inputs with their offsets; they are taken out of the list.
        """
        if not tensors:
            self._respond(key, start_ns, wire, messages.FINAL, ())
            return
        watches = [(offset, tensor._watch()) for offset, tensor in tensors]
        tensors.clear()
        if self.devices is not None and any(offset >= DEVICE_BASE for offset, _ in watches):
            self.devices.finish()
        held = []
        for offset, watch in watches:
            memory = None if watch is None else watch()
            if memory is None:
                self.arena.make_read_only(offset)
            else:
                held.append((offset, memory))
        self._respond(key, start_ns, wire, messages.FINAL, [offset for offset, _ in held])
        # Only now: the message that says that they are alive has to go out before one about their death.
        for offset, memory in held:
            self.hold(offset, memory)

    def _respond(
        self, key: Tuple[int, int], start_ns: int, wire: Optional[WireResponse], flags: int, held: Sequence[int]
    ) -> None:
        if self.region_inputs:
            inputs = self.region_inputs.pop(key, None) if flags & messages.FINAL else self.region_inputs.get(key)
            if inputs is not None:
                wire = inputs.check_response(wire, self.free)
        try:
            self.send(messages.pack_response(*key, start_ns, wire, flags, held))
        except ArenaFull as full:
            # The message itself is too long for a record. The request has to end all the same.
            assert wire is not None
            self.free(own_offsets(wire[1]))
            self.send(messages.pack_response(*key, start_ns, no_memory(full), flags, held))

    def send_later(self, message: bytes) -> None:
        """Has a message sent when the main thread is free, or with the next one. Safe in a finalizer."""
        self._afterthoughts.append(message)
        self.poke()

    def send_and_report(self, pack: Callable[[List[int]], bytes]) -> None:
        """Sends the message that `pack` makes of the offsets of memory without a view any more. Raises ArenaFull."""
        with self.sending:
            released = self._take_released()
            try:
                self.send(pack(released))
            except ArenaFull:
                self._released.extend(released)
                raise

    def cut_off(self, refuse: Callable[..., Any]) -> None:
        """Cuts this process, a fork of the stub, off from the rings: any use of them calls `refuse`, which raises.

        Locks that other threads of the stub may have held at the fork are made anew.
        """
        self.sending = threading.RLock()
        self.memory.renew_locks()
        for method in ("send", "receive", "receive_answers", "place"):
            setattr(self, method, refuse)

    def leave(self, refuse: Callable[..., Any]) -> None:
        """Makes nothing more of the rings and the segment, which another stub may get: any use calls `refuse`."""
        with self.sending:
            for method in ("send", "place"):
                setattr(self, method, refuse)
            self.arena.segment(self.arena.own).protect(0, self.arena.span, mmap.PROT_READ)

    def poke(self) -> None:
        """Has the main thread do what is noted for it. Safe from any thread and in a destructor."""
        if not self._poked:
            self._poked = True
            poke(self._request_doorbell)

    def _report_released(self) -> None:
        self._poked = False
        with self.sending:
            offsets = self._take_released()
            if offsets:
                self.send(messages.pack_released(offsets))

    def _take_released(self) -> List[int]:
        # Under `sending`, and for a message that is sent before it is left.
        while self._afterthoughts:
            self.send(self._afterthoughts.popleft())
        offsets = []
        while self._released:
            offset = self._released.popleft()
            self.arena.make_read_only(offset)
            offsets.append(offset)
        if self.devices is not None and any(offset >= DEVICE_BASE for offset in offsets):
            self.devices.finish()
        return offsets

    def _decode_answer(self, data: memoryview, flags: int) -> Answer:
        answer: Answer = self._decode(data, flags)
        if flags & SPILLED:
            self.drop(messages.unpack_spilled(data).offset)
        return answer

    def _decode(self, data: memoryview, flags: int) -> Message:
        if flags & SPILLED:
            place = messages.unpack_spilled(data)
            data = self.arena.view(place.offset, place.nbytes)
        message: Message = messages.unpack(data)
        return message
