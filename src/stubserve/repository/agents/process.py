"""A repository agent written in Python, as a process of its own: nothing of its code runs in the server.

The process is started when a model first needs the agent, and again after its death; the state of earlier hooks is then
lost. All methods except `close` block and are for threads.
"""

from __future__ import annotations

import itertools
import json
import logging
import queue
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from stubserve.errors import ServeError, internal, invalid, unsupported

log = logging.getLogger("stubserve.repository")

_RUNNER = Path(__file__).with_name("runner.py")
_READY = 0


class AgentProcess:
    """The process of the agent of one name."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self._directory = directory
        self._guard = threading.Lock()
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        # Number of a call -> queue for its answer; None for calls that are left when the process has died
        self._waiting: dict[int, queue.SimpleQueue[dict[str, Any] | None]] = {}

    def call(self, **asked: Any) -> str | None:
        """Runs a hook; the folder that it returns, if any. Raises ServeError."""
        answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        with self._guard:
            if self._process is None or self._process.poll() is not None:
                self._start()
            number = next(self._numbers)
            self._waiting[number] = answers
            # Another call may start the next one before this one tells why its own has died.
            process = self._process
            assert self._connection is not None
            try:
                self._connection.sendall(json.dumps({"id": number, **asked}).encode() + b"\n")
            except OSError:
                answers.put(None)  # the process has just died
        answer = answers.get()
        if answer is None:
            raise internal(f"repository agent '{self.name}' has died{_cause(process)}")
        if "error" in answer:
            raise internal(f"repository agent '{self.name}': {answer['error']}")
        folder: str | None = answer["folder"]
        return folder

    def close(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()

    def _start(self) -> None:
        file = agent_file(self.name, self._directory)
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(_RUNNER), str(file), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        ready: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._waiting = {_READY: ready}
        self._connection = ours
        threading.Thread(target=_read, args=(ours, self._waiting), daemon=True).start()
        answer = ready.get()
        if answer is None or "error" in answer:
            why = _cause(self._process) if answer is None else f": {answer['error']}"
            raise internal(f"repository agent '{self.name}' ({file}) cannot be started{why}")


def _cause(process: subprocess.Popen[bytes] | None) -> str:
    if process is None:
        return ""
    try:
        code = process.wait(5)
    except subprocess.TimeoutExpired:
        return ""
    return f" of signal {-code}" if code < 0 else f" with exit code {code}"


def _read(connection: socket.socket, waiting: dict[int, queue.SimpleQueue[dict[str, Any] | None]]) -> None:
    """Delivers answers until the process ends; then all waiting calls get None."""
    try:
        with connection, connection.makefile("rb") as lines:
            for line in lines:
                answer = json.loads(line)
                waiting.pop(answer["id"]).put(answer)
    except (OSError, ValueError, KeyError) as error:
        log.error("a repository agent has sent something that is not an answer: %r", error)
    for number in list(waiting):
        waiting.pop(number).put(None)


def agent_file(name: str, directory: Path) -> Path:
    """The file of an agent. Raises ServeError."""
    if not name or "/" in name or name in (".", "..") or "\0" in name:
        raise invalid(f"'{name}' can be no repository agent's name")
    folder = directory.absolute() / name
    file = folder / "agent.py"
    if file.is_file():
        return file
    library = folder / f"libtritonrepoagent_{name}.so"
    if library.is_file():
        raise unsupported(
            f"repository agent '{name}' is a compiled library ({library}), and stubserve runs agents in Python only"
        )
    raise not_there(name, file)


def not_there(name: str, file: Path) -> ServeError:
    return invalid(f"unable to find repository agent '{name}', searched: '{file}'")
