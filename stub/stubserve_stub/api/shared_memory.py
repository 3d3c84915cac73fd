"""Upstream's handle to a stub's region of shared memory, which models use to see whether something leaks.

Here all stubs share one arena, so what it tells moves with what others do, too.
"""

from __future__ import annotations

from typing import Optional

from stubserve_stub.api.exceptions import TritonModelException
from stubserve_stub.wire.arena import Arena

_arena: Optional[Arena] = None


def connect(arena: Arena) -> None:
    """From now on this is the arena in question."""
    global _arena
    _arena = arena


class SharedMemory:
    """The one object of this class is `shared_memory`."""

    def free_memory(self) -> int:
        """Bytes that are left of --shm-limit; what is kept warm for the next tensors counts as used.

        Raises TritonModelException where there is no server.
        """
        if _arena is None:
            raise TritonModelException("There is no shared memory outside of a server.")
        return _arena.limit - sum(_arena.committed().values())
