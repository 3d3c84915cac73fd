"""One worker as the owner has it: its process, its rings, its memory, and the connections that it is given.

A process ends like a stub's (`instances.stub_process`): its death is an event, and what it says that is no message ends
it. It writes to the server's own output, for it is a part of the server. When the server is gone the kernel ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stubserve_stub.wire import layout, messages
from stubserve_stub.wire.ring import RingReader, RingWriter, read_doorbell

from stubserve.environments.environment import Environment
from stubserve.ingress.messages import handlers_of_owner
from stubserve.ingress.region_news import RegionNews
from stubserve.ingress.words import CLOSED, STATE
from stubserve.ingress.worker_calls import Models, WorkerCalls
from stubserve.instances.answer_ring import AnswerRing
from stubserve.instances.loan import Loan
from stubserve.instances.memory import Memory
from stubserve.instances.stub_memory import StubMemory
from stubserve.instances.stub_process import StubProcess
from stubserve.protocols.client_regions import ClientRegions

log = logging.getLogger("stubserve.server")

# How long it is waited for a worker that is to give memory up.
_YIELD_S = 1.0


class Owner(Models, Protocol):
    """What a worker's clients want of the server."""

    memory: Memory
    regions: ClientRegions | None


@dataclass(frozen=True)
class _Program(Environment):
    """A worker in place of a stub. `more` are its further descriptors."""

    more: Sequence[int] = ()

    def command(self, name: str, arena: int, control: int, doorbells: Sequence[int]) -> list[str]:
        descriptors = map(str, (arena, control, *doorbells, *self.more))
        return [self.interpreter, "-m", "stubserve.ingress", name, *descriptors]


