"""The server: puts the parts together, starts them, and takes them down in the right order."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import resource
import signal
import socket
from collections.abc import Iterator
from typing import Protocol

import uvicorn
import uvloop

from stubserve import __version__
from stubserve.errors import ServeError, unavailable
from stubserve.instances.memory import Memory
from stubserve.instances.services import Services
from stubserve.observability import logs
from stubserve.observability.custom_metrics import MetricRegistry
from stubserve.observability.machine_metrics import MachineMetrics
from stubserve.observability.metrics import RESERVED, ServerMetrics
from stubserve.protocols.arrival import Arrivals
from stubserve.protocols.forwarding import HeaderForwarding
from stubserve.protocols.http.app import create_app
from stubserve.protocols.http.connection import Connection
from stubserve.protocols.http.json_process import JsonProcess
from stubserve.protocols.http.metrics import create_metrics_app
from stubserve.protocols.http.shared import Connections
from stubserve.protocols.listening import explained, listen
from stubserve.protocols.offload import Offload
from stubserve.protocols.pressure import Pressure
from stubserve.protocols.stall import Pace
from stubserve.repository.control import ModelControl
from stubserve.repository.model import Model
from stubserve.repository.registry import UNLOADED, Registry, State
from stubserve.settings import Settings

log = logging.getLogger("stubserve.server")

# How much of --exit-timeout-secs HTTP requests may take to end; the rest is for models to finalize.
_DRAIN_PART = 0.8


class Server:
    """One server: its models and shared memory. The protocols find everything that they need here."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.log_settings = logs.configure(settings)
        self.name = settings.id
        self.version = __version__
        self.max_input_size = settings.http_max_input_size
        pattern = settings.http_header_forward_pattern
        self.http_forwarding = HeaderForwarding(pattern) if pattern else None
        self.registry = Registry()
        self.memory = Memory(settings.shm_limit)
        self.block = self.memory.block
        self.store = self.memory.store
        self.heap = self.memory.heap
        self.pressure = Pressure()
        self.memory.make_room = self.pressure.make_room
        self.arrivals = Arrivals(self.memory, self.pressure, settings.connection_share_bytes)
        self.pace = Pace(settings.request_min_rate, settings.request_timeout_secs)
        self.send_timeout_s: float = settings.send_timeout_secs
        self.idle_timeout_s: float = settings.idle_timeout_secs
        self.grpc_port = 0
        self.offload = Offload()
        self.large_json = JsonProcess(self.memory.block)
        self.loaded = False
        self.exiting = False
        custom = MetricRegistry(RESERVED)
        machine = MachineMetrics(settings.metrics_interval_ms / 1000, settings.allow_cpu_metrics)
        self.metrics = ServerMetrics(self.registry.serving, settings.metrics_options, machine, custom)
        services = Services(self.registry, self.log_settings, custom)
        self.control = ModelControl(settings, self.memory, self.registry, services)

    async def load(self) -> bool:
        """Loads the models that are to be there; whether all are. Raises ServeError if a repository cannot be read."""
        complete = await self.control.load_all()
        self.loaded = True
        return complete

    def find_model(self, name: str, version: str) -> Model:
        """The model version that a request is for. Raises ServeError."""
        if self.exiting:
            raise unavailable("Server is stopping, scheduler for model has stopped accepting new inference requests")
        return self.registry.find(name, version)

    async def ready(self) -> bool:
        """Whether the server is ready in the sense of /v2/health/ready."""
        if not self.loaded:
            return False
        if not self.settings.strict_readiness:
            return True
        for entry in list(self.registry.models.values()):
            if not entry.versions:
                return False
            for version in list(entry.versions.values()):
                if version.reason == UNLOADED:
                    continue
                if version.state is not State.READY or version.model is None or await version.model.check_ready():
                    return False
        return True

    async def stop(self, timeout_s: float | None = None) -> None:
        """Lets running requests finish, finalizes the models, ends the stubs; within --exit-timeout-secs by default."""
        self.exiting = True
        await self.control.stop(self.settings.exit_timeout_secs if timeout_s is None else timeout_s)
        self.large_json.close()
        self.offload.close()


class GrpcTransport(Protocol):
    """What the server needs of a gRPC transport."""

    port: int

    async def start(self) -> None: ...

    async def stop(self, grace_s: float) -> None: ...


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers and without its ten wake-ups per second: an idle server sleeps."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stopping = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        await self._stopping.wait()

    def stop(self) -> None:
        self.should_exit = True
        self._stopping.set()


