"""Closes a process to others of its user: what it has in its memory, its environment and its descriptors is secret.

Models run as the server's user where nothing else is said, and a process of the same user may read all that in /proc,
and trace the process. One that is not dumpable is open to root only; so a server that runs as root is not closed to its
models by this, but by `--stub-sandbox` and `--stub-user`. The price: no core dumps, and debuggers and profilers of such
a process are for root as well.

The kernel takes it back with `exec`: each program of the server's does it for itself, after what it writes in
/proc/self, which is root's then.
"""

from __future__ import annotations

import contextlib
import ctypes

_PR_SET_DUMPABLE = 4


def close_process() -> None:
    """For this process, and those that it forks."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
