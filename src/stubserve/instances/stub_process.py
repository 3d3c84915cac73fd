"""One stub as an operating-system process: started with its descriptors, watched, its stderr kept, ended.

A pidfd in the event loop reports the death at once, without polling and without SIGCHLD. The stub's stdout and stderr
are passed on to the server's (`stub_output`).

A model may write to descriptors that are not its own, close them, or become another program. So nothing here trusts
what it reads: a stub that cannot be talked to any more is ended (`condemn`), which fails its requests and starts it
anew.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stubserve_stub.wire import layout
from stubserve_stub.wire.messages import Unframer, frame

from stubserve.environments.environment import Environment
from stubserve.instances.death import cause_of_death, oom_kills
from stubserve.instances.stub_output import StubOutput

# More than a socket holds, in reads: another process with its other end may write as fast as this reads.
_MOST_READS = 64

# An ending process closes its descriptors first, and is gone at once.
_ENDING_S = 1.0

_PAGE_BYTES = resource.getpagesize()
_NAMES = {1: "loading", 2: "idle", 3: "executing", 4: "finalizing"}

# For `subprocess`, which does this in C from Python 3.11 on
_OWN_GROUP: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {"preexec_fn": os.setpgrp}

log = logging.getLogger("stubserve.stub")


class StubProcess:
    """A running stub.

    `on_message` gets each control message. `on_death` is called once with the cause when the process is gone and its
    last messages and output have been read. `variables` are added to its environment, `inherited` to its descriptors.

    Raises OSError if no process can be started, or there is no descriptor left for it.
    """

    def __init__(
        self,
        name: str,
        environment: Environment,
        arena: int,
        on_message: Callable[[dict[str, Any]], None],
        on_death: Callable[[str], None],
        terminal: bool = False,
        variables: Mapping[str, str] | None = None,
        inherited: Sequence[int] = (),
    ) -> None:
        self.name = name
        self._on_message = on_message
        self._on_death = on_death
        self._loop = asyncio.get_running_loop()
        self._unframer = Unframer()
        # Messages, with the descriptors that travel with each
        self._outbox: collections.deque[tuple[bytes, Sequence[int]]] = collections.deque()
        self._dead = False
        self._condemned = ""
        self._ending: asyncio.TimerHandle | None = None
        self._terminal = terminal
        self._oom_kills_before = oom_kills()
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            # Each of these may find no free descriptor.
            self._control, control = map(ours.enter_context, socket.socketpair())
            self._control.setblocking(False)
            theirs.callback(control.close)
            self._outputs: list[StubOutput] = []
            theirs_out: list[int] = []
            for target in (1, 2):
                descriptor, end = os.pipe()
                theirs.callback(os.close, end)
                theirs_out.append(end)
                read = StubOutput(descriptor, target, name)
                ours.callback(read.close)
                self._outputs.append(read)
            stdout, stderr = theirs_out
            self._process = subprocess.Popen(
                environment.command(name, arena, control.fileno()),
                env={**environment.process_variables(), **(variables or {})},
                stdin=None if terminal else subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                pass_fds=(arena, control.fileno(), *inherited),
                # A group of its own, so that the processes of the model can be ended with it. But no session: Linux
                # schedules a session as one (autogroup), so beside busy neighbours a stub that the server has woken
                # would wait behind all other sessions. A debugged stub stays in the terminal's group, or it could not
                # read from the terminal.
                **({} if terminal else _OWN_GROUP),
                **environment.user,
            )
            ours.callback(self._process.wait)
            ours.callback(self._process.kill)
            self.pid = self._process.pid
            self._pidfd = os.pidfd_open(self.pid)
            ours.pop_all()
        self._loop.add_reader(self._pidfd, self._reap)
        self._loop.add_reader(self._control, self._read_control)

    def rename(self, name: str) -> None:
        """The instance may get another name when the model has completed its configuration."""
        self.name = name
        for read in self._outputs:
            read.name = name

    def send(self, kind: str, **fields: Any) -> None:
        """Sends a control message; never blocks, keeps the order, does nothing once the stub is dead."""
        self.send_with((), kind, **fields)

    def send_with(self, descriptors: Sequence[int], kind: str, **fields: Any) -> None:
        """As `send`, with descriptors that travel with the message."""
        if self._dead:
            return
        if descriptors:
            fields["descriptors"] = len(descriptors)
        waiting = bool(self._outbox)
        self._outbox.append((frame(dict(fields, kind=kind)), descriptors))
        if not waiting:
            self._flush()

    def control_fileno(self) -> int:
        return self._control.fileno()

    def read_messages(self) -> None:
        """Takes the messages of the stub now, without waiting for the event loop."""
        if not self._dead:
            _exhaust(self._read_control)

    def kill(self) -> None:
        """Ends the process now; `on_death` follows."""
        if not self._dead:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def condemn(self, why: str) -> None:
        """Ends the process because it cannot be talked to any more; `why` goes into the cause of its death."""
        if not self._dead and not self._condemned:
            self._condemned = why
            self._loop.remove_reader(self._control)
            self.kill()

    def stderr_text(self) -> str:
        return self._outputs[-1].tail.decode(errors="replace").strip()

    def _flush(self) -> None:
        try:
            while self._outbox:
                data, descriptors = self._outbox[0]
                if descriptors:
                    sent = socket.send_fds(self._control, [data], descriptors)
                else:
                    sent = self._control.send(data)
                if sent < len(data):
                    self._outbox[0] = (data[sent:], ())
                else:
                    self._outbox.popleft()
        except BlockingIOError:
            self._loop.add_writer(self._control, self._flush)
            return
        except OSError:
            self._outbox.clear()  # the stub has just died; the pidfd will report it
        self._loop.remove_writer(self._control)

    def _read_control(self) -> bool:
        """Reads once; False at the end of the stream or when there is nothing now."""
        try:
            data = self._control.recv(1 << 16)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._control)
            if not self._dead and self._ending is None:
                self._ending = self._loop.call_later(_ENDING_S, self.condemn, "it has closed its line to the server")
            return False
        if self._condemned:
            return False
        try:
            self._unframer.feed(data)
            while (message := self._unframer.next()) is not None:
                self._on_message(message)
        except Exception:
            log.exception("stub '%s' (pid %d) sent something that is not a message", self.name, self.pid)
            self.condemn("it sent something that is not a message; does its model write to descriptors of others?")
            return False
        return True

    def _reap(self) -> None:
        self._dead = True
        if self._ending is not None:
            self._ending.cancel()
        self._loop.remove_reader(self._pidfd)
        if not self._terminal:
            # Before the wait: until then the group's number cannot go to another group.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        code = self._process.wait()
        os.close(self._pidfd)
        # A grandchild may keep the other ends open for ever, so this does not wait for the end of the streams.
        _exhaust(self._read_control)
        for read in self._outputs:
            read.close()
        self._loop.remove_reader(self._control)
        self._loop.remove_writer(self._control)
        self._control.close()
        cause = cause_of_death(code, self._oom_kills_before)
        if self._condemned and code == -signal.SIGKILL:
            cause = f"the server has killed it, because {self._condemned}"
        self._on_death(cause)


class SeatLine:
    """What one seat of a stub has of the process: its control messages, and doorbells. Raises OSError.

    `doorbell_out` wakes the seat, `answer_doorbell` wakes its threads that wait for an answer to a model's request; the
    event loop watches `doorbell_in`. `name` is the instance's.
    """

    def __init__(self, process: StubProcess, number: int, name: str) -> None:
        self.name = name
        self.number = number
        self.pid = process.pid
        self.condemn = process.condemn
        self.control_fileno = process.control_fileno
        self.read_messages = process.read_messages
        self._process = process
        self.doorbells: list[int] = []
        try:
            for flags in (0, os.EFD_NONBLOCK, 0):
                self.doorbells.append(os.eventfd(0, os.EFD_CLOEXEC | flags))
        except OSError:  # there is no free descriptor
            self.close()
            raise
        self.doorbell_out, self.doorbell_in, self.answer_doorbell = self.doorbells

    def send(self, kind: str, **fields: Any) -> None:
        self._process.send(kind, seat=self.number, **fields)

    def close(self) -> None:
        """For the owner, once it neither watches nor rings the doorbells."""
        for doorbell in self.doorbells:
            os.close(doorbell)


class Health:
    """A seat of a living stub from outside: the health words in its segment (`words`)."""

    def __init__(self, words: memoryview) -> None:
        self._words = words
        self._started = time.monotonic()

    def state(self) -> tuple[str, float]:
        """The stub's own report of its state, and for how many seconds it has lasted."""
        since = self._words[layout.HEALTH_SINCE_NS]
        seconds = (time.monotonic_ns() - since) / 1e9 if since else time.monotonic() - self._started
        return _NAMES.get(self._words[layout.HEALTH_STATE], "unknown"), seconds


def own_memory(pid: int) -> int:
    """The bytes of memory that only this process uses, 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as statm:
            _, resident, shared, *_ = map(int, statm.read().split())
    except (OSError, ValueError):
        return 0
    # `shared` is memory that is backed by a file: libraries, and the arena.
    return (resident - shared) * _PAGE_BYTES


def _exhaust(read: Callable[[], bool]) -> None:
    for _ in range(_MOST_READS):
        if not read():
            return
