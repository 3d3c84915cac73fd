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
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import uvloop
from msgspec.structs import replace

from stubserve.closed_process import close_process
from stubserve.environments import refusals
from stubserve.environments.cache import default_folder
from stubserve.errors import ServeError, Unusable
from stubserve.http import connection
from stubserve.memory import malloc
from stubserve.observability.output import output
from stubserve.repository.given_path import advice_for, servable
from stubserve.server.ports import CannotServe, Ports
from stubserve.server.server import Server
from stubserve.server.service_manager import ServiceManager
from stubserve.server.starting import progress, show, tell_progress
from stubserve.server.stopping import Stopping, tell_what_is_waited_for
from stubserve.settings.fronts import FrontSettings
from stubserve.settings.groups import EXPLICIT, Settings

log = logging.getLogger("stubserve.server")

_NOT_COMPILED = (
    "stubserve is not compiled; compiled, a request takes about a fifth less processor time. With a C compiler, "
    "`make compiled` does it for `make serve`, and HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 pip install . for an installation"
)


async def serve(settings: Settings, at_once: Callable[[], None]) -> int:
    """Runs a server until a signal ends it. Returns the process's exit code. `at_once` cleans up for an early end."""
    try:
        server = _create(settings)
        ports = Ports(server)
        await ports.open()
        manager = ServiceManager()
        manager.watch()
        signals = Stopping(at_once)
        server.drain = functools.partial(_drain, server, ports)
        reaping = asyncio.create_task(_reap_orphans()) if os.getpid() == 1 else None
        ports.serve()
    except CannotServe as error:
        return _refuse(settings, str(error))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, server.drain)
    _on_hangup(lambda: loop.call_soon_threadsafe(server.log_settings.reopen))
    exit_code = await _start(server, ports, manager, signals)
    if exit_code == 0:
        await signals.asked.wait()
    manager.stopping()
    await _end(server, ports, signals.impatient, failed=exit_code != 0)
    manager.close()
    if reaping is not None:
        reaping.cancel()
    _on_hangup(lambda: None)
    return exit_code


def _create(settings: Settings) -> Server:
    """The server, without its ports. Raises CannotServe."""
    try:
        server = Server(settings)
    except OSError as error:
        flag = "--log-file=" if error.filename == settings.logging.file else ""
        place = f"{flag}{error.filename}: " if error.filename else ""
        raise CannotServe(f"error: creating server: {place}{refusals.explained(error)}") from None
    except Unusable as error:
        raise CannotServe(f"error: creating server: {error}") from None
    for notice in (*settings.notices, *dangers(settings)):
        log.warning(notice)
    if connection.__file__.endswith(".py") and not settings.dev and _is_first("not-compiled"):
        log.info(_NOT_COMPILED)
    return server


def _is_first(name: str) -> bool:
    """Whether this is the first time on this machine that the server asks; always, where nothing can be remembered."""
    try:
        (default_folder("told") / name).touch(exist_ok=False)
    except OSError as error:
        return not isinstance(error, FileExistsError)
    return True


def dangers(settings: Settings) -> Iterator[str]:
    """What others can do at a port where nobody has to show who they are, or that lacks TLS beside one that has it."""
    fronts: dict[str, FrontSettings] = {"HTTP": settings.http, "gRPC": settings.grpc}
    for kind, is_on, what in (
        ("model-repository", settings.repository.control_mode == EXPLICIT, "can load models, and so run code"),
        ("shared-memory", settings.clients.shm, "can read and write the memory that other clients share"),
    ):
        places = [
            f"{protocol} at {front.address}"
            for protocol, front in fronts.items()
            if front.allow and not (front.is_local or kind in front.restricted or (front.tls and front.tls.mutual))
        ]
        if is_on and places and settings.auth.token_file is None:
            yield (
                f"every client that reaches {' or '.join(places)} {what}. --host=127.0.0.1 lets only this machine "
                "reach it, and --auth-token-file only clients with a token"
            )
    if any(front.allow and front.tls for front in fronts.values()):
        for protocol, front in fronts.items():
            if front.allow and not (front.tls or front.is_local):
                flag = f"--{protocol.lower()}"
                yield (
                    f"{protocol} at {front.address} has no TLS, and the other protocol has it: whoever listens on the "
                    f"network reads what clients of {protocol} send, also their tokens. {flag}-use-ssl gives it TLS, "
                    f"{flag}-address=127.0.0.1 keeps it to this machine, and --allow-{protocol.lower()}=false closes it"
                )


async def _start(server: Server, ports: Ports, manager: ServiceManager, signals: Stopping) -> int:
    """Loads the models, unless a signal comes first. Returns the exit code; 0 means to go on until a signal."""
    loading = asyncio.create_task(server.load())
    telling = asyncio.create_task(tell_progress(server.registry))
    stopping = asyncio.create_task(signals.asked.wait())
    await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
    telling.cancel()
    stopping.cancel()
    if not loading.done():
        log.info("the start is given up; %s", progress(server.registry))
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        return 0
    settings = server.settings
    try:
        failure = "" if loading.result() else "Internal - failed to load all models"
    except ServeError as error:
        failure = error.status_text
    if failure or not server.has_models:
        for text in await asyncio.to_thread(advice_for, settings.repository.paths):
            log.warning(text)
    if failure and settings.exit_on_error:
        return _refuse(settings, f"error: creating server: {failure}")
    if server.failed:
        log.error("%s", failure)
    try:
        await ports.ready()
    except CannotServe as error:
        return _refuse(settings, str(error))
    if not server.failed:
        show(server.registry, ports.addresses, bool(settings.logging.file))
    manager.ready()
    return 0


