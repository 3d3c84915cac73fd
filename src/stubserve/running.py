"""A server in this process: starts it with its front ends, waits for a signal, and ends all in the right order."""

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
import termios
from collections.abc import Callable, Mapping
from dataclasses import replace

import uvloop

from stubserve import malloc, orphans
from stubserve.environments import refusals
from stubserve.errors import ServeError
from stubserve.fronts import (
    GrpcTransport,
    HttpServer,
    grpc_server,
    http_server,
    metrics_server,
    sagemaker_server,
    vertex_server,
)
from stubserve.instances.confinement import ConfinementError
from stubserve.observability.output import output
from stubserve.protocols.http.cors import Cors
from stubserve.protocols.http.shared import Connections
from stubserve.protocols.listening import explained, listen
from stubserve.protocols.tokens import TokenFileError
from stubserve.repository.given_path import advice_for, servable
from stubserve.server import Server
from stubserve.service_manager import ServiceManager
from stubserve.settings import Settings
from stubserve.starting import progress, show, tell_progress
from stubserve.stopping import Stopping, tell_what_is_waited_for

log = logging.getLogger("stubserve.server")

# How much of --exit-timeout-secs HTTP requests may take to end; the rest is for models to finalize.
_DRAIN_PART = 0.8


async def serve(settings: Settings, at_once: Callable[[], None]) -> int:
    """Runs a server until a signal ends it. The process's exit code.

    `at_once` gives back what must not be left when somebody does not wait for the end.
    """
    try:
        server = Server(settings)
    except OSError as error:
        log.error("error: creating server: %s", refusals.explained(error))
        return 1
    except (ConfinementError, TokenFileError) as error:
        log.error("error: creating server: %s", error)
        return 1
    for notice in settings.notices:
        log.warning(notice)
    http, metrics = settings.http, settings.metrics
    fronts: list[tuple[str, HttpServer, socket.socket]] = []
    cors = Cors(http.cors_origins) if http.cors_origins else None
    connections = Connections(server, cors, settings.logging.access, server.http_access)

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
        if settings.sagemaker.allow:
            protocol, address, port = "sagemaker", http.address, settings.sagemaker.port
            fronts.append(("Sagemaker HTTPService", sagemaker_server(server), listen(address, port)))
        if settings.vertex.allow:
            protocol, address, port = "vertex-ai", http.address, settings.vertex.port
            fronts.append(("Vertex AI HTTPService", vertex_server(server), listen(address, port)))
    except OSError as error:
        log.error("Socket '%s:%d' cannot be opened: %s", address, port, explained(error, protocol))
        return 1
    except ServeError as error:
        log.error("error: creating server: %s", error.status_text)
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
    manager = ServiceManager()
    manager.watch()
    signals = Stopping(at_once)
    loop = asyncio.get_running_loop()
    reaping = loop.create_task(orphans.reap()) if os.getpid() == 1 else None
    serving = [loop.create_task(front.serve([listener])) for _, front, listener in fronts]
    loading = loop.create_task(server.load())
    telling = loop.create_task(tell_progress(server.registry))
    stopping = loop.create_task(signals.asked.wait())
    exit_code = 0
    await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
    telling.cancel()
    if loading.done():
        failure = _failure(loading)
        if failure or not server.has_models:
            for text in await asyncio.to_thread(advice_for, settings.repository.paths):
                log.warning(text)
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
            ports = {name: listener.getsockname()[1] for name, _, listener in fronts}
            if not server.failed:
                show(server.registry, _places(server, ports), bool(settings.logging.file))
            manager.ready()
    else:
        log.info("the start is given up; %s", progress(server.registry))
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
    if exit_code == 0:
        await stopping
    manager.stopping()
    # First of all, so that nobody is sent here any more; open connections can ask as long as they are open.
    server.leaves = True
    if settings.exit_delay_secs and server.loaded and not signals.impatient:
        log.info(
            "not ready any more; all else goes on for %d s (--exit-delay-secs), so that load balancers see it",
            settings.exit_delay_secs,
        )
        await asyncio.sleep(settings.exit_delay_secs)
    # Before it is said: a request that comes after that line is none of those.
    connections.open.begin_drain()
    log.info("Waiting for in-flight requests to complete.")
    deadline = loop.time() + settings.exit_timeout_secs
    telling = loop.create_task(tell_what_is_waited_for(server, deadline))
    await server.give_up_changes()
    await server.end_debugged()
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
    manager.close()
    telling.cancel()
    if reaping is not None:
        reaping.cancel()
    return exit_code


def _failure(loading: asyncio.Task[bool]) -> str:
    """Why the server cannot be as it was wanted; empty if it is."""
    try:
        return "" if loading.result() else "Internal - failed to load all models"
    except ServeError as error:
        return error.status_text


def _places(server: Server, ports: Mapping[str, int]) -> dict[str, str]:
    """Where the server can be asked, by protocol, as people on this machine write it."""
    places = {}
    settings = server.settings
    ready = server.serving()
    scheme = "http" if settings.http.tls is None else "https"
    if "HTTPService" in ports:
        model = f"/{ready[0].name}/infer" if ready else ""
        places["HTTP"] = f"{scheme}://{_host(settings.http.address)}:{ports['HTTPService']}/v2/models{model}"
    if server.grpc_port:
        places["gRPC"] = f"{_host(settings.grpc.address)}:{server.grpc_port}"
    if "Metrics Service" in ports:
        places["Metrics"] = f"{scheme}://{_host(settings.metrics_address)}:{ports['Metrics Service']}/metrics"
    return places


def _host(address: str) -> str:
    if address in ("0.0.0.0", "::"):
        return "localhost"
    return f"[{address}]" if ":" in address else address


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
    with contextlib.ExitStack() as links:
        paths = tuple(servable(path, links) for path in settings.repository.paths)
        restore = _terminal_modes()
        try:
            settings = replace(settings, repository=replace(settings.repository, paths=paths))
            return uvloop.run(serve(settings, functools.partial(_leave, links, restore)))
        finally:
            restore()
            output.close()


def _leave(links: contextlib.ExitStack, restore: Callable[[], None]) -> None:
    """What is left to do where the process is ended in the middle."""
    links.close()
    restore()
    output.close()


def _terminal_modes() -> Callable[[], None]:
    """Restores the terminal as it is now: a debugger that is ended while it reads a line leaves it without an echo."""
    try:
        modes = termios.tcgetattr(0)
    except termios.error:
        return lambda: None

    def restore() -> None:
        # Else who is not in front any more would be stopped for it.
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        with contextlib.suppress(termios.error):
            termios.tcsetattr(0, termios.TCSANOW, modes)

    return restore


def _raise_descriptor_limit() -> None:
    """Every connection and instance costs descriptors; the soft limit is often 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
