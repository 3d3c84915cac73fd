"""The server: puts the parts together, starts them, and takes them down in the right order."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import os
import resource
import signal
import socket
from collections.abc import Iterator
from typing import Any, Protocol, cast

import uvicorn
import uvloop

from stubserve import __version__, malloc, orphans
from stubserve.errors import ServeError, unavailable
from stubserve.inference.served_model import ServedModel
from stubserve.instances.janitor import Janitor
from stubserve.instances.memory import Memory
from stubserve.instances.services import Services
from stubserve.observability import logs
from stubserve.observability.custom_metrics import MetricRegistry
from stubserve.observability.machine_metrics import MachineMetrics
from stubserve.observability.metrics import RESERVED, ServerMetrics
from stubserve.observability.output import output
from stubserve.protocols.arrival import Arrivals
from stubserve.protocols.entrance import Entrance
from stubserve.protocols.forwarding import HeaderForwarding
from stubserve.protocols.http.app import create_app
from stubserve.protocols.http.connection import HttpConnection
from stubserve.protocols.http.head import has_asked
from stubserve.protocols.http.json_process import JsonProcess
from stubserve.protocols.http.metrics import create_metrics_app
from stubserve.protocols.http.shared import Connections
from stubserve.protocols.listening import explained, listen
from stubserve.protocols.offload import Offload
from stubserve.protocols.pressure import Pressure
from stubserve.protocols.stall import Pace
from stubserve.repository.control import ModelControl
from stubserve.repository.loading import Loader
from stubserve.repository.registry import UNLOADED, Registry, VersionState
from stubserve.settings import Settings

log = logging.getLogger("stubserve.server")

# How much of --exit-timeout-secs HTTP requests may take to end; the rest is for models to finalize.
_DRAIN_PART = 0.8


class Server:
    """One server: its models and shared memory. The protocols find everything that they need here."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.log_settings = logs.configure(settings.logging)
        self.name = settings.id
        self.version = __version__
        self.max_input_size = settings.http.max_input_size
        pattern = settings.http.header_forward_pattern
        self.http_forwarding = HeaderForwarding(pattern) if pattern else None
        self._registry = Registry()
        self.memory = Memory(settings.shm_limit)
        self.block = self.memory.block
        self.store = self.memory.store
        self.heap = self.memory.heap
        self.pressure = Pressure()
        self.memory.make_room = self.pressure.make_room
        self.arrivals = Arrivals(self.memory, self.pressure, settings.connection_share_bytes)
        self.pace = Pace(settings.clients.min_rate, settings.clients.request_timeout_secs)
        self.send_timeout_s: float = settings.clients.send_timeout_secs
        self.idle_timeout_s: float = settings.clients.idle_timeout_secs
        self.grpc_port = 0
        self.offload = Offload()
        self.large_json = JsonProcess(self.memory.block)
        self.loaded = False
        self.failed = False
        self.exiting = False
        custom = MetricRegistry(RESERVED)
        measured = settings.metrics
        machine = MachineMetrics(measured.interval_ms / 1000, measured.allow_cpu)
        self.metrics = ServerMetrics(self._registry.serving, measured.latencies, machine, custom)
        loader = Loader(
            settings.instances,
            self.memory,
            completes=not settings.repository.disable_auto_complete,
            latencies=measured.latencies if measured.allow else None,
        )
        self._janitor = Janitor()
        services = Services(self._registry, self.log_settings, custom, janitor=self._janitor)
        self._control = ModelControl(settings.repository, loader, self._registry, services, settings.exit_timeout_secs)

    async def load(self) -> bool:
        """Loads the models that are to be there; whether all are. Raises ServeError if a repository cannot be read.

        After that the server is neither live nor ready, and there are no models to ask for.
        """
        try:
            complete = await self._control.load_all()
        except ServeError:
            self.failed = True
            raise
        self.loaded = True
        return complete

    @property
    def registry(self) -> Registry:
        """The models. Raises ServeError if the server could not be started."""
        if self.failed:
            raise _not_started()
        return self._registry

    @property
    def control(self) -> ModelControl:
        """Loads and unloads models. Raises ServeError if the server could not be started."""
        if self.failed:
            raise _not_started()
        return self._control

    def find_model(self, name: str, version: str) -> ServedModel:
        """The model version that a request is for. Raises ServeError."""
        if self.exiting:
            raise unavailable("Server is stopping, scheduler for model has stopped accepting new inference requests")
        if self.failed:
            raise _not_started()
        return self._registry.find(name, version)

    async def ready(self) -> bool:
        """Whether the server is ready in the sense of /v2/health/ready."""
        if not self.loaded:
            return False
        if not self.settings.strict_readiness:
            return True
        for entry in list(self._registry.models.values()):
            if not entry.versions:
                return False
            for version in list(entry.versions.values()):
                if version.reason == UNLOADED:
                    continue
                if (
                    version.state is not VersionState.READY
                    or version.model is None
                    or await version.model.check_ready()
                ):
                    return False
        return True

    async def give_up_changes(self) -> None:
        """Ends loads that are under way: who waits for one must not hold up those who wait for inference."""
        await self._control.give_up_changes()

    async def stop(self, timeout_s: float | None = None) -> None:
        """Lets running requests finish, finalizes the models, ends the stubs; within --exit-timeout-secs by default."""
        self.exiting = True
        await self._control.stop(self.settings.exit_timeout_secs if timeout_s is None else timeout_s)
        await self._janitor.stop()
        self.large_json.close()
        self.offload.close()