def _refuse(settings: Settings, text: str) -> int:
    """Says why the server does not start; also on stderr if the log goes to a file. Returns the exit code."""
    log.error("%s", text)
    # Where even the log cannot be opened, the line above is on stderr.
    if settings.logging.file and log.hasHandlers():
        print(text, file=sys.stderr)
    return 1


def _drain(server: Server, ports: Ports) -> None:
    """As in --exit-delay-secs, but for as long as it takes until a signal ends the server."""
    if not server.leaves:
        server.leaves = True
        log.info("not ready any more, and connections are told to close; all else goes on until SIGTERM")
        ports.begin_leaving()


async def _end(server: Server, ports: Ports, impatient: bool, failed: bool) -> None:
    """Lets requests under way be answered, then the models finalize, within --exit-timeout-secs.

    After an `impatient` signal, or when the server was drained, --exit-delay-secs is skipped. `failed`: the start has
    failed.
    """
    settings = server.settings
    drained = server.leaves
    # First of all, so that no more clients are sent here; open connections can ask as long as they are open.
    server.leaves = True
    if settings.exit_delay_secs and server.loaded and not impatient and not drained:
        log.info(
            "not ready any more; all else goes on for %d s (--exit-delay-secs), so that load balancers see it",
            settings.exit_delay_secs,
        )
        ports.begin_leaving()
        await asyncio.sleep(settings.exit_delay_secs)
    # Before the log line: a request that comes after that line does not count.
    ports.begin_drain()
    if not failed:  # otherwise there were no clients
        log.info("Waiting for in-flight requests to complete.")
    loop = asyncio.get_running_loop()
    deadline = loop.time() + settings.exit_timeout_secs
    telling = loop.create_task(tell_what_is_waited_for(server, deadline))
    await server.give_up_changes()
    await server.end_debugged()
    await ports.drain(settings.exit_timeout_secs)
    await server.stop(max(deadline - loop.time(), 0))
    await ports.close()
    telling.cancel()


def _on_hangup(heed: Callable[[], object]) -> None:
    """Makes SIGHUP call `heed` and never end the server; if it is ignored from the start (nohup), it stays ignored."""
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: heed())


def run(settings: Settings) -> int:
    """Runs a server in this process, on uvloop. Returns the process's exit code."""
    _on_hangup(lambda: None)
    signal.signal(signal.SIGUSR1, lambda *_: None)  # it never ends a server
    # Every connection and instance costs descriptors, and the soft limit is often 1024.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    close_process()
    malloc.give_back_large()
    # An ignored SIGCHLD is inherited from the parent, and then the end of a child cannot be observed.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Imported objects stay. Otherwise the collector would walk through them again and again, only because many requests
    # are in flight. A walk takes tens of milliseconds, in which no client is served.
    gc.freeze()
    gc.enable()
    with contextlib.ExitStack() as links:
        paths = tuple(servable(path, links) for path in settings.repository.paths)
        restore = _terminal_modes()
        try:
            settings = replace(settings.with_addresses(), repository=replace(settings.repository, paths=paths))
            return uvloop.run(serve(settings, functools.partial(_leave, links, restore)))
        finally:
            restore()
            output.close()


def _leave(links: contextlib.ExitStack, restore: Callable[[], None]) -> None:
    """Does the work that is needed even if the process is ended in the middle."""
    links.close()
    restore()
    output.close()


def _terminal_modes() -> Callable[[], None]:
    """Returns a function that restores the terminal as it is now: a debugger that is ended may leave the echo off."""
    try:
        modes = termios.tcgetattr(0)
    except termios.error:
        return lambda: None

    def restore() -> None:
        # Otherwise a process that is no longer in front would be stopped for it.
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        with contextlib.suppress(termios.error):
            termios.tcsetattr(0, termios.TCSANOW, modes)

    return restore


_LOOK_S = 5.0


async def _reap_orphans() -> None:
    """Reaps children that no other code waits for, if the server is the first process of a container.

    A process of a model that outlives its parent becomes a child of the first process, and after its death stays in the
    table of processes until it is reaped. The code that starts the server's own children reaps them at once; so a dead
    child that is still there at the second look is an orphan.
    """
    seen: set[int] = set()
    while True:
        await asyncio.sleep(_LOOK_S)
        dead = dead_children()
        for pid in dead & seen:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)  # noqa: ASYNC222
        seen = dead


def dead_children() -> set[int]:
    found = set()
    own = str(os.getpid())
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            except (OSError, ValueError):
                continue
            if state == "Z" and parent == own:
                found.add(int(entry.name))
    return found
