"""How much of the arena may be committed: one ledger in the parent, and what it has granted to each stub.

There is one limit for all processes. The parent adds up, in memory of its own, so no stray write of a model changes a
sum. A stub asks before it touches more than its grant, and says when it needs less; in between it counts by itself. So
memory that is used again and again costs no message.
"""

from __future__ import annotations

from typing import Dict

from stubserve_stub.wire import codes


class ArenaFull(MemoryError):
    """There is no room; the text says why, and what to do. `nbytes` is what the limit lacks, 0 for other reasons."""

    # The code of a response that has this error
    code = codes.UNAVAILABLE

    def __init__(self, text: str, nbytes: int = 0) -> None:
        self.nbytes = nbytes
        super().__init__(text)


class NotGranted(ArenaFull):
    """A stub has to ask for `nbytes` more before it can commit."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(f"{nbytes} bytes of shared memory are to be granted", nbytes)


class Ledger:
    """The parent's account of what each segment may commit; the sum never passes `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self._committed: Dict[int, int] = {}

    @property
    def left(self) -> int:
        """Bytes that may still be committed."""
        return self.limit - self.total

    def commit(self, index: int, nbytes: int) -> None:
        """Counts `nbytes` that segment `index` is about to touch. Raises ArenaFull if the limit would be passed."""
        if self.total + nbytes > self.limit:
            raise ArenaFull(
                f"no room for {nbytes} bytes in shared memory: {self.total} of {self.limit} bytes are in use; raise "
                "--shm-limit",
                nbytes,
            )
        self._committed[index] = self._committed.get(index, 0) + nbytes
        self.total += nbytes

    def uncommit(self, index: int, nbytes: int) -> None:
        """Takes off `nbytes` that segment `index` has given to the system, at most what is counted for it."""
        nbytes = min(nbytes, self._committed.get(index, 0))
        self._committed[index] = self._committed.get(index, 0) - nbytes
        self.total -= nbytes

    def committed_by(self, index: int) -> int:
        """Bytes that are counted for one segment."""
        return self._committed.get(index, 0)

    def committed(self) -> Dict[int, int]:
        """Committed bytes by segment, without empty ones."""
        return {index: nbytes for index, nbytes in sorted(self._committed.items()) if nbytes}


class Grant:
    """A stub's account of its own segment: `slack` is the unused part of its grant. Not thread-safe."""

    def __init__(self, slack: int = 0) -> None:
        self.slack = slack

    def commit(self, index: int, nbytes: int) -> None:
        """Counts `nbytes` that are about to be touched. Raises NotGranted."""
        if nbytes > self.slack:
            raise NotGranted(nbytes - self.slack)
        self.slack -= nbytes

    def uncommit(self, index: int, nbytes: int) -> None:
        """Counts `nbytes` that were given to the system."""
        self.slack += nbytes
