"""The requests that an instance's seat in a stub has: batches out, answers back, over its rings.

Each wake-up takes all messages. A request that its model answers through a sender is open until the final response,
which may come before the result of its batch or long after it. With the result the stub is free for the next batch.
"""

# Compiled by mypyc.
from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, Protocol

from stubserve_stub.wire import layout, messages
from stubserve_stub.wire.messages import Entry, WireResponse
from stubserve_stub.wire.ring import RingReader, RingWriter, read_doorbell

from stubserve.inference.request import Request, Response
from stubserve.inference.served_model import BlockingCall, ModelFinder
from stubserve.inference.tensor import drop_blocks
from stubserve.inference.work import Work
from stubserve.instances.batch import InFlightBatch, hold_inputs, pack_batch, read_response, read_result
from stubserve.instances.bls import StubCalls
from stubserve.instances.rings import AnswerRing, RequestRing
from stubserve.instances.stub_devices import StubDevices
from stubserve.instances.stub_process import SeatLine
from stubserve.instances.stub_regions import StubRegions
from stubserve.instances.stub_requests import Key, StubRequests, UnansweredRequests
from stubserve.memory.server_memory import Memory
from stubserve.memory.stub_memory import StubMemory

log = logging.getLogger("stubserve.instances")

_QUESTION = "does its model write to memory of others?"

# Executed work, and its answers
Result = tuple[Work, Sequence[tuple[Request, Response]]]
Results = Sequence[Result]


class WorkOwner(Protocol):
    """Gets the reports about the requests of an instance's stub."""

    def on_results(self, instance: Any, results: Results) -> None:
        """All of this work has run, and the stub is free for the next. There may be none, if it was full before."""

    def on_response(self, instance: Any, request: Request, response: Response, start_ns: int) -> None:
        """A sender's response, before or after its batch has run; the model sent it at `start_ns`."""

    def when_delivered(self, request: Request, act: Callable[[], None], batch: Collection[Request]) -> None:
        """Calls `act` when the reader of `request` has had all responses so far, and has kept up.

        `batch` are the requests of its batch while that is being executed.
        """

    def on_rescheduled(self, instance: Any, request: Request) -> None:
        """The model wants to execute this request once more; called before the results of its batch."""


