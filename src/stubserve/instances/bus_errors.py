"""Threads of a stub that will never come out of a bus error.

When a client makes a region of its shared memory smaller while a stub reads it, the kernel sends SIGBUS to the thread
that reads, and the stub's handler mends that (`stubserve_stub.runtime.region_window`). The handler needs the
interpreter's lock. Native code that has the lock and waits for threads of its own, one of which reads the region, keeps
it for ever: neither goes on, and nothing within the process can tell. From outside it can be told: for as long as a
handler runs, the kernel holds back its signal for that thread, which /proc shows. No thread holds back SIGBUS and lets
SIGSEGV through otherwise; those that want no signals at all hold back both.

A handler takes microseconds, and the interpreter's lock changes hands every few milliseconds where Python runs. So a
thread that is in it at two looks, a second or so apart, hangs.
"""

from __future__ import annotations

import os
import signal

CAUSE = (
    "the shared memory of a request has become smaller while it was executed, and native code of the model waits, with "
    "the interpreter's lock, for the thread that reads it"
)

_BUS_ERROR = 1 << (signal.SIGBUS - 1)
_SEGMENTATION_FAULT = 1 << (signal.SIGSEGV - 1)


def threads_in_handler(pid: int) -> frozenset[int]:
    """The threads of a process that are in their handler of SIGBUS; none for one that is gone."""
    found = set()
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            held_back = _held_back(f"/proc/{pid}/task/{thread}/status")
            if held_back & _BUS_ERROR and not held_back & _SEGMENTATION_FAULT:
                found.add(int(thread))
    except OSError:  # it ends just now
        return frozenset()
    return frozenset(found)


def _held_back(path: str) -> int:
    """The signals that a thread holds back, as a set of bits; none for one that is gone."""
    try:
        with open(path, "rb", buffering=0) as status:
            _, _, rest = status.read().partition(b"\nSigBlk:\t")
    except OSError:
        return 0
    return int(rest.partition(b"\n")[0] or b"0", 16)
