"""Starts real Triton and stubserve on one repository, with the same flags, on free loopback ports."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.ports import free_ports

from . import (
    batch_models,
    broken_models,
    cache_models,
    changing_models,
    ensemble_models,
    environment_models,
    repository,
    repository_models,
    sequence_models,
    serving_models,
    state_models,
)
from .shared_file import shared_file
from .wire import exchange

START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 15.0
NAMES = ("triton", "stubserve")


def _some(names: tuple[str, ...]) -> tuple[repository.Model, ...]:
    return tuple(model for model in serving_models.MODELS if model.name in names)


_RESTRICTED = "metadata,inference,shared-memory,model-config,model-repository,statistics,trace,logging"

# Which models and which flags a case's ``server`` stands for.
SETUPS = {
    "serving": (serving_models.MODELS, ("--strict-readiness=false",)),
    "broken": (broken_models.MODELS, ("--strict-readiness=false",)),
    "control": (
        broken_models.MODELS,
        ("--strict-readiness=false", "--model-control-mode=explicit", "--load-model=*"),
    ),
    "control_calls": (
        _some(serving_models.CALLS),
        ("--strict-readiness=false", "--model-control-mode=explicit", "--load-model=evaluate"),
    ),
    # Real Triton dies of some requests; with few models it is soon back.
    "fragile": (_some(serving_models.FRAGILE), ("--strict-readiness=false",)),
    "calls": (_some(serving_models.CALLS), ("--strict-readiness=false",)),
    "senders": (serving_models.SENDERS, ("--strict-readiness=false",)),
    "environments": (environment_models.MODELS, ("--strict-readiness=false",)),
    **{model.name: ((model,), ("--strict-readiness=false",)) for model in environment_models.ALONE},
    "ensembles": (ensemble_models.MODELS, ("--strict-readiness=false",)),
    "ensemble_control": (ensemble_models.MODELS, ("--strict-readiness=false", "--model-control-mode=explicit")),
    "ensembles_broken": (
        (*ensemble_models.MEMBERS, *ensemble_models.BROKEN),
        ("--strict-readiness=false",),
    ),
    "ensembles_refused": (
        (*ensemble_models.MEMBERS, *ensemble_models.BROKEN),
        ("--strict-readiness=false", "--model-control-mode=explicit"),
    ),
    # Each case loads its model: real Triton dies where warm-ups fail while others run.
    "warm_up": (batch_models.WARM, ("--strict-readiness=false", "--model-control-mode=explicit")),
    "shared_memory": (_some(("echo_fp32",)), ("--strict-readiness=false",)),
    **dict.fromkeys(("held", "held_backlog", "backlog_alone"), (sequence_models.HELD, ("--strict-readiness=false",))),
    "sequences": (sequence_models.MODELS + state_models.MODELS, ("--strict-readiness=false",)),
    "cached": (cache_models.CACHED, ("--strict-readiness=false", "--cache-config=local,size=1048576")),
    **{
        name: (
            cache_models.LIMITED,
            ("--strict-readiness=false", "--model-control-mode=explicit", *flags),
        )
        for name, flags in {
            "limited": ("--rate-limit=execution_count",),
            "limited_given": ("--rate-limit=execution_count", "--rate-limit-resource=R:10"),
            "limited_elsewhere": ("--rate-limit=execution_count", "--rate-limit-resource=R:10:3"),
            "limits_off": ("--rate-limit=off", "--rate-limit-resource=R:1"),
        }.items()
    },
    "ragged": (batch_models.RAGGED, ("--strict-readiness=false",)),
    "poll": (
        changing_models.MODELS,
        ("--strict-readiness=false", "--model-control-mode=poll", "--repository-poll-secs=1"),
    ),
    "update": (
        changing_models.MODELS,
        ("--strict-readiness=false", "--model-control-mode=explicit", "--load-model=*"),
    ),
    "poll_once": (
        _some(("echo_fp32",)),
        ("--strict-readiness=false", "--model-control-mode=poll", "--repository-poll-secs=0"),
    ),
    "restricted": (
        _some(("echo_fp32",)),
        (
            "--strict-readiness=false",
            f"--http-restricted-api={_RESTRICTED}:X-Key=sesame",
            f"--grpc-restricted-protocol={_RESTRICTED}:key=sesame",
        ),
    ),
    "namespaces": (
        repository_models.FIRST,
        ("--strict-readiness=false", "--model-namespacing=true", "--model-control-mode=explicit", "--load-model=*"),
    ),
    "duplicates": (repository_models.FIRST, ("--strict-readiness=false",)),
    "unchanged": (repository_models.FIRST, ("--strict-readiness=false", "--model-control-mode=explicit")),
    # These stay up and serve nothing.
    "nowhere": ((), ("--strict-readiness=false", "--model-repository=/nowhere/at/all")),
    "nowhere_strict": ((), ("--strict-readiness=true", "--model-repository=/nowhere/at/all")),
    "strict": (
        (*broken_models.FILELESS, *broken_models.GOOD, serving_models.SELF_DESCRIBED),
        ("--strict-readiness=false", "--model-control-mode=explicit", "--disable-auto-complete-config"),
    ),
}


# The models of a second repository
SECOND = dict.fromkeys(("namespaces", "duplicates", "unchanged"), repository_models.SECOND)


# What is set in a server's environment besides
VARIABLES = {
    "held": {"TRITONSERVER_DELAY_SCHEDULER": "3"},
    "held_backlog": {"TRITONSERVER_DELAY_SCHEDULER": "2", "TRITONSERVER_BACKLOG_DELAY_SCHEDULER": "2"},
    "backlog_alone": {"TRITONSERVER_BACKLOG_DELAY_SCHEDULER": "2"},
}


class StartError(Exception):
    """A server did not become ready; the text says why and where its log is."""


@dataclass
class Server:
    """One running server: where to talk to it and what to normalise out of its answers."""

    name: str
    process: subprocess.Popen[bytes]
    port: int
    grpc_port: int
    repository: Path
    log: Path

    def alive(self) -> bool:
        return self.process.poll() is None


def peers_home() -> Path:
    """The folder that ``tools/peers.sh`` filled: $PEERS_DIR, or the user's cache folder."""
    if given := os.environ.get("PEERS_DIR"):
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "stubserve-peers"


