"""The cause of a stub's death in helpful words, and the time of the next start."""

from __future__ import annotations

import signal
from pathlib import Path

from stubserve.errors import ServeError, internal

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 30.0
LONGEST_AT_WORK_S = 1.0
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
    """Says how long to wait for the next start: 0.1 s, and twice as long for each further death in a row.

    A start has failed if the stub dies before it gets a request. The delay then grows to 30 s, and after `limit` such
    restarts in a row there is no other; 0 turns restarting off. A stub that dies while it executes has started well:
    the next request may be a good one, and it waits. So this delay grows to 1 s only, and there is no limit.

    Deaths are not in a row if the stub had executed something between them, or had served for a second. Times are
    seconds of any one clock; `ready_at` is None for a stub that never served.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.restarts = 0
        self._at_work = False

    def next_delay(
        self, ready_at: float | None, died_at: float, at_work: bool = False, has_executed: bool = False
    ) -> float | None:
        """Seconds until the next start, None for no further start. `at_work`: it died while it executed requests."""
        if has_executed or at_work is not self._at_work or (ready_at is not None and died_at - ready_at >= STABLE_S):
            self.restarts = 0
        self._at_work = at_work
        if self.restarts >= self.limit and not (at_work and self.limit):
            return None
        self.restarts += 1
        longest_s = LONGEST_AT_WORK_S if at_work else LONGEST_DELAY_S
        return float(min(FIRST_DELAY_S * 2 ** min(self.restarts - 1, 16), longest_s))
