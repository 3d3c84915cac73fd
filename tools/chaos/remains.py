"""What a server leaves behind: processes that have its mark in their environment, and what its processes had open."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections import Counter
from pathlib import Path

from tools.bench.processes import stubs

MARK = "STUBSERVE_CHAOS_MARK"
# Between two looks, which are counted, and not the time: all may stand still meanwhile.
LOOK_S = 0.05
STUBS = "stubs"


def marked(mark: str) -> dict[int, str]:
    """The command lines of all processes with this mark, by their ids."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z":
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
    return found


def memfds(mark: str) -> int:
    """How many descriptors of shared memory these processes have."""
    count = 0
    for pid in marked(mark):
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    count += os.readlink(link).startswith("/memfd:")
    return count


def descriptors(pid: int) -> Counter[str]:
    """What a server's parent has open, by kind; and, under STUBS, how many stubs it has."""
    found = Counter({STUBS: len(stubs(pid))})
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found[re.sub(r"[0-9]+", "N", os.readlink(link))] += 1
    return found


def after(mark: str, within_s: float) -> list[str]:
    """What is still there when `within_s` have passed, in which it could run; it is ended then."""
    left = marked(mark)
    for _ in range(round(within_s / LOOK_S)):
        if not left:
            break
        time.sleep(LOOK_S)
        left = marked(mark)
    found = [f"process {pid}: {command}" for pid, command in left.items()]
    if count := memfds(mark) if left else 0:
        found.append(f"{count} descriptors of shared memory")
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found