def _not_started() -> ServeError:
    return unavailable("Server not ready")


class GrpcTransport(Protocol):
    """What the server needs of a gRPC transport."""

    port: int

    async def start(self) -> None: ...

    async def stop(self, grace_s: float) -> None: ...


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers and without its ten wake-ups per second: an idle server sleeps.

    With an `offload` connections come in by an `Entrance`.
    """

    def __init__(self, config: uvicorn.Config, offload: Offload | None = None) -> None:
        super().__init__(config)
        self._stopping = asyncio.Event()
        self._offload = offload

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._offload is None or sockets is None:
            await super().startup(sockets)
            return
        await self.lifespan.startup()
        config = self.config
        make = functools.partial(
            cast(Any, config.http_protocol_class),
            config=config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            _loop=asyncio.get_running_loop(),
        )
        self.servers = [Entrance(listener, make, has_asked, self._offload) for listener in sockets]  # type: ignore[misc]
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        await self._stopping.wait()

    def stop(self) -> None:
        self.should_exit = True
        self._stopping.set()


def http_server(server: Server, connections: Connections) -> HttpServer:
    """The HTTP front end of a server. What its connections share is `connections`, for who stops it in good order."""
    app = create_app(server)
    config = uvicorn.Config(
        app,
        http=functools.partial(HttpConnection, connections),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=server.settings.exit_timeout_secs,
    )
    return HttpServer(config, server.offload)


def metrics_server(server: Server) -> HttpServer:
    """The front end of a server's metrics."""
    app = create_metrics_app(server.metrics.text)
    config = uvicorn.Config(
        app, ws="none", lifespan="off", access_log=False, log_config=None, server_header=False, date_header=False
    )
    return HttpServer(config)


def grpc_server(server: Server) -> GrpcTransport:
    """The gRPC front end of a server, listening. Raises OSError."""
    # Here, so that a server does not pay for what it does not use.
    from stubserve.protocols.grpc.service import Service

    settings = server.settings.grpc
    service = Service(server, settings.header_forward_pattern, settings.restricted)
    if settings.transport == "grpcio":
        from stubserve.protocols.grpc.aio_transport import AioTransport

        return AioTransport(service, settings)
    from stubserve.protocols.grpc.http2.server import Http2Transport

    return Http2Transport(server, service, settings)


