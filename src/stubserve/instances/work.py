"""The requests that a stub has: batches out, answers back, over its rings.

Each wake-up takes everything that is there. A request that its model answers through a sender is open until the final
response, which may come before the result of its batch or long after it; the stub is free for the next batch with the
result.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from stubserve_stub.wire import layout, messages
from stubserve_stub.wire.ring import MAX_RECORD, SPILLED, RingReader, RingWriter, read_doorbell

from stubserve.errors import internal
from stubserve.inference.request import Request, Response
from stubserve.inference.tensor import drop_blocks
from stubserve.inference.work import Work
from stubserve.instances.answer_ring import AnswerRing
from stubserve.instances.batch import Batch, hold_inputs, pack_batch, read_response, read_result
from stubserve.instances.bls import Models, StubCall, StubCalls
from stubserve.instances.health import Health
from stubserve.instances.memory import Memory
from stubserve.instances.stub_memory import StubMemory
from stubserve.instances.stub_process import StubProcess

log = logging.getLogger("stubserve.instances")

_PATIENCE_S = 30.0
_REPORT_FREES_ABOVE = 32 << 20

# From this size on, moving a request's bytes takes longer than a stub would look for the next one.
_LARGE_BYTES = 128 << 10


def _is_large(request: Request) -> bool:
    return any(tensor.nbytes >= _LARGE_BYTES for tensor in request.inputs)


class WorkOwner(Protocol):
    """Who is told what becomes of a stub's requests."""

    def on_results(self, work: Work, finished: list[tuple[Request, Response]]) -> None:
        """This work has run, and the stub is free for the next; with the answers that came of it."""

    def on_response(self, request: Request, response: Response, start_ns: int) -> None:
        """A sender's response, before or after its batch has run; the model sent it at `start_ns`."""

    def when_passed_on(self, request: Request, act: Callable[[], None], batch: Collection[Request]) -> None:
        """Has `act` called when all responses to `request` so far are with its reader, and that has kept up.

        `batch` are the requests of its batch while that is being executed.
        """

    def on_rescheduled(self, request: Request) -> None:
        """The model wants to execute this request once more; told before the results of its batch."""

    def on_death(self, cause: str, unfinished: list[Request], open_: list[Request]) -> None:
        """The stub is gone, and with it the requests of a batch that ran, and those that senders had left to answer."""


