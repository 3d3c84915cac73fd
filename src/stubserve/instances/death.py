"""Why a process died, in words that help."""

from __future__ import annotations

import signal
from pathlib import Path

from stubserve.errors import ServeError, internal

_CGROUP_EVENTS = Path("/sys/fs/cgroup/memory.events")
_VMSTAT = Path("/proc/vmstat")


def oom_kills() -> int:
    """How many processes the kernel has killed for lack of memory so far, here or in this container; 0 if unknown."""
    total = 0
    for path in (_CGROUP_EVENTS, _VMSTAT):
        try:
            for line in path.read_text().splitlines():
                if line.startswith("oom_kill "):
                    total += int(line.split()[1])
        except (OSError, ValueError):
            continue
    return total


def cause_of_death(return_code: int, oom_kills_before: int) -> str:
    """Says how a process with this `subprocess` return code ended.

    `oom_kills_before` is what `oom_kills()` said when it was started: a SIGKILL together with a higher count now is put
    down to the kernel's out-of-memory killer.
    """
    if return_code >= 0:
        return f"it exited with code {return_code}"
    number = -return_code
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = "unknown signal"
    cause = f"it was killed by signal {number} ({name})"
    if number == signal.SIGKILL and oom_kills() > oom_kills_before:
        cause += ", out of memory: the kernel's OOM killer was at work; give the machine or the container more memory"
    elif number == signal.SIGSEGV:
        cause += ", a crash in native code; the stub's stderr above shows the Python stack"
    elif number == signal.SIGBUS:
        cause += ", a page of a mapped file is not there: the file has become smaller, or its file system is full"
    return cause


def unhealthy(stub: str, cause: str, pid: int) -> ServeError:
    """What is answered with for a stub that has died."""
    return internal(f"Stub process '{stub}' is not healthy: {cause} (pid {pid}).")