class Worker:
    """A worker's process.

    `receive_passed` receives a request that is passed on over a socket; it says whether there may be more.
    `make_room` has other workers give memory up, and says whether one did. `boot` is what the worker is told of the
    settings. `on_death` is called once with the cause. Raises OSError.
    """

    def __init__(
        self,
        name: str,
        owner: Owner,
        boot: dict[str, Any],
        receive_passed: Callable[[socket.socket], bool],
        make_room: Callable[[Worker], Awaitable[bool]],
        on_death: Callable[[Worker, str], None],
    ) -> None:
        self.name = name
        self.ready = asyncio.Event()
        self.draining = asyncio.Event()
        self.drained = asyncio.Event()
        self.gone = asyncio.Event()
        self._owner = owner
        self._receive_passed = receive_passed
        self._make_room = make_room
        self._yielding: asyncio.Future[bool] | None = None
        self._on_death = on_death
        self._loop = asyncio.get_running_loop()
        # How many connections it has been given
        self._given = 0
        memory = owner.memory
        with contextlib.ExitStack() as undo:
            self._memory = StubMemory(memory.segments, most_unreported=0)
            undo.callback(self._memory.close)
            self._descriptors, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.callback(self._descriptors.close)
            self._descriptors.setblocking(False)
            news, their_news = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.callback(news.close)
            outputs = [os.dup(1), os.dup(2)]
            try:
                more = (theirs.fileno(), their_news.fileno(), *outputs)
                self._process = StubProcess(
                    name,
                    _Program(interpreter=sys.executable, more=more),
                    memory.arena.fd,
                    self._on_message,
                    self._on_process_death,
                    inherited=more,
                )
            finally:
                theirs.close()
                their_news.close()
                for descriptor in outputs:
                    os.close(descriptor)
            undo.pop_all()
        memory.workers.add(self._memory.index)
        self._loan = Loan(self._process, self._memory, memory, self._others_give)
        segment = memory.arena.segment(self._memory.index)
        self._words, self._theirs = words, theirs_words = segment.parent_words, segment.stub_words
        theirs_words[CLOSED] = 0
        self._news = news
        self._region_news = None if owner.regions is None else RegionNews(news, words, owner.regions)
        self._reader = RingReader(segment.ring(layout.RESPONSE_RING), words, layout.RESPONSES_READ)
        ring = RingWriter(
            segment.ring(layout.ANSWER_RING), theirs_words, layout.ANSWERS_READ, self._process.answer_doorbell
        )
        answers = AnswerRing(ring, words, self._memory, memory, self._on_broken_ring, together=True)
        self.calls = WorkerCalls(owner, self._memory, answers, lambda: words[STATE], owner.regions)
        self._handlers = handlers_of_owner(self.calls)
        self._memory.on_many_frees = self._free_soon
        self._loop.add_reader(self._process.doorbell_in, self._on_doorbell)
        self._loop.add_reader(self._descriptors.fileno(), self._on_descriptor)
        self._process.send("boot", segment=self._memory.index, arena=memory.arena.facts(), **boot)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def connections(self) -> int:
        """About how many it has open."""
        return self._given - int(self._theirs[CLOSED])

    def give(self, client: socket.socket) -> bool:
        """Hands a connection over, which the caller closes for itself; False where the worker takes none now."""
        try:
            socket.send_fds(self._descriptors, [b"\0"], [client.fileno()])
        except OSError:
            return False
        self._given += 1
        return True

    def set_state(self, number: int) -> None:
        """What is known of models in another state of the registry is not good any more."""
        self._words[STATE] = number

    async def yields(self) -> bool:
        """Has it give up a client that is slow, for others need the memory; whether there was one."""
        if self._yielding is None:
            self._yielding = self._loop.create_future()
            self.send("yield")
        try:
            return await asyncio.wait_for(asyncio.shield(self._yielding), _YIELD_S)
        except asyncio.TimeoutError:
            return False

    def _has_yielded(self, gave: bool) -> None:
        yielding, self._yielding = self._yielding, None
        if yielding is not None and not yielding.done():
            yielding.set_result(gave)

    def send(self, kind: str, **fields: Any) -> None:
        """Sends a control message."""
        self._process.send(kind, **fields)

    def kill(self) -> None:
        """Ends the process now."""
        self._process.kill()

    # What it tells over the control socket

    def _on_message(self, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "yielded":
            self._has_yielded(bool(message["gave"]))
        elif kind in ("ready", "draining", "drained"):
            getattr(self, kind).set()
        elif not self._loan.on_message(message):
            raise ValueError(f"a worker says nothing like {kind!r}")

    async def _others_give(self) -> bool:
        """Has a client that is slow give way: one of the owner's own, or one of another worker."""
        return self._owner.memory.make_room() or await self._make_room(self)

    def _on_descriptor(self) -> None:
        """A request that is passed on."""
        if not self._receive_passed(self._descriptors):
            self._loop.remove_reader(self._descriptors.fileno())

    # What it tells over its ring

    def _on_doorbell(self) -> None:
        try:
            count, _ = read_doorbell(self._process.doorbell_in)
        except BlockingIOError:
            return
        try:
            messages.deliver(self._handlers, self._reader.take(count, self._memory.message))
        except Exception:
            log.exception("what %s (pid %d) has put into its ring cannot be read", self.name, self.pid)
            self._loop.remove_reader(self._process.doorbell_in)
            self._process.condemn("what it has put into its ring is no message")
        self.calls.schedule()

    def _on_broken_ring(self) -> None:
        self._process.condemn("what it says of its ring makes no sense")

    def _free_soon(self) -> None:
        """With an answer, if there is one in this turn of the event loop."""
        self._loop.call_soon(self._free)

    def _free(self) -> None:
        if not self.gone.is_set() and self._memory.has_frees:
            self.calls.free_now()

    def _on_process_death(self, cause: str) -> None:
        self.gone.set()
        memory = self._owner.memory
        self._loop.remove_reader(self._process.doorbell_in)
        self._loop.remove_reader(self._descriptors.fileno())
        self._descriptors.close()
        if self._region_news is not None:
            self._region_news.close()
        self._news.close()
        self._loan.close()
        memory.workers.discard(self._memory.index)
        self._has_yielded(False)
        self.calls.close()
        self._process.close_doorbells()
        self._memory.close()
        for event in (self.ready, self.draining, self.drained):
            event.set()
        self._on_death(self, cause)