class StubWork:
    """One stub's. It is also the stub as one that may wait for others (`waiting.Waiter`)."""

    def __init__(
        self, process: StubProcess, memory: Memory, outputs: StubMemory, models: Models, health: Health
    ) -> None:
        self.owner: WorkOwner | None = None
        self._process = process
        self._memory = memory
        self._outputs = outputs
        self._health = health
        self._loop = asyncio.get_running_loop()
        segment = memory.arena.segment(outputs.index)
        self._words = segment.words
        rings = (layout.REQUEST_RING, layout.RESPONSE_RING, layout.ANSWER_RING)
        requests, responses, answers = (segment.view[start : start + layout.RING_BYTES] for start in rings)
        self._writer = RingWriter(requests, process.doorbell_out)
        self._reader = RingReader(responses)
        ring = AnswerRing(RingWriter(answers, process.answer_doorbell), segment.words, outputs, memory)
        self.calls = StubCalls(self, models, outputs, ring, memory)
        # Batches that the stub has, by number
        self._in_flight: dict[int, Batch] = {}
        # Requests of batches that have run which senders have yet to answer, by (batch, index), and the other way round
        self._open: dict[tuple[int, int], Request] = {}
        self._keys: dict[Request, tuple[int, int]] = {}
        # Groups of responses that have been passed on, of which the stub is still to be told
        self._passed_on: list[tuple[int, int]] = []
        self._batches = 0
        self._announced = 0
        # Nothing more is taken from the stub, nor should it be given anything
        self.over = False
        self._hang_watch: asyncio.TimerHandle | None = None
        self._loop.add_reader(process.doorbell_in, self._on_doorbell)

    def execute(self, work: Work) -> None:
        """Hands work to the stub, as a batch. Raises ServeError (503) when even its description finds no memory.

        Where it raises anything the stub has not got the batch.
        """
        number = self._batches = self._batches + 1
        frees = self._outputs.take_frees()
        sent = work.as_sent()
        spilled = None
        flags = 0
        try:
            data = pack_batch(number, frees, sent)
            if len(data) > MAX_RECORD:
                spilled = self._memory.store(data)
                data = messages.pack((spilled.offset, spilled.nbytes))
                flags = SPILLED
            alone = len(sent) == 1 and self._memory.batches_in_flight == 0
            self._words[layout.ALONE] = alone and not _is_large(sent[0])
            self._put(data, flags)
        except Exception:
            self._outputs.keep_frees(frees)  # this message will not tell the stub of them, so the next one must
            if spilled is not None:
                spilled.drop()
            raise
        # Only now: whoever gets an exception answers the requests.
        self._in_flight[number] = Batch(work, sent, spilled)
        self._memory.batches_in_flight += 1
        if self._hang_watch is None:
            self._hang_watch = self._loop.call_later(_PATIENCE_S, self._watch_for_hang)

    @property
    def is_empty(self) -> bool:
        """Whether it has neither a batch nor a request that senders have yet to answer."""
        return not self._in_flight and not self._open

    def cancel(self, request: Request) -> None:
        """Lets the model see that nobody waits for a request that it has."""
        key = self._keys.get(request)
        if key is None:
            for number, batch in self._in_flight.items():
                if request in batch.work.slots:
                    key = (number, batch.work.slots.index(request))
        if key is not None:
            self._process.send("cancel", batch=key[0], indices=[key[1]])

    def finish(self) -> None:
        """Lets the model finalize, and the stub end, behind the batches that it has."""
        self._put(messages.pack((messages.STOP,)), 0)

    def end(self) -> tuple[list[Request], list[Request]]:
        """The stub is gone: its requests without an answer, those of its batches and those left open."""
        if not self.over:
            self.over = True
            # Results that the stub sent before it died are still good. (A model may have made the doorbell block.)
            os.set_blocking(self._process.doorbell_in, False)
            self._on_doorbell()
        self._loop.remove_reader(self._process.doorbell_in)
        self.calls.close()
        if self._hang_watch is not None:
            self._hang_watch.cancel()
        unfinished: list[Request] = []
        for batch in self._in_flight.values():
            unfinished.extend(batch.unanswered())
            if batch.spilled is not None:
                batch.spilled.drop()
        open_ = list(self._open.values())
        self._open.clear()
        self._keys.clear()
        self._memory.batches_in_flight -= len(self._in_flight)
        self._in_flight.clear()
        return unfinished, open_

    def _watch_for_hang(self) -> None:
        """Tells the log about a batch that takes long; wakes only while there are batches."""
        self._hang_watch = None
        if not self._in_flight:
            return
        doing, seconds = self._health.state()
        if doing == "executing" and seconds >= _PATIENCE_S:
            log.warning(
                "stub '%s' has been executing a batch of %d requests for %.0f s; 'py-spy dump --pid %d' shows where",
                self.name, len(next(iter(self._in_flight.values())).work.requests), seconds, self._process.pid,
            )  # fmt: skip
        self._hang_watch = self._loop.call_later(_PATIENCE_S, self._watch_for_hang)

    def _put(self, data: bytes, flags: int) -> None:
        # Two batches at most are in flight, and a record is at most a quarter of the ring: there is always room, unless
        # something has written over where the stub says how far it has read.
        if not self._writer.put(data, flags):
            self._process.condemn("it has lost its place in its ring")
            raise internal(f"the request ring of stub '{self.name}' is full")
        self._writer.announce()
        self._announced += 1
        self._words[layout.ANNOUNCED] = self._announced

    # Back

    def _on_doorbell(self) -> None:
        try:
            count, _ = read_doorbell(self._process.doorbell_in)
        except BlockingIOError:
            return
        try:
            self._take(count)
        except Exception:
            # The requests of what cannot be read would never be answered.
            log.exception("what stub '%s' (pid %d) has put into its ring cannot be read", self.name, self._process.pid)
            self.over = True
            self._loop.remove_reader(self._process.doorbell_in)
            self._process.condemn(
                "what it has put into its ring is no message; does its model write to memory of others?"
            )

    def _take(self, count: int) -> None:
        for message in self._reader.take(count, self._decode):
            if message[0] == messages.RESULT:
                self._finish(message)
            elif message[0] == messages.RESPONSE:
                self._respond(message)
            elif message[0] == messages.RELEASED:
                self._outputs.release(message[1])
            else:
                self.calls.on_message(message, self._requests)
        self.calls.schedule()
        if self._outputs.unreported_bytes > _REPORT_FREES_ABOVE:
            # Not through the ring: the stub's main thread may be busy for long, and these may be many.
            self._acknowledge()

    def _decode(self, data: memoryview, flags: int) -> tuple[Any, ...]:
        message: tuple[Any, ...] = messages.unpack(data)
        if flags & SPILLED:
            block = self._outputs.output(*message)
            message = messages.unpack(block.view)
            block.drop()
        return message

    def _finish(self, message: tuple[Any, ...]) -> None:
        number = message[1]
        batch = self._in_flight[number]
        finished, left = read_result(message, batch, self._outputs, self._process.name)
        # Until here the message may turn out to be none, and the batch must be found by `end`.
        del self._in_flight[number]
        self._memory.batches_in_flight -= 1
        if batch.spilled is not None:
            batch.spilled.drop()
        owner = self.owner
        if not left:
            if owner is not None:
                owner.on_results(batch.work, finished)
            return
        rescheduled = []
        for index, entry in left:
            request = batch.work.slots[index]
            if request is None:
                continue
            if entry == messages.RESCHEDULED:
                rescheduled.append(request)
            else:
                self._open[number, index] = request
                self._keys[request] = (number, index)
        if owner is not None:
            for request in rescheduled:
                owner.on_rescheduled(request)
            owner.on_results(batch.work, finished)

    def _respond(self, message: tuple[Any, ...]) -> None:
        _, number, index, start_ns, _, flags, held = message
        response = read_response(message, self._outputs, self._process.name)
        key = (number, index)
        batch = self._in_flight.get(number)
        request = self._open.get(key) if batch is None else batch.work.slots[index]
        if request is None or self.owner is None:
            # Sent while the request was being answered in another way.
            drop_blocks(response.outputs)
            return
        if held:
            hold_inputs((request,), held, self._outputs)
        if flags & messages.FINAL:
            if batch is not None:
                batch.answered = batch.answered or set()
                batch.answered.add(index)
            else:
                del self._open[key], self._keys[request]
        self.owner.on_response(request, response, start_ns)
        if flags & messages.ACKNOWLEDGE:
            running = () if batch is None else batch.work.requests
            self.owner.when_passed_on(request, functools.partial(self._pass_on, key), running)

    def _pass_on(self, key: tuple[int, int]) -> None:
        """A group of responses has been passed on to its reader; told with others of this turn of the event loop."""
        if not self._passed_on:
            self._loop.call_soon(self._acknowledge)
        self._passed_on.append(key)

    def _acknowledge(self) -> None:
        groups, self._passed_on = self._passed_on, []
        frees = self._outputs.take_frees()
        if groups or frees:
            self._process.send("acknowledge", groups=groups, frees=frees)

    # As one that may wait for others

    @property
    def name(self) -> str:
        return self._process.name

    def has(self, request: Request) -> bool:
        """Whether the stub has this request."""
        return request in self._requests()

    def waits_for(self) -> Sequence[StubCall]:
        """The requests of its own model without whose answers the batch that the stub executes does not finish."""
        return self.calls.blocking() if self._in_flight else ()

    def _requests(self) -> list[Request]:
        running = [request for batch in self._in_flight.values() for request in batch.work.requests]
        return [*running, *self._open.values()]
