"""The process of a worker: how it begins, what it is made of, and how it ends."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import gc
import os
import signal
import socket
import ssl
from typing import Any, cast

import uvloop
from stubserve_stub.wire.arena import Arena
from stubserve_stub.wire.budget import Grant
from stubserve_stub.wire.messages import pack
from uvicorn.server import ServerState

from stubserve import malloc
from stubserve.inference.served_model import ServedModel
from stubserve.ingress.catalogue import Catalogue, Contexts
from stubserve.ingress.control import Control, end_now
from stubserve.ingress.descriptors import receive
from stubserve.ingress.line import Line
from stubserve.ingress.memory import WorkerMemory
from stubserve.ingress.passing_on import PassingOn
from stubserve.ingress.regions import RemoteRegions
from stubserve.ingress.settings import WorkerSettings, settings_of
from stubserve.ingress.words import CLOSED, STATE
from stubserve.observability import logs
from stubserve.observability.output import output
from stubserve.protocols.access import KINDS
from stubserve.protocols.arrival import Arrivals
from stubserve.protocols.doorway import Doorway
from stubserve.protocols.fair_queues import OFF, FairQueues, Peer
from stubserve.protocols.forwarding import HeaderForwarding
from stubserve.protocols.http.access import http_access
from stubserve.protocols.http.connection import HttpConnection
from stubserve.protocols.http.cors import Cors
from stubserve.protocols.http.head import RequestHead
from stubserve.protocols.http.json_process import JsonProcess
from stubserve.protocols.http.shared import Connections
from stubserve.protocols.offload import Offload
from stubserve.protocols.open_connections import OpenConnection, OpenConnections
from stubserve.protocols.pressure import Pressure
from stubserve.protocols.stall import Pace
from stubserve.protocols.tls import tls_context
from stubserve.protocols.tokens import Tokens

_PR_SET_PDEATHSIG = 1


class WorkerServer:
    """What connections find here of a server (`protocols.inference_server.InferenceServer`)."""

    def __init__(
        self,
        settings: WorkerSettings,
        memory: WorkerMemory,
        catalogue: Catalogue,
        regions: RemoteRegions | None,
    ) -> None:
        self.regions = regions
        ways = settings.clients.fair_queues
        self.fair_queues = None if ways == OFF else FairQueues(ways)
        http, clients = settings.http, settings.clients
        self.max_input_size = http.max_input_size
        self.grpc_port = settings.grpc_port
        pattern = http.header_forward_pattern
        self.http_forwarding = HeaderForwarding(pattern) if pattern else None
        self._catalogue = catalogue
        self.block = memory.block
        self.store = memory.store
        self.heap = memory.heap
        self.pressure = Pressure()
        memory.make_room = self.pressure.make_room
        self.arrivals = Arrivals(memory, self.pressure, settings.share)
        self.pace = Pace(clients.min_rate, clients.request_timeout_secs)
        self.send_timeout_s: float = clients.send_timeout_secs
        self.idle_timeout_s: float = clients.idle_timeout_secs
        self.max_connections: int = clients.max_connections
        self.offload = Offload()
        self.large_json = JsonProcess(memory.block)

    def passes_on(self, head: RequestHead) -> bool:
        """Whether the owner is to answer a request: anything but inference with a model that is known here."""
        route = head.infer or head.generate
        return route is None or self._catalogue.find(*route) is None

    def find_model(self, name: str, version: str) -> ServedModel:
        """The model. Raises ServeError where it was never known."""
        return cast(ServedModel, self._catalogue.find(name, version) or self._catalogue.latest(name, version))


class CountedConnections(OpenConnections):
    """A worker's connections, which tell the owner how many have been closed, in `words`."""

    def __init__(self, words: Any, idle_timeout_s: float, most: int, workers: int) -> None:
        super().__init__(idle_timeout_s, most, workers)
        self._words = words

    def forget(self, connection: OpenConnection) -> None:
        super().forget(connection)
        self.count()

    def count(self) -> None:
        """One has been closed."""
        self._words[CLOSED] += 1


