"""Closes a process to others of its user, so that its memory, environment and descriptors stay secret.

Models run as the server's user by default, and a process may read all that in /proc for processes of the same user, and
trace them. A process that is not dumpable is open to root only. So this does not close a server that runs as root to
its models; `--stub-sandbox` and `--stub-user` do. The price: no core dumps, and debuggers and profilers need root.

`exec` undoes it: each program of the server does it for itself, after its writes to /proc/self, which is root's then.
"""

from __future__ import annotations

import contextlib
import ctypes

_PR_SET_DUMPABLE = 4


def close_process() -> None:
    """Closes this process, and those that it forks."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
