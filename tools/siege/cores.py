"""How the cores are shared in a siege: the server and its polite clients come first, attackers get what they leave.

Attackers stand for clients on machines of their own, so what they burn here is not the server's doing. A low priority
alone does not see to that: where processes are in no control group, Linux shares the cores among sessions before it
looks at priorities within one (autogroup, `man 7 sched`). The server, each of its stubs, the polite clients and the
attackers are sessions of their own, so ten idle attackers got as much as the server with all its threads, and a polite
client that was ready to run waited up to 0.1 s for its turn: p99 of 160 ms where the event loop had been late by 10.

So a siege has two control groups: one for the server and polite clients, as in a container, and an idle one.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

_SYSTEM = Path("/sys/fs/cgroup")
_END_TIMEOUT_S = 5.0
NOT_PERMITTED = (
    "note: no control groups for the cores can be made here (root can), so times tell of the attackers' own work, too"
)


class Cores:
    """A context manager: this process and those that it starts go first. `idle` is the attackers' group, if any."""

    def __init__(self) -> None:
        self.idle: Path | None = None
        self._first: Path | None = None
        self._before: Path | None = None

    def __enter__(self) -> Cores:
        with contextlib.suppress(OSError):
            self._make()
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            with contextlib.suppress(OSError):
                join(self._before)
        for group in (self.idle, self._first):
            if group is not None:
                _remove(group)
        self.idle = self._first = None

    def _make(self) -> None:
        """Raises OSError where it is not permitted, or there is nothing of that kind."""
        before, parent = _own_group()
        name = f"stubserve-siege-{os.getpid()}"
        first, idle = parent / f"{name}-first", parent / f"{name}-idle"
        self._first = first
        first.mkdir()
        idle.mkdir()
        try:
            (idle / "cpu.idle").write_text("1")
            join(first)
        except OSError:
            _remove(idle)
            raise
        self._before = before
        self.idle = idle


def join(group: Path) -> None:
    """Moves this process into a group. Raises OSError."""
    (group / "cgroup.procs").write_text(str(os.getpid()))


def _own_group() -> tuple[Path, Path]:
    """This process's group for the cores, and the folder in which to make others. Raises OSError."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            own = _SYSTEM / controllers / path.lstrip("/")
            return own, own
        if number == "0" and not controllers and (_SYSTEM / "cgroup.controllers").exists():
            own = _SYSTEM / path.lstrip("/")
            # Version 2: a group with processes has no groups below it, but for the first of all.
            parent = own if path == "/" else own.parent
            (parent / "cgroup.subtree_control").write_text("+cpu")
            return own, parent
    raise FileNotFoundError("no control groups for the cores")


def _remove(group: Path) -> None:
    """It is empty when the last of its processes has been reaped."""
    deadline = time.monotonic() + _END_TIMEOUT_S
    while group.exists() and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.05)