class StubWork:
    """The requests of one seat, and the seat as a `deadlock.Waiter`.

    It handles the stub's messages about batches (`messages.handlers_of_parent`).
    """

    def __init__(
        self,
        process: SeatLine,
        memory: Memory,
        outputs: StubMemory,
        models: ModelFinder,
        regions: StubRegions | None = None,
        devices: StubDevices | None = None,
    ) -> None:
        # Who gets its reports, the instance that they are of, and how many requests may be open at a time, 0 for any
        self.owner: WorkOwner | None = None
        self.instance: Hashable = None
        self.streams = 0
        self._regions = regions
        self._devices = devices
        # Called, once set, when reports have left it without a batch and an open request
        self.when_empty: Callable[[], None] | None = None
        self._process = process
        self._memory = memory
        self._outputs = outputs
        self._loop = asyncio.get_running_loop()
        self._requests = requests = StubRequests()
        segment = memory.arena.segment(outputs.index)
        words = segment.parent_words
        self._theirs = theirs = segment.stub_words
        theirs[layout.CANARY] = layout.CANARY_VALUE
        ring = RingWriter(segment.ring(layout.REQUEST_RING), theirs, layout.REQUESTS_READ, process.doorbell_out)
        self.ring = RequestRing(process.name, ring, words, memory, requests.batches, self._on_broken_ring)
        self._reader = RingReader(segment.ring(layout.RESPONSE_RING), words, layout.RESPONSES_READ)
        ring = RingWriter(segment.ring(layout.ANSWER_RING), theirs, layout.ANSWERS_READ, process.answer_doorbell)
        answers = AnswerRing(ring, outputs, memory, self._on_broken_ring)
        self.calls = StubCalls(self, models, outputs, answers, requests.tensors)
        self._handlers = messages.handlers_of_parent(self, self.calls)
        # Groups of responses that have been delivered, which the stub is still to be told
        self._delivered: list[Key] = []
        # How many batches the stub has got so far, and when it had executed the last one
        self.batches = 0
        self._free_ns = 0
        # Executed work in the messages that are being read
        self._executed: list[Result] = []
        # The stub should get no more work, for now or ever again; and no more messages are taken from it
        self.full = False
        self.over = False
        # How many batches it had executed, once it is dead
        self.executed = 0
        # Called with the next batch, once set
        self.on_batch: Callable[[], None] | None = None
        # Not through the ring: the stub's main thread may be busy for long, and there may be many frees.
        outputs.on_many_frees = functools.partial(self._loop.call_soon, self._acknowledge)
        self._loop.add_reader(process.doorbell_in, self._on_doorbell)

    def execute(self, work: Work) -> None:
        """Gives the stub work, and announces it at once. Raises as `give`."""
        self.give(work)
        self.ring.announce()

    def give(self, work: Work) -> None:
        """Gives the stub work as a batch, which `ring.announce_soon` announces. If it raises, the stub has not got it.

        Raises ServeError (503) when even its description finds no memory.
        """
        number = work.number = self.batches = self.batches + 1
        batches = self._requests.batches
        frees = self._outputs.take_frees()
        if self._regions is not None:
            for request in work.requests:
                if request.regions is not None:
                    self._regions.send_regions_of(request)
        if self._devices is not None:
            for request in work.requests:
                self._devices.send_chunks_of(request.inputs)
        try:
            spilled = self.ring.put(pack_batch(number, frees, work), work.requests)
        except Exception:
            self._outputs.keep_frees(frees)  # this message will not report them to the stub, so the next one must
            raise
        # Only now: a caller that gets an exception answers the requests.
        if not batches:
            self._memory.stubs_at_work += 1
        batches[number] = InFlightBatch(work, spilled)
        if self.on_batch is not None:
            self.on_batch()

    def drop_states(self, sequences: Sequence[int]) -> None:
        """These sequences are over without an END request: the stub drops their states."""
        self._process.send("drop_states", sequences=sequences)

    @property
    def running(self) -> tuple[int, int] | None:
        """The batch that the stub executes: (number, how many requests); None if it has none."""
        return self._requests.running

    @property
    def load(self) -> tuple[int, int]:
        """How many batches the stub has, and how many requests, with the open ones."""
        return len(self._requests.batches), len(self._requests.all())

    @property
    def is_empty(self) -> bool:
        """Whether the stub has neither a batch nor an open request."""
        return self._requests.is_empty

    @property
    def is_written_over(self) -> bool:
        """Whether the stub's part of its segment has been overwritten."""
        return bool(self._theirs[layout.CANARY] != layout.CANARY_VALUE)

    def cancel(self, request: Request) -> None:
        """Tells the model that the client of a request no longer waits."""
        key = self._requests.key_of(request)
        if key is not None:
            self._process.send("cancel", batch=key[0], indices=[key[1]])

    def stop(self) -> None:
        """Lets the model finalize, and the stub end, behind the batches that it has."""
        self.ring.put(messages.pack_stop())
        self.ring.announce()

    def close(self) -> UnansweredRequests:
        """The stub is gone: its requests without an answer."""
        # What a stub that was broken off says of its batch cannot be trusted: it may have begun all of them.
        running = self.batches if self.over else self._theirs[layout.HEALTH_BATCH]
        if not self.over:
            self.over = self.full = True
            self.ring.close()
            # Results that the stub sent before it died are still good. (A model may have made the doorbell block.)
            os.set_blocking(self._process.doorbell_in, False)
            self._on_doorbell()
        self._loop.remove_reader(self._process.doorbell_in)
        self.calls.close()
        if self._requests.batches:
            self._memory.stubs_at_work -= 1
        self.executed = self.batches - len(self._requests.batches)
        return self._requests.remove_all(self.batches if self.is_written_over else running)

    def _on_broken_ring(self) -> None:
        self._process.condemn(f"what it says of its ring makes no sense; {_QUESTION}")

    def _break_off(self, why: str) -> None:
        """Takes no more messages from the stub, and ends it."""
        self.over = self.full = True
        self.ring.close()
        self._loop.remove_reader(self._process.doorbell_in)
        self._process.condemn(f"{why} {_QUESTION}")

    def _on_doorbell(self) -> None:
        try:
            count, _ = read_doorbell(self._process.doorbell_in)
        except BlockingIOError:
            return
        if self._theirs[layout.CANARY] != layout.CANARY_VALUE:
            # The stub's answers cannot be trusted.
            self._break_off("its shared memory has been written over, the words that the server reads too;")
            return
        try:
            try:
                messages.deliver(self._handlers, self._reader.take(count, self._outputs.message))
            finally:
                self._tell()
            if self.calls.due:
                self.calls.schedule()
        except Exception:
            # The requests of an unreadable message would never be answered.
            log.exception("what stub '%s' (pid %d) has put into its ring cannot be read", self.name, self._process.pid)
            self._break_off("its ring holds something that is not a message;")

    def _tell(self) -> None:
        executed = self._executed
        if executed:
            self._executed = []
            if self.owner is not None:
                self.owner.on_results(self.instance, executed)
                if self.when_empty is not None and self.is_empty:
                    self.when_empty()

    def on_result(
        self,
        batch: int,
        start_ns: int,
        end_ns: int,
        entries: Sequence[Entry],
        held: Sequence[int],
        error: str | None,
    ) -> None:
        batches = self._requests.batches
        had = batches[batch]
        if held:
            hold_inputs(had.tensors(), held, self._outputs)
        if had.work.requests[0].compute_start_ns < self._free_ns:
            # The batch waited while others were executed: until then it was queued.
            for queued in had.work.requests:
                queued.compute_start_ns = self._free_ns
        self._free_ns = end_ns
        finished, left = read_result(had, start_ns, end_ns, entries, error, self._outputs, self._process.name)
        # Until here the message may turn out to be invalid, and `end` must find the batch.
        del batches[batch]
        if not batches:
            self._memory.stubs_at_work -= 1
        rescheduled = []
        for index, entry in left:
            request = had.work.slots[index]
            assert request is not None
            if entry == messages.RESCHEDULED:
                rescheduled.append(request)
            else:
                self._requests.leave_open((batch, index), request, had.take_extras(index))
                self._look_whether_full()
        if had.spilled is not None or had.extras is not None:
            had.drop()
        if (owner := self.owner) is not None:
            for request in rescheduled:
                owner.on_rescheduled(self.instance, request)
            self._executed.append((had.work, finished))

    def on_response(
        self,
        batch: int,
        index: int,
        start_ns: int,
        response: WireResponse | None,
        flags: int,
        held: Sequence[int],
    ) -> None:
        self._tell()
        final = bool(flags & messages.FINAL)
        key = (batch, index)
        request = self._requests.find(key)
        wanted = None if request is None else request.requested_outputs
        read = read_response(response, final, self._outputs, self._process.name, wanted)
        if request is None or self.owner is None:
            # Sent in an empty slot, or while the request was being answered in another way.
            drop_blocks(read.outputs)
            if flags & messages.ACKNOWLEDGE:
                self._on_delivered(key)
            return
        if held:
            hold_inputs((*request.inputs, *self._requests.extras(key)), held, self._outputs)
        if final:
            self._requests.answered(key)
        self.owner.on_response(self.instance, request, read, start_ns)
        if flags & messages.ACKNOWLEDGE:
            had = self._requests.batches.get(batch)
            running = () if had is None else had.work.requests
            self.owner.when_delivered(request, functools.partial(self._on_delivered, key), running)
        if final and self.full:
            self._look_whether_full()
            if not self.full:
                self.owner.on_results(self.instance, ())
        if self.when_empty is not None and self.is_empty:
            self.when_empty()

    def _look_whether_full(self) -> None:
        self.full = self.over or 0 < self.streams <= self._requests.open

    def on_released(self, offsets: Sequence[int]) -> None:
        self._outputs.release(offsets)

    def _on_delivered(self, key: Key) -> None:
        """A group of responses has been delivered; the stub is told with others of this turn of the event loop."""
        if not self._delivered:
            self._loop.call_soon(self._acknowledge)
        self._delivered.append(key)

    def _acknowledge(self) -> None:
        groups, self._delivered = self._delivered, []
        frees = self._outputs.take_frees()
        if groups or frees:
            self._process.send("acknowledge", groups=groups, frees=frees)

    @property
    def name(self) -> str:
        return self._process.name

    def has(self, request: Request) -> bool:
        return self._requests.key_of(request) is not None

    def waits_for(self) -> Sequence[BlockingCall]:
        """The model's own requests that the stub's batch needs to finish, and what its paused requests wait for."""
        if not (self._requests.batches or self.full):
            return ()
        calls = self.calls.blocking() if self._requests.batches else ()
        paused = ((one, one.stream) for one in self._requests.all() if one.stream is not None and one.stream.paused)
        return [*calls, *(wait for request, stream in paused for wait in stream.behind(request))]