def _command(name: str) -> list[str]:
    if name == "triton":
        env = peers_home() / "env.sh"
        if not env.exists():
            raise StartError(f"no real Triton at {env}: run tools/peers.sh, or set PEERS_DIR to where it is")
        # Where several models fail to load at once, it dies of SIGSEGV in most starts of a busy machine.
        triton = 'source "$0"; triton --cache-directory="$TRITON_HOME/caches" --model-load-thread-count=1 "$@"'
        return ["bash", "-c", triton, str(env)]
    # Whatever else it is started with, it is to answer the same.
    more = os.environ.get("STUBSERVE_TEST_FLAGS", "").split()
    return [sys.executable, "-m", "stubserve", "serve", *more]


@contextlib.contextmanager
def running(name: str, setup: str) -> Iterator[Server]:
    """A ready server ``name`` with the models of ``setup``; stopped, and its files removed, at the end."""
    models, flags = SETUPS[setup]
    home = Path(tempfile.mkdtemp(prefix=f"conformance-{name}-"))
    kept = contextlib.ExitStack()
    try:
        root = home / "models"
        root.mkdir()
        repository.write(root, models)
        if setup in SECOND:
            (home / "more").mkdir()
            repository.write(home / "more", SECOND[setup])
            flags = (*flags, f"--model-repository={home / 'more'}")
        log = home / "log"
        if setup == "shared_memory":
            kept.enter_context(shared_file())
            if name == "stubserve":
                # On without a word in 2.51, off in 2.73 and here.
                flags = (*flags, "--allow-client-shm=true")
        server = _start(name, root, log, flags, VARIABLES.get(setup, {}))
        try:
            # A server that has not found its repository says that it does not live, and stays.
            _await(server, *(("/v2/health/live", 400) if setup.startswith("nowhere") else ("/v2/health/ready", 200)))
            yield server
        finally:
            _stop(server)
    finally:
        kept.close()
        shutil.rmtree(home, ignore_errors=True)


@contextlib.contextmanager
def serving(name: str, root: Path, log: Path, *flags: str) -> Iterator[Server]:
    """A ready server with the repository `root`; StartError where it is not installed."""
    server = _start(name, root, log, flags, {})
    try:
        _await(server, "/v2/health/ready", 200)
        yield server
    finally:
        _stop(server)


def _start(name: str, root: Path, log: Path, flags: tuple[str, ...], variables: dict[str, str]) -> Server:
    http, grpc, metrics = free_ports(3)
    command = [
        *_command(name),
        f"--model-repository={root}",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        f"--http-port={http}",
        f"--grpc-port={grpc}",
        f"--metrics-port={metrics}",
        "--exit-on-error=false",
        *flags,
    ]
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command,
            stdout=sink,
            stderr=subprocess.STDOUT,
            # What a server keeps between two runs it must make anew.
            env={**os.environ, **variables, "XDG_CACHE_HOME": str(log.parent / "cache")},
            start_new_session=True,
        )
    return Server(name, process, http, grpc, root, log)


def _await(server: Server, route: str, status: int) -> None:
    """Waits until the server answers this route with this status."""
    request = f"GET {route} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if not server.alive():
            raise StartError(f"{server.name} exited with {server.process.returncode}:\n{_tail(server.log)}")
        answer = exchange(server.port, (request,), ("GET",), timeout=2)
        if answer.responses and answer.responses[0].status == status:
            return
        time.sleep(0.1)
    raise StartError(f"{server.name} was not ready within {START_TIMEOUT_S:.0f} s:\n{_tail(server.log)}")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-30:])


def _stop(server: Server) -> None:
    """Asks politely, then ends what is left of the server's own process group."""
    server.process.terminate()
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(STOP_TIMEOUT_S)
    finally:
        # Also when the wait itself is interrupted: nothing may outlive the run.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()
