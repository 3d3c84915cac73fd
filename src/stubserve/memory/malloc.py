"""Makes the C library return large pieces of memory to the system as soon as they are freed.

glibc maps pieces above a threshold, and the kernel takes these back when they are freed. It cuts smaller pieces from a
heap, one for each thread, that shrinks only from its end. By default the threshold follows the freed sizes, up to 32
MiB. After the first large body every later one would be cut from a heap, and a few small objects behind it would keep
hundreds of megabytes unused. A threshold that is set stays fixed. It is low enough for the buffers of TLS connections:
400 connections that came and went left 200 MiB with a threshold of 512 KiB, and 60 with this one.

Cost: a piece of LARGE_BYTES or more is mapped anew each time, about 0.1 ms for each MiB that is touched; large data of
a busy server lies in the arena, not here. With 64 KiB every read that fills a connection's buffer would be mapped.
"""

from __future__ import annotations

import contextlib
import ctypes

LARGE_BYTES = 128 * 1024
# Free memory to keep at the end of a heap. It would be 128 KiB if only the threshold were set.
KEPT_BYTES = 8 << 20

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def give_back_large() -> None:
    """Sets this for the process. Does nothing if the C library has no such setting."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
