"""A stub without a process: real rings, real doorbells and real memory, and what a model would say is said by the test.

The stub's end is the stub's own `Channel`. The test puts a message there and waits for one turn of the event loop, in
which the parent's end takes it.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from stubserve_stub.runtime.channel import Channel
from stubserve_stub.wire import messages
from stubserve_stub.wire.budget import Grant
from stubserve_stub.wire.messages import Entry, WireTensor
from stubserve_stub.wire.options import NO_OPTIONS
from stubserve_stub.wire.places import InArena, Place
from stubserve_stub.wire.stub_arena import StubArena

from stubserve.errors import ServeError, invalid
from stubserve.inference.request import Request, Response
from stubserve.inference.signature import Signature
from stubserve.inference.statistics import ModelStatistics
from stubserve.inference.tensor import Tensor, drop_blocks
from stubserve.inference.trace import ModelTracing
from stubserve.inference.work import Work
from stubserve.instances import deadlock
from stubserve.instances.stub_requests import UnansweredRequests
from stubserve.instances.work import Results, StubWork
from stubserve.memory.server_memory import Memory
from stubserve.memory.stub_memory import StubMemory
from tests.inference.models import echo
from tests.inference.models import request as make
from tests.stub.runtime.stub_memory import forget_held

from ..real_server import PATIENCE_S

FP32 = 11
LIMIT = 64 << 20
MODEL = echo("target", "FP32", "-1")


def on_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs a test that is a coroutine."""

    @functools.wraps(test)
    def run(*args: Any, **more: Any) -> None:
        asyncio.run(test(*args, **more))  # type: ignore[arg-type]

    return run


async def turn() -> None:
    """Lets the event loop look at all descriptors, and call whoever waits for those that are ready."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


class Process:
    """What the parent needs of a process, for one that there is not."""

    def __init__(self) -> None:
        self.name = "model_0_0"
        self.pid = os.getpid()
        self.doorbell_out, self.answer_doorbell = os.eventfd(0), os.eventfd(0)
        self.doorbell_in = os.eventfd(0, os.EFD_NONBLOCK)
        # Control messages to the stub, and why it was ended
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.condemned: list[str] = []

    def send(self, kind: str, **fields: Any) -> None:
        self.sent.append((kind, fields))

    def condemn(self, why: str) -> None:
        self.condemned.append(why)

    def close(self) -> None:
        for doorbell in (self.doorbell_out, self.answer_doorbell, self.doorbell_in):
            os.close(doorbell)


class Model:
    """A model that is called: remembers its requests. Its answers come from the test, through `answer`."""

    tracing = ModelTracing()
    statistics = ModelStatistics()

    def __init__(self, signature: Signature = MODEL) -> None:
        self.signature = signature
        self.waiters: Sequence[deadlock.Waiter] = [deadlock.FutureWaiter(f"{signature.model}_0")]
        self.requests: list[Request] = []
        self.polled = 0
        self.cancelled: list[Request] = []
        self.reason_down = ""
        # Whether, and with what answer, its `is_ready` is asked before each call
        self.readiness: asyncio.Future[str] | None = None

    def submit(self, request: Request, at_once: bool = False) -> None:
        self.enqueue(request)
        self.poll()

    def enqueue(self, request: Request) -> None:
        self.requests.append(request)

    def poll(self) -> None:
        self.polled += 1

    def cancel(self, request: Request) -> None:
        self.cancelled.append(request)

    def waiters_for(self, request: Request | None) -> Sequence[deadlock.Waiter]:
        running = [] if request is None else [one for one in self.waiters if one.has(request)]
        return running or self.waiters

    def down(self) -> bool:
        return bool(self.reason_down)

    def why_not_ready(self) -> str:
        return self.reason_down

    def checks_readiness(self) -> bool:
        return self.readiness is not None

    async def check_ready(self) -> str:
        return "" if self.readiness is None else await self.readiness

    def answer(self, request: Request, response: Response) -> None:
        """As the room for serving does it: outputs are promised until this returns, inputs until the final response."""
        request.on_response(request, response)
        drop_blocks(response.outputs)
        if response.final:
            drop_blocks(request.inputs)


class Owner:
    """Hears what becomes of the stub's requests."""

    def __init__(self) -> None:
        self.results: list[tuple[list[Request], list[tuple[Request, Response]]]] = []
        self.responses: list[tuple[Request, Response, int]] = []
        self.rescheduled: list[Request] = []

    def on_results(self, instance: object, results: Results) -> None:
        self.results += [(list(work.requests), list(finished)) for work, finished in results]

    def on_response(self, instance: object, request: Request, response: Response, start_ns: int) -> None:
        self.responses.append((request, response, start_ns))

    def when_delivered(self, request: Request, act: Callable[[], None], batch: Collection[Request]) -> None:
        request.when_read(act)

    def on_rescheduled(self, instance: object, request: Request) -> None:
        self.rescheduled.append(request)