def http_server(server: Server, connections: Connections | None = None) -> HttpServer:
    """The HTTP front end of a server. What its connections share is `connections`, for who stops it in good order."""
    app = create_app(server)
    connections = Connections(server) if connections is None else connections
    config = uvicorn.Config(
        app,
        http=functools.partial(Connection, connections),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=server.settings.exit_timeout_secs,
    )
    return HttpServer(config)


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
    from stubserve.protocols.grpc.options import GrpcOptions, Tls
    from stubserve.protocols.grpc.service import Service

    settings = server.settings
    restricted = {kind: required for group in settings.grpc_restricted_protocol for kind, required in group.items()}
    options = GrpcOptions(
        settings.grpc_address,
        settings.grpc_port,
        settings.reuse_grpc_port,
        Tls(settings.grpc_server_cert, settings.grpc_server_key, settings.grpc_root_cert, settings.grpc_use_ssl_mutual)
        if settings.grpc_use_ssl
        else None,
        settings.grpc_infer_response_compression_level,
        settings.grpc_keepalive_time,
        settings.grpc_keepalive_timeout,
        settings.grpc_keepalive_permit_without_calls,
        settings.grpc_http2_max_pings_without_data,
        settings.grpc_http2_min_recv_ping_interval_without_data,
        settings.grpc_http2_max_ping_strikes,
        settings.grpc_max_connection_age,
        settings.grpc_max_connection_age_grace,
    )
    service = Service(server, settings.grpc_header_forward_pattern, restricted)
    if settings.grpc_transport == "grpcio":
        from stubserve.protocols.grpc.aio_transport import AioTransport

        return AioTransport(service, options)
    from stubserve.protocols.grpc.http2.server import Http2Transport

    return Http2Transport(server, service, options)


async def serve(settings: Settings) -> int:
    """Runs a server until a signal ends it. The process's exit code."""
    try:
        server = Server(settings)
    except OSError as error:
        log.error("error: creating server: %s", error.strerror)
        return 1
    for notice in settings.notices:
        log.warning(notice)
    fronts: list[tuple[str, HttpServer, socket.socket]] = []
    connections = Connections(server)

    def log_requests_if_verbose() -> None:
        connections.log_requests = server.log_settings.verbose

    log_requests_if_verbose()
    server.log_settings.watchers.add(log_requests_if_verbose)
    try:
        if settings.allow_http:
            protocol, address, port = "http", settings.http_address, settings.http_port
            fronts.append(
                ("HTTPService", http_server(server, connections), listen(address, port, settings.reuse_http_port))
            )
        if settings.allow_metrics:
            protocol, address, port = "metrics", settings.metrics_address, settings.metrics_port
            fronts.append(("Metrics Service", metrics_server(server), listen(address, port)))
    except OSError as error:
        log.error("Socket '%s:%d' cannot be opened: %s", address, port, explained(error, protocol))
        return 1
    grpc: GrpcTransport | None = None
    if settings.allow_grpc:
        try:
            grpc = grpc_server(server)
        except OSError as error:
            place = f"{settings.grpc_address}:{settings.grpc_port}"
            log.error("failed to start gRPC at '%s': %s", place, explained(error, "grpc"))
            return 1
        await grpc.start()
        server.grpc_port = grpc.port
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    serving = [loop.create_task(front.serve([listener])) for _, front, listener in fronts]
    loading = loop.create_task(server.load())
    stopping = loop.create_task(stop.wait())
    exit_code = 0
    await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if loading.done():
        try:
            complete = loading.result()
        except ServeError as error:
            log.error("error: creating server: %s", error.status_text)
            exit_code = 1
        else:
            if not complete and settings.exit_on_error:
                log.error("error: creating server: Internal - failed to load all models")
                exit_code = 1
            else:
                if grpc is not None:
                    log.info("Started GRPCInferenceService at %s:%d", settings.grpc_address, grpc.port)
                for name, _, listener in fronts:
                    log.info("Started %s at %s:%d", name, *listener.getsockname()[:2])
    else:
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
    if exit_code == 0:
        await stopping
    log.info("Waiting for in-flight requests to complete.")
    deadline = loop.time() + settings.exit_timeout_secs
    stopping_grpc = loop.create_task(grpc.stop(settings.exit_timeout_secs)) if grpc is not None else None
    if settings.allow_http:
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
    return exit_code


def run(settings: Settings) -> int:
    """Runs a server in this process, on uvloop. The process's exit code."""
    _raise_descriptor_limit()
    # Whoever started the server may ignore it, which is inherited, and then nobody learns how a child has ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return uvloop.run(serve(settings))


def _raise_descriptor_limit() -> None:
    """Every connection and instance costs descriptors; the soft limit is often 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
