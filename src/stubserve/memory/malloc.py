"""Has the C library give back to the system what was allocated in large pieces, as soon as it is freed.

glibc maps pieces above a threshold, which the kernel takes back when they are freed, and cuts all others from a heap
that only shrinks from its end. The threshold follows what is freed, up to 32 MiB: after the first large body every
later one would be cut from a heap, one for each thread, and a few small objects behind them would keep hundreds of
megabytes that nobody uses. Setting the threshold keeps it where it is. It is low enough for the buffers of connections
over TLS: 400 of them that came and went left 200 MiB with a threshold of 512 KiB, and 60 with this one.

Cost: a piece of LARGE_BYTES or more is mapped anew each time, about 0.1 ms for each MiB that is touched; what a busy
server moves in such pieces lies in the arena, not here. With 64 KiB every read that fills the buffer of connections
would be such a piece.
"""

from __future__ import annotations

import contextlib
import ctypes

LARGE_BYTES = 128 * 1024
# Free memory at the end of a heap that is kept for what comes next: 128 KiB, were only the threshold set.
KEPT_BYTES = 8 << 20

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def give_back_large() -> None:
    """For this process. Does nothing where the C library has no such setting."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