def run(
    arena: int,
    control: int,
    requests: int,
    responses: int,
    answers: int,
    descriptors: int,
    news: int,
    out: int,
    err: int,
) -> None:
    """Is a worker until the owner says "end", or is gone. The arguments are inherited descriptors.

    `responses` is the doorbell of the owner, `answers` that of the worker; `descriptors` brings clients, `news` what
    there is to know of their shared memory.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM):
        # The owner is told, too, and says when it is time.
        signal.signal(number, signal.SIG_IGN)
    os.dup2(out, 1)
    os.dup2(err, 2)
    for descriptor in (arena, control, requests, responses, answers, descriptors, news):
        os.set_inheritable(descriptor, False)
    os.close(out)
    os.close(err)
    malloc.give_back_large()
    line = Control(control, end_now)
    boot = line.wait_for("boot")
    gc.freeze()
    sockets = [socket.socket(fileno=descriptor) for descriptor in (descriptors, news)]
    uvloop.run(_serve(boot, line, arena, responses, answers, *sockets))
    output.close()


async def _serve(
    boot: dict[str, Any],
    control: Control,
    fd: int,
    doorbell_out: int,
    doorbell_in: int,
    descriptors: socket.socket,
    news: socket.socket,
) -> None:
    settings = settings_of(boot)
    log_settings = logs.configure(settings.logging)
    grant = Grant()
    facts, own = boot["arena"], boot["segment"]
    arena = Arena(fd, facts["limit"], facts["span"], grant)
    segment = arena.segment(own)
    memory = WorkerMemory(arena, own, grant, control, settings.workers)
    catalogue = Catalogue(segment.parent_words, STATE, Contexts() if settings.wants_contexts else None)
    regions = RemoteRegions(news, segment.parent_words) if settings.clients.shm else None
    catalogue.line = line = Line(memory, segment, doorbell_out, doorbell_in, catalogue.on_description, regions)
    memory.on_freed = line.on_freed
    http, auth = settings.http, settings.auth
    tokens = None if auth.token_file is None else Tokens(auth.token_file, KINDS)
    server = WorkerServer(settings, memory, catalogue, regions)
    cors = Cors(http.cors_origins) if http.cors_origins else None
    access = http_access(http.restricted, tokens, auth.open_kinds)
    connections = Connections(server, cors, settings.logging.access, access)
    connections.open = open_ = CountedConnections(
        segment.stub_words, server.idle_timeout_s, server.max_connections, settings.workers
    )
    connections.passes_on = server.passes_on
    descriptors.setblocking(False)

    def send(request: socket.socket, peer: Peer | None) -> None:
        socket.send_fds(descriptors, [pack(peer)], [request.fileno()])

    connections.passing_on = functools.partial(PassingOn, send)
    loop = asyncio.get_running_loop()
    tls = None if http.tls is None else tls_context(http.tls, ["http/1.1"])
    clients = Clients(connections, open_, descriptors, tls)
    over = asyncio.Event()

    def follow_log_settings(message: dict[str, Any]) -> None:
        log_settings.update(message["values"])
        connections.log_requests = log_settings.verbose

    async def drain() -> None:
        await connections.open.drain()
        control.send("drained")

    def begin_drain(message: dict[str, Any]) -> None:
        connections.open.begin_drain()
        control.send("draining")
        clients.draining = loop.create_task(drain())

    connections.log_requests = log_settings.verbose
    control.handle("log", follow_log_settings)
    control.handle("drain", begin_drain)
    control.handle("end", lambda message: over.set())
    control.watch()
    control.send("ready")
    await over.wait()
    server.large_json.close()
    server.offload.close()


class Clients:
    """Takes the connections that the owner hands over."""

    def __init__(
        self,
        connections: Connections,
        open_: CountedConnections,
        descriptors: socket.socket,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._descriptors = descriptors
        self._count = open_.count
        config: Any = None  # for uvicorn's protocol, which is not here
        self._make = functools.partial(HttpConnection, connections, config, ServerState(), {})
        self._doorway = Doorway(tls, on_failure=open_.count)
        self._loop = asyncio.get_running_loop()
        self.draining: asyncio.Task[None] | None = None
        self._loop.add_reader(descriptors.fileno(), self._on_descriptor)

    def _on_descriptor(self) -> None:
        try:
            sent, descriptors = receive(self._descriptors, 1)
        except OSError:
            return
        if not sent:
            self._loop.remove_reader(self._descriptors.fileno())
        elif not descriptors:
            self._count()  # it is closed for want of a descriptor
        for descriptor in descriptors:
            self._doorway.let_in(socket.socket(fileno=descriptor), self._make)
