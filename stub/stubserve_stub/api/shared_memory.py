"""Upstream's handle to a stub's region of shared memory, which models use to see whether something leaks.

Here all stubs share one arena, so what it tells moves with what others do, too.
"""

from __future__ import annotations

from typing import Optional

from stubserve_stub.api.exceptions import TritonModelException
from stubserve_stub.api.questions import Questions

_questions: Optional[Questions] = None


def connect(questions: Questions) -> None:
    """From now on the server can be asked."""
    global _questions
    _questions = questions


class SharedMemory:
    """The one object of this class is `shared_memory`."""

    def free_memory(self) -> int:
        """Bytes that are left of --shm-limit; what is kept warm for the next tensors counts as used.

        Raises TritonModelException where there is no server, and in a process that the model has forked.
        """
        if _questions is None:
            raise TritonModelException("There is no shared memory outside of a server.")
        left: int = _questions.ask("memory_left", "Failed to ask how much shared memory is free")
        return left