class Stub:
    """The parent's end (`work`) and the stub's (`channel`) of one pair of rings. To be used as a context."""

    def __init__(self, models: dict[str, Model] | None = None) -> None:
        self.process = Process()
        self.memory = Memory(LIMIT)
        self.outputs = StubMemory(self.memory.segments)
        self.models = models or {}
        self.owner = Owner()
        process: Any = self.process
        self.work = StubWork(process, self.memory, self.outputs, self)
        self.work.owner = self.owner
        arena = self.memory.arena
        self.channel = Channel(
            StubArena(arena.fd, arena.facts(), self.outputs.index, Grant(LIMIT)),
            self.process.doorbell_out,
            self.process.doorbell_in,
            self.process.answer_doorbell,
        )
        self._ended = False

    def __enter__(self) -> Stub:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._ended:
            self.end()
        forget_held(self.channel)
        self.process.close()
        os.close(self.memory.arena.fd)

    def find(self, name: str, version: str) -> Model:
        if version == "bad":
            raise invalid("a version is a number")
        if name not in self.models:
            raise ServeError(invalid("").code, f"unknown model '{name}'")
        return self.models[name]

    def end(self) -> UnansweredRequests:
        """The process is gone."""
        self._ended = True
        left = self.work.close()
        self.outputs.close()
        return left

    # Requests

    def large(self, name: str = "IN", nbytes: int = 4096) -> Tensor:
        """An input in a block of its own."""
        return Tensor(name, FP32, (1, nbytes // 4), None, self.memory.store(bytes(nbytes)).whole())

    def request(self, *inputs: Tensor, **fields: Any) -> Request:
        return make(*inputs or [small()], id="id", on_response=lambda *_: None, **fields)

    def execute(self, *requests: Request | None, extras: Sequence[Sequence[Tensor]] | None = None) -> int:
        """Gives the stub a batch and reads it there: its number."""
        self.work.execute(Work.of_slots(requests, extras))
        number, _, _ = self.received()
        return number

    def received(self) -> tuple[int, Sequence[int], Sequence[Any]]:
        """The batch that the stub has just been given: (number, frees, requests)."""
        [(kind, number, frees, requests)] = self.channel.receive()
        assert kind == messages.EXECUTE
        return number, frees, requests

    # What the stub says

    async def result(
        self,
        number: int,
        entries: Sequence[Entry],
        held: Sequence[int] = (),
        error: str | None = None,
        took: int = 10**9,
    ) -> None:
        self.channel.send(messages.pack_result(number, 1, 1 + took, entries, held, error))
        await turn()

    async def respond(
        self, number: int, index: int, response: Any, flags: int = messages.FINAL, held: Sequence[int] = ()
    ) -> None:
        self.channel.send(messages.pack_response(number, index, 7, response, flags, held))
        await turn()

    async def say(self, message: bytes) -> None:
        self.channel.send(message)
        await turn()

    async def call(self, number: int, model: str = "target", *inputs: WireTensor, **more: Any) -> None:
        """Has the model make a request."""
        fields = {"blocking": False, "decoupled": False, "version": -1, "released": (), **more}
        request = ("call", NO_OPTIONS, None, None, list(inputs) or [("IN", FP32, (1,), bytes(4))])
        await self.say(messages.pack_call(number, model=model, request=request, **fields))

    async def answers(self) -> list[messages.Answer]:
        """Waits for answers to calls of the model, and takes all that there are."""
        loop = asyncio.get_running_loop()
        rung = loop.create_future()
        doorbell = self.process.answer_doorbell
        loop.add_reader(doorbell, lambda: rung.done() or rung.set_result(None))
        try:
            await asyncio.wait_for(rung, PATIENCE_S)
        finally:
            loop.remove_reader(doorbell)
        return self.channel.receive_answers()

    async def let_go(self) -> None:
        """Has the stub tell of what it has read, as its main thread does when it is poked."""
        self.channel._report_released()
        await turn()

    def output(self, nbytes: int = 4096) -> InArena:
        """Memory of the stub's own, as for an output."""
        return self.channel.memory.place(bytes(nbytes))

    # What must come out even

    @property
    def ingress_bytes(self) -> int:
        """What requests hold of the server's own memory."""
        return self.memory.ingress.live_bytes

    async def given_back(self) -> bool:
        """Whether the segment of the stub, which has ended, is free for another."""
        if self.outputs.emptying is None:
            return False
        await self.outputs.emptying
        return self.memory.segments.take() == self.outputs.index


def small(value: int = 0) -> Tensor:
    return Tensor("IN", FP32, (1,), value.to_bytes(4, "little"))


def answer(*places: Place, name: str = "OUT") -> messages.WireResponse:
    """A response whose outputs are there."""
    return (None, [(name, FP32, (len(place) // 4,) if isinstance(place, bytes) else (place.nbytes // 4,), place)
                   for place in places], None)  # fmt: skip
