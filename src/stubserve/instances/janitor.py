"""The server's side of the janitor (`janitor_program`): the process that cleans up after the end of the server.

The janitor is told of every stub, and is started again if it is ended from outside. If server and janitor are both
killed at the same moment, the processes that models have started remain.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import subprocess
import sys

from stubserve.instances import janitor_program

_VARIABLE = "STUBSERVE_SERVER"
_NEEDED = ("LD_LIBRARY_PATH", "PATH")
_FINISH_S = 5.0

log = logging.getLogger("stubserve.instances")


class Janitor:
    """The janitor of one server. `variables` mark its processes; the environment of its stubs must have them."""

    def __init__(self) -> None:
        mark = secrets.token_hex(8)
        self.variables = {_VARIABLE: mark}
        self._mark = f"{_VARIABLE}={mark}"
        self._stubs: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._failed = False

    def adopt(self, pid: int) -> None:
        self._stubs.add(pid)
        if self._process is None:
            self._start()
        else:
            self._tell(f"+{pid}\n")

    def forget(self, pid: int) -> None:
        """A stub is gone, and its number may go to another process."""
        self._stubs.discard(pid)
        self._tell(f"-{pid}\n")

    async def stop(self) -> None:
        """For the end of the server, after its stubs: waits for some seconds until no process of theirs is left."""
        process, self._process = self._process, None
        if process is None:
            return
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            await asyncio.to_thread(process.wait, _FINISH_S)
        except subprocess.TimeoutExpired:
            log.warning("processes that models have started do not end")

    def _start(self) -> None:
        command = [sys.executable, "-I", "-S", janitor_program.__file__, self._mark]
        # Models can read this process's variables, so it gets only those that its interpreter may need.
        variables = {name: value for name, value in os.environ.items() if name in _NEEDED}
        try:
            # A session of its own: signals to the server's terminal or group must not end the janitor.
            self._process = subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, start_new_session=True)
            self._pidfd = os.pidfd_open(self._process.pid)
        except OSError as error:
            if not self._failed:
                log.warning("the process that cleans up when the server is killed cannot be started: %s", error)
            self._failed = True
            if self._process is not None:
                self._process.kill()
                self._process.wait()
                self._process = None
            return
        asyncio.get_running_loop().add_reader(self._pidfd, self._on_death)
        self._tell("".join(f"+{pid}\n" for pid in self._stubs))

    def _tell(self, text: str) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            # A janitor that cannot be told is dead, and the next one is told everything.
            with contextlib.suppress(OSError):
                os.write(self._process.stdin.fileno(), text.encode())

    def _on_death(self) -> None:
        process, self._process = self._process, None
        assert process is not None
        assert process.stdin is not None
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        process.stdin.close()
        process.wait()
        if self._stubs:
            self._start()