async def serve(settings: Settings) -> int:
    """Runs a server until a signal ends it. The process's exit code."""
    try:
        server = Server(settings)
    except OSError as error:
        log.error("error: creating server: %s", error.strerror)
        return 1
    for notice in settings.notices:
        log.warning(notice)
    http, metrics = settings.http, settings.metrics
    fronts: list[tuple[str, HttpServer, socket.socket]] = []
    connections = Connections(server)

    def log_requests_if_verbose() -> None:
        connections.log_requests = server.log_settings.verbose

    log_requests_if_verbose()
    server.log_settings.watchers.add(log_requests_if_verbose)
    try:
        if http.allow:
            protocol, address, port = "http", http.address, http.port
            fronts.append(("HTTPService", http_server(server, connections), listen(address, port, http.reuse_port)))
        if metrics.allow:
            protocol, address, port = "metrics", settings.metrics_address, metrics.port
            fronts.append(("Metrics Service", metrics_server(server), listen(address, port)))
    except OSError as error:
        log.error("Socket '%s:%d' cannot be opened: %s", address, port, explained(error, protocol))
        return 1
    grpc: GrpcTransport | None = None
    if settings.grpc.allow:
        try:
            grpc = grpc_server(server)
        except OSError as error:
            place = f"{settings.grpc.address}:{settings.grpc.port}"
            log.error("failed to start gRPC at '%s': %s", place, explained(error, "grpc"))
            return 1
        await grpc.start()
        server.grpc_port = grpc.port
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    reaping = loop.create_task(orphans.reap()) if os.getpid() == 1 else None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    serving = [loop.create_task(front.serve([listener])) for _, front, listener in fronts]
    loading = loop.create_task(server.load())
    stopping = loop.create_task(stop.wait())
    exit_code = 0
    await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if loading.done():
        failure = _failure(loading)
        if failure and settings.exit_on_error:
            log.error("error: creating server: %s", failure)
            exit_code = 1
        else:
            if server.failed:
                log.error("%s", failure)
            if grpc is not None:
                log.info("Started GRPCInferenceService at %s:%d", settings.grpc.address, grpc.port)
            for name, _, listener in fronts:
                log.info("Started %s at %s:%d", name, *listener.getsockname()[:2])
    else:
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
    if exit_code == 0:
        await stopping
    # Before it is said: a request that comes after that line is none of those.
    connections.open.begin_drain()
    log.info("Waiting for in-flight requests to complete.")
    deadline = loop.time() + settings.exit_timeout_secs
    await server.give_up_changes()
    stopping_grpc = loop.create_task(grpc.stop(settings.exit_timeout_secs)) if grpc is not None else None
    if http.allow:
        fronts[0][1].stop()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(connections.open.drain(), settings.exit_timeout_secs * _DRAIN_PART)
    await server.stop(max(deadline - loop.time(), 0))
    if stopping_grpc is not None:
        await stopping_grpc
    for _, front, _ in fronts:
        front.stop()
    await asyncio.gather(*serving)
    stopping.cancel()
    if reaping is not None:
        reaping.cancel()
    return exit_code


def _failure(loading: asyncio.Task[bool]) -> str:
    """Why the server cannot be as it was wanted; empty if it is."""
    try:
        return "" if loading.result() else "Internal - failed to load all models"
    except ServeError as error:
        return error.status_text


def run(settings: Settings) -> int:
    """Runs a server in this process, on uvloop. The process's exit code."""
    _raise_descriptor_limit()
    malloc.give_back_large()
    # Whoever started the server may ignore it, which is inherited, and then nobody learns how a child has ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # What has been imported stays. The collector need not walk through it again and again, which takes tens of
    # milliseconds, in which nobody is served, and is called for by nothing but many requests in flight.
    gc.freeze()
    gc.enable()
    try:
        return uvloop.run(serve(settings))
    finally:
        output.close()


def _raise_descriptor_limit() -> None:
    """Every connection and instance costs descriptors; the soft limit is often 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
