"""The cause of a stub's death in helpful words, and the time of the next start."""

from __future__ import annotations

import signal
from pathlib import Path

from stubserve.errors import ServeError, internal

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 30.0
STABLE_S = 1.0

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
    """The end of a process with this `subprocess` return code, in words.

    `oom_kills_before` is the result of `oom_kills()` at its start. A SIGKILL together with a higher count now is
    attributed to the kernel's out-of-memory killer.
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
    return internal(f"Stub process '{stub}' is not healthy: {cause} (pid {pid}).")


class RestartPolicy:
    """Counts deaths in a row and says how long to wait: 0.1 s, doubling to 30 s.

    If a stub served for a second before it died, the count starts anew: the cause is then a request or another process,
    and between two deaths the stub does its work. The delays and the limit are for stubs that die while they load, or
    at their first work. After `limit` restarts in a row there is no other; 0 turns restarting off. Times are seconds of
    any one clock; `ready_at` is None for a stub that never served.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.restarts = 0

    def next_delay(self, ready_at: float | None, died_at: float) -> float | None:
        """Seconds until the next start, None for no further start."""
        if ready_at is not None and died_at - ready_at >= STABLE_S:
            self.restarts = 0
        if self.restarts >= self.limit:
            return None
        self.restarts += 1
        return float(min(FIRST_DELAY_S * 2 ** (self.restarts - 1), LONGEST_DELAY_S))
