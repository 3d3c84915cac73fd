"""Child processes that no other code waits for, where the server is the first process of a container.

What a model has started and outlives its parent becomes a child of that process, and stays in the table of processes
when it is dead until somebody has asked for its end. The server's own children are asked for at once by whoever started
them; so a dead child that is still there at the second look is nobody's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

_LOOK_S = 5.0


async def reap() -> None:
    """Reaps orphans until it is cancelled."""
    seen: set[int] = set()
    while True:
        await asyncio.sleep(_LOOK_S)
        dead = dead_children()
        for pid in dead & seen:
            _reap(pid)
        seen = dead


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def dead_children() -> set[int]:
    """The children of this process that have ended and that nobody has waited for."""
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
