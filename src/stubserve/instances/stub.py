"""One life of a stub, from its start to its death, as the parent drives it.

The handshake runs over the control socket: the stub imports its model ("imported"), then either completes the model's
configuration and ends ("completed"), or initializes the model ("ready"). A stage that fails says why ("failed"); a stub
that dies instead leaves its cause of death and the end of its stderr in the error. No stage has a time limit, as
upstream has none (a model may load for an hour); one that takes long is mentioned in the log.

After that, batches go out and results come in over the rings; each wake-up takes everything that is there. A request
that its model answers through a sender is open until the final response, which may come before the result of its batch
or long after it; the stub is free for the next batch with the result.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import psutil
from stubserve_stub.wire import layout, messages
from stubserve_stub.wire.ring import MAX_RECORD, SPILLED, RingReader, RingWriter, read_doorbell

from stubserve.environments.environment import Environment
from stubserve.environments.probe import explain, explain_start
from stubserve.errors import internal
from stubserve.inference.request import Request, Response
from stubserve.instances.batch import Batch, hold_inputs, pack_batch, read_response, read_result
from stubserve.instances.bls import Call, StubCalls
from stubserve.instances.memory import Memory
from stubserve.instances.metrics import StubMetrics
from stubserve.instances.services import Services
from stubserve.instances.stub_memory import StubMemory
from stubserve.instances.stub_process import StubProcess

log = logging.getLogger("stubserve.instances")

_PATIENCE_S = 30.0
_REPORT_FREES_ABOVE = 32 << 20
_QUICK_NS = 200_000
_QUICK_BATCHES = 32

_HEALTH_NAMES = {0: "booting", 1: "loading", 2: "idle", 3: "executing", 4: "finalizing"}

# From this size on, moving a request's bytes takes longer than a stub would look for the next one.
_LARGE_BYTES = 128 << 10


def _is_large(request: Request) -> bool:
    return any(tensor.nbytes >= _LARGE_BYTES for tensor in request.inputs)


class StubOwner(Protocol):
    """Who is told what a stub does."""

    def on_results(self, stub: Stub, requests: list[Request], finished: list[tuple[Request, Response]]) -> None:
        """A batch of these requests has run, and the stub is free for the next; with the answers that came of it."""

    def on_response(self, stub: Stub, request: Request, response: Response, start_ns: int) -> None:
        """A sender's response, before or after its batch has run; the model sent it at `start_ns`."""

    def on_rescheduled(self, stub: Stub, request: Request) -> None:
        """The model wants to execute this request once more; told before the results of its batch."""

    def on_death(self, stub: Stub, cause: str, unfinished: list[Request], open_: list[Request]) -> None:
        """The stub is gone, and with it the requests of a batch that ran, and those that senders had left to answer."""


