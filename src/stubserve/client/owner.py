"""Names of shared memory that say which process owns it, and what is left of processes that are gone.

A name in /dev/shm, which is also the name of the region at the server, has the owner's PID namespace, its pid, and when
it started. A pid alone may have gone to another process. Names of another PID namespace are left alone, because nobody
here can tell whether their owners live.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

FOLDER = Path("/dev/shm")
_PREFIX = "stubserve-client"


def new_name() -> str:
    """A name for memory of this process that no other memory has."""
    pid = os.getpid()
    return f"{_PREFIX}-{_namespace()}-{pid}-{_started(pid)}-{secrets.token_hex(12)}"


def is_orphan(name: str) -> bool:
    """Whether a name is of this kind, and its owner is gone. False where that cannot be found out."""
    parts = name.removeprefix(f"{_PREFIX}-").split("-")
    if not name.startswith(f"{_PREFIX}-") or len(parts) != 4 or not all(part.isdecimal() for part in parts[:3]):
        return False
    namespace, pid, started = map(int, parts[:3])
    return namespace == _namespace() and _started(pid) not in (started, None)


def sweep() -> None:
    """Removes the files of owners that were killed between making a file and showing it to the server."""
    for path in FOLDER.glob(f"{_PREFIX}-*"):
        if is_orphan(path.name):
            # Another process may sweep as well, and the file may belong to another user.
            with contextlib.suppress(OSError):
                path.unlink()


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _started(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; 0 if there is none; None if it is hidden from this user."""
    try:
        # The name of the process is in parentheses, and may have spaces and parentheses in it.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None if _exists(pid) else 0
    ended = fields[0] in (b"Z", b"X")
    return 0 if ended else int(fields[19])


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