class Stub:
    """A stub process with its rings and memory."""

    def __init__(
        self,
        name: str,
        environment: Environment,
        memory: Memory,
        boot: dict[str, Any],
        on_log: Callable[[dict[str, Any]], None],
        services: Services,
        terminal: bool = False,
    ) -> None:
        self.name = name
        self.owner: StubOwner | None = None
        self.started_at = time.monotonic()
        self.death: str | None = None
        self._died_while = ""
        self.facts: dict[str, Any] = {}
        self.checks_readiness = False
        self._memory = memory
        self._environment = environment
        self._outputs = StubMemory(memory.segments)
        self._segment = memory.arena.segment(self._outputs.index)
        self._loop = asyncio.get_running_loop()
        self._on_log = on_log
        self._steps: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._gone = asyncio.Event()
        # Answers to questions of the model that are being looked for
        self._answering: set[asyncio.Task[None]] = set()
        self._readiness: asyncio.Future[dict[str, Any]] | None = None
        # Batches that the stub has, by number
        self._in_flight: dict[int, Batch] = {}
        # Requests of batches that have run which senders have yet to answer, by (batch, index), and the other way round
        self._open: dict[tuple[int, int], Request] = {}
        self._keys: dict[Request, tuple[int, int]] = {}
        # Groups of responses that have been passed on, of which the stub is still to be told
        self._passed_on: list[tuple[int, int]] = []
        self._batches = 0
        self._quick_in_a_row = 0
        self._hang_watch: asyncio.TimerHandle | None = None
        try:
            self._process = StubProcess(
                name, environment, memory.arena.fd, self._on_message, self._on_process_death, terminal
            )
        except OSError as error:
            self._outputs.close()
            raise internal(f"Stub process '{name}' cannot be started: {explain_start(environment, error)}") from None
        start = layout.REQUEST_RING
        self._writer = RingWriter(self._segment.view[start : start + layout.RING_BYTES], self._process.doorbell_out)
        start = layout.RESPONSE_RING
        self._reader = RingReader(self._segment.view[start : start + layout.RING_BYTES])
        start = layout.ANSWER_RING
        answers = RingWriter(self._segment.view[start : start + layout.RING_BYTES], self._process.answer_doorbell)
        self._calls = StubCalls(self, services.models, self._outputs, answers, self._segment.words, memory.store)
        self._loop.add_reader(self._process.doorbell_in, self._on_doorbell)
        self._metrics = StubMetrics(services.metrics)
        self._services = services
        services.metrics.sources.add(self._process.read_messages)
        services.log_settings.watchers.add(self._tell_log_levels)
        self._tell_log_levels()
        self._process.send("boot", segment=self._outputs.index, **boot)

    @property
    def pid(self) -> int:
        return self._process.pid

    def health(self) -> tuple[str, float]:
        """What the stub says it is doing, and for how many seconds."""
        words = self._segment.words
        since = words[layout.HEALTH_SINCE_NS]
        seconds = (time.monotonic_ns() - since) / 1e9 if since else time.monotonic() - self.started_at
        return _HEALTH_NAMES.get(words[layout.HEALTH_STATE], "unknown"), seconds

    def memory(self) -> int:
        """The bytes of memory that are the process's own, 0 when it is gone."""
        try:
            memory = psutil.Process(self.pid).memory_info()
        except psutil.Error:
            return 0
        # `shared` is what is backed by a file: libraries, and the arena.
        return int(memory.rss - memory.shared)

    # Loading

    async def imported(self) -> bool:
        """Waits until the model is imported; whether its class has `auto_complete_config`. Raises ServeError."""
        self.facts = await self._step("imported", "importing its model")
        return bool(self.facts["completes_config"])

    async def complete(self, model: str, config_json: str) -> str:
        """Has the model complete its configuration (JSON in, JSON out); the stub ends with that. Raises ServeError."""
        self._process.send("complete", model=model, config=config_json)
        answer = await self._step("completed", "in auto_complete_config")
        completed: str = answer["config"]
        return completed

    async def initialize(self, arguments: dict[str, str], outputs: list[str], decoupled: bool) -> None:
        """Initializes the model; after that the stub takes batches. Raises ServeError."""
        self._process.send(
            "initialize",
            instance=self.name,
            arguments=arguments,
            outputs=outputs,
            decoupled=decoupled,
        )
        answer = await self._step("ready", "in initialize")
        self.checks_readiness = answer["checks_readiness"]

    async def _step(self, kind: str, doing: str) -> dict[str, Any]:
        waited = 0.0
        while True:
            try:
                message = await asyncio.wait_for(self._steps.get(), _PATIENCE_S)
                break
            except asyncio.TimeoutError:
                waited += _PATIENCE_S
                log.warning("stub '%s' (pid %d) has been %s for %.0f s", self.name, self.pid, doing, waited)
        if message is None:
            if self._died_while == "booting":
                # It was not the model: its code has not been reached.
                cause = f"{self.death} (pid {self.pid})"
                cause = await asyncio.to_thread(explain, self._environment, cause, self._process.stderr_text())
                raise internal(f"Stub process '{self.name}' cannot be started: {cause}")
            text = f"Stub process '{self.name}' is not healthy: {self.death} while {doing} (pid {self.pid})."
            tail = self._process.stderr_text()
            raise internal(text + (f" Its stderr ends with:\n{tail}" if tail else ""))
        if message["kind"] == "failed":
            raise internal(message["error"])
        assert message["kind"] == kind, message
        return message

    # Serving

    def execute(self, requests: list[Request]) -> None:
        """Hands a batch to the stub. Raises ServeError (503) when even its description finds no memory."""
        number = self._batches = self._batches + 1
        frees = self._outputs.take_frees()
        spilled = None
        flags = 0
        try:
            data = pack_batch(number, frees, requests)
            if len(data) > MAX_RECORD:
                spilled = self._memory.store(data)
                data = messages.pack((spilled.offset, spilled.nbytes))
                flags = SPILLED
        except Exception:
            self._outputs.keep_frees(frees)  # this message will not tell the stub of them, so the next one must
            raise
        self._in_flight[number] = Batch(requests, spilled)
        if self._hang_watch is None:
            self._hang_watch = self._loop.call_later(_PATIENCE_S, self._watch_for_hang)
        self._memory.batches_in_flight += 1
        alone = len(requests) == 1 and self._memory.batches_in_flight == 1
        self._segment.words[layout.ALONE] = alone and not _is_large(requests[0])
        self._put(data, flags)

    @property
    def has_room(self) -> bool:
        """Whether the next batch should go out now: at once to an idle stub, and one ahead to one that is always quick.

        Where executing takes less time than telling parent and stub of each other, the stub would mostly wait. A slower
        model is better served with the larger batch that gathers while it executes.
        """
        batches = len(self._in_flight)
        return batches == 0 or (batches == 1 and self._quick_in_a_row >= _QUICK_BATCHES)

    def cancel(self, request: Request) -> None:
        """Lets the model see that nobody waits for a request that it has."""
        key = self._keys.get(request)
        if key is None:
            for number, batch in self._in_flight.items():
                if request in batch.requests:
                    key = (number, batch.requests.index(request))
        if key is not None:
            self._process.send("cancel", batch=key[0], indices=[key[1]])

    async def is_ready(self) -> tuple[bool, str]:
        """Asks the model's `is_ready`: the answer, and the reason of a no.

        There is one question at a time; whoever asks meanwhile waits for the same answer (as upstream). How long to
        wait is the caller's business: when it gives up, the question stays open.
        """
        if not self.checks_readiness:
            return True, ""
        if self._readiness is None:
            self._readiness = self._loop.create_future()
            self._process.send("is_ready")
        answer = await asyncio.shield(self._readiness)
        return answer["ready"], answer["reason"]

    def _watch_for_hang(self) -> None:
        """Tells the log about a batch that takes long; wakes only while there are batches."""
        self._hang_watch = None
        if not self._in_flight or self.death is not None:
            return
        doing, seconds = self.health()
        if doing == "executing" and seconds >= _PATIENCE_S:
            log.warning(
                "stub '%s' has been executing a batch of %d requests for %.0f s; 'py-spy dump --pid %d' shows where",
                self.name, len(next(iter(self._in_flight.values())).requests), seconds, self.pid,
            )  # fmt: skip
        self._hang_watch = self._loop.call_later(_PATIENCE_S, self._watch_for_hang)

    def _put(self, data: bytes, flags: int) -> None:
        # Two batches at most are in flight, and a record is at most a quarter of the ring: there is always room.
        if not self._writer.put(data, flags):
            raise internal(f"the request ring of stub '{self.name}' is full")
        self._writer.announce()
        self._segment.words[layout.ANNOUNCED] += 1

    def _on_doorbell(self) -> None:
        try:
            count, _ = read_doorbell(self._process.doorbell_in)
        except BlockingIOError:
            return
        for message in self._reader.take(count, self._decode):
            if message[0] == messages.RESULT:
                self._finish(message)
            elif message[0] == messages.RESPONSE:
                self._respond(message)
            elif message[0] == messages.RELEASED:
                self._outputs.release(message[1])
            else:
                self._calls.on_message(message, self._requests)
        if self._outputs.unreported_bytes > _REPORT_FREES_ABOVE:
            if self._open or self._in_flight:
                # The stub's main thread may be busy for long, and its ring fill up.
                self._acknowledge()
            else:
                self._put(messages.pack((messages.FREE, self._outputs.take_frees())), 0)

    def _decode(self, data: memoryview, flags: int) -> tuple[Any, ...]:
        message: tuple[Any, ...] = messages.unpack(data)
        if flags & SPILLED:
            block = self._outputs.output(*message)
            message = messages.unpack(block.view)
            block.drop()
        return message

    def _finish(self, message: tuple[Any, ...]) -> None:
        number = message[1]
        batch = self._in_flight.pop(number)
        self._quick_in_a_row = self._quick_in_a_row + 1 if message[3] - message[2] < _QUICK_NS else 0
        self._memory.batches_in_flight -= 1
        if batch.spilled is not None:
            batch.spilled.drop()
        finished, left = read_result(message, batch, self._outputs, self.name)
        owner = self.owner
        if not left:
            if owner is not None:
                owner.on_results(self, batch.requests, finished)
            return
        rescheduled = []
        for index, entry in left:
            request = batch.requests[index]
            if entry == messages.RESCHEDULED:
                rescheduled.append(request)
            else:
                self._open[number, index] = request
                self._keys[request] = (number, index)
        if owner is not None:
            for request in rescheduled:
                owner.on_rescheduled(self, request)
            owner.on_results(self, batch.requests, finished)

    def _respond(self, message: tuple[Any, ...]) -> None:
        _, number, index, start_ns, _, flags, held = message
        response = read_response(message, self._outputs, self.name)
        batch = self._in_flight.get(number)
        if batch is not None:
            request: Request | None = batch.requests[index]
            if flags & messages.FINAL:
                batch.answered = batch.answered or set()
                batch.answered.add(index)
        elif flags & messages.FINAL:
            request = self._open.pop((number, index), None)
            self._keys.pop(request, None)  # type: ignore[arg-type]  # None is no key
        else:
            request = self._open.get((number, index))
        if request is None or self.owner is None:
            # Sent while the request was being answered in another way.
            for tensor in response.outputs:
                if tensor.block is not None:
                    tensor.block.drop()
            return
        if held:
            hold_inputs((request,), held, self._outputs)
        self.owner.on_response(self, request, response, start_ns)
        if flags & messages.ACKNOWLEDGE:
            key = (number, index)
            if request.stream is not None and request.stream.paused:
                request.stream.owed.append(functools.partial(self._pass_on, key))
            else:
                self._pass_on(key)

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

    # What it waits for

    def has(self, request: Request) -> bool:
        """Whether the stub has this request."""
        return request in self._requests()

    def waits_for(self) -> Sequence[Call]:
        """The requests of its own model without whose answers the batch that the stub executes does not finish."""
        return self._calls.blocking() if self._in_flight else ()

    def _requests(self) -> list[Request]:
        running = [request for batch in self._in_flight.values() for request in batch.requests]
        return [*running, *self._open.values()]

    # Messages and death

    def _on_message(self, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "log":
            self._on_log(message)
        elif kind.startswith("metric"):
            self._metrics.on_message(message)
        elif kind == "readiness":
            self._answer_readiness(message)
        elif kind == "ask" and message["question"].startswith("metric"):
            self._process.send("told", number=message["number"], **self._metrics.answer(message))
        elif kind == "ask":
            answering = self._loop.create_task(self._tell(message))
            self._answering.add(answering)
            answering.add_done_callback(self._answering.discard)
        elif kind != "finalized":
            self._steps.put_nowait(message)

    async def _tell(self, question: dict[str, Any]) -> None:
        answer = await self._calls.tell(question)
        self._process.send("told", number=question["number"], **answer)

    def _tell_log_levels(self) -> None:
        self._segment.words[layout.LOG_LEVELS] = self._services.log_settings.model_levels()

    def _answer_readiness(self, answer: dict[str, Any]) -> None:
        question, self._readiness = self._readiness, None
        if question is not None and not question.done():
            question.set_result(answer)

    def _on_process_death(self, cause: str) -> None:
        # Results that the stub sent before it died are still good.
        if self.death is None:
            self._on_doorbell()
        self.death = cause
        self._died_while = self.health()[0]  # its segment may be given away before anybody asks
        self._calls.close()
        for answering in self._answering:
            answering.cancel()
        self._metrics.close()
        self._services.metrics.sources.discard(self._process.read_messages)
        self._services.log_settings.watchers.discard(self._tell_log_levels)
        self._loop.remove_reader(self._process.doorbell_in)
        self._process.close_doorbells()
        self._steps.put_nowait(None)
        self._answer_readiness({"ready": False, "reason": f"Stub process '{self.name}' is not healthy: {cause}."})
        unfinished = []
        for batch in self._in_flight.values():
            unfinished.extend(batch.unanswered())
            if batch.spilled is not None:
                batch.spilled.drop()
        open_ = list(self._open.values())
        self._open.clear()
        self._keys.clear()
        self._memory.batches_in_flight -= len(self._in_flight)
        self._in_flight.clear()
        if self._hang_watch is not None:
            self._hang_watch.cancel()
        self._gone.set()
        if self.owner is not None:
            self.owner.on_death(self, cause, unfinished, open_)
        self._outputs.close()

    async def stop(self, timeout_s: float) -> bool:
        """Lets the model finalize and the stub end; kills it after `timeout_s`. Whether it ended by itself."""
        if self.death is not None:
            return True
        self._put(messages.pack((messages.STOP,)), 0)
        try:
            await asyncio.wait_for(self._gone.wait(), timeout_s)
        except asyncio.TimeoutError:
            await self.kill()
            return False
        return True

    async def kill(self) -> None:
        """Ends the stub at once and waits until it is gone."""
        if self.death is None:
            self._process.kill()
        await self._gone.wait()
